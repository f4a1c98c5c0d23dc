"""What a batch means. One task a file: its plans, targets, losses and figures, and its defaults."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields, replace
from importlib import import_module
from typing import cast

from saturate.contracts import UserError
from saturate.dataset.stores import SOURCES
from saturate.loaders import LOADERS
from saturate.models import Registry, Unusable
from saturate.settings.cli import one_of
from saturate.settings.config import GROUP_OF, Config
from saturate.system.programs import program
from saturate.tasks.kind import TaskKind

TASKS = {
    "classification": "saturate.tasks.classification",
    "detection": "saturate.tasks.detection",
    "superres": "saturate.tasks.superres",
    "video": "saturate.tasks.video",
}
"""--task -> module that has its tasks.kind.TaskKind as KIND; a run imports that of its task alone."""
COMPARED = ("top1", "top5", "loss", "ap", "ap50", "psnr", "ssim")
"""Figures by which TensorBoard's HPARAMS page compares runs, which may be of several tasks."""


def tables() -> dict[str, Iterable[str]]:
    """Return the names that settings may have, as docstrings of settings call their tables."""
    loaders: dict[str, list[str]] = {}
    for name, spec in LOADERS.items():
        for medium in spec.media:
            loaders.setdefault(f"{medium.removesuffix('s')} loaders", []).append(name)
    return {"tasks": TASKS, "sources": SOURCES, **loaders}


def kind_named(task: str) -> TaskKind:
    """Return the entry of a task in TASKS."""
    kind: TaskKind = import_module(TASKS[task]).KIND
    return kind


def kind_of(config: Config) -> TaskKind:
    """Return the entry of --task with its settings. Raises UserError for an unknown task, or a setting that it
    does not read."""
    kind = kind_named(one_of("--task", config.model.task, TASKS))
    groups = {field.name: getattr(config, field.name) for field in fields(kind)}
    kind = replace(kind, **groups).variant
    require_read(config, kind)
    if until := config.optimisation.until:
        titled = {figure.name: figure for figure in kind.figures if figure.title}
        name, _, value = until.partition("=")
        share = titled[one_of("--until", name, titled)].unit == "%"
        if share and float(value) > 1:
            right = f"{name}={float(value) / 100:g}"
            raise UserError(f"--until got '{until}', and {name} is a share: {right}")
    return kind


def require_read(config: Config, kind: TaskKind) -> None:
    """Raise UserError for a setting that is not the default and means nothing to the task."""
    defaults = Config().flat()
    chosen = config.flat()
    for name in GROUP_OF:
        if chosen[name] != defaults[name] and not kind.reads(name):
            readers = " or ".join(
                task for task in TASKS if kind_named(task).reads(name)
            )
            raise UserError(
                f"--{name.replace('_', '-')} is for --task {readers}, and this is --task {kind.name}"
            )
    if config.model.graphs is True and not kind.graphs:
        why = "its batches have many shapes, each would be a graph"
        arch = config.model.arch or kind.arch
        raise UserError(f"--graphs true is not for --arch {arch}: {why}; --graphs auto")


LISTER = program("archs")
"""The program that lists the names of --arch."""


def architecture(
    kind: TaskKind, asked: str | None, flag: str = "--arch"
) -> tuple[Registry, str]:
    """Return the registry that builds --arch (`asked`), and its name there; `flag` is what messages call it.

    Raises UserError for an unknown one, and Unusable where a registry's package is not installed.
    """
    from saturate.models.functions import Functions

    arch = asked or kind.arch
    if ":" in arch:
        return Functions(
            of_the_task=kind.registry.native(kind.arch), adopt=kind.adopted
        ), arch
    for prefix, module in kind.others.items():
        if arch.startswith(prefix):
            registry = cast("Registry", import_module(module))
            return registry, one_of(flag, arch, registry.names(), lister=LISTER)
    names = kind.registry.names()
    if arch in names:
        return kind.registry, arch
    begun: list[str] = []  # names of others that begin so
    for prefix, module in kind.others.items():
        # its package may not be installed
        with suppress(Unusable):
            theirs = import_module(module).names()
            if prefix + arch in theirs:
                raise UserError(f"{flag} got '{arch}', which is {prefix}{arch} here")
            begun += [one for one in theirs if one.startswith(prefix + arch)]
    for task in TASKS:
        if task != kind.name and arch in kind_named(task).registry.names():
            raise UserError(f"{flag} got '{arch}', which is for --task {task}")
    if begun and not any(name.startswith(arch) for name in names):
        near = " or ".join(sorted(begun, key=len)[:3])
        problem = f"{flag} got '{arch}' (did you mean {near}?); {LISTER} lists them"
        raise UserError(problem)
    return kind.registry, one_of(flag, arch, names, lister=LISTER)
