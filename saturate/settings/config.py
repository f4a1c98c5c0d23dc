"""All groups of settings as one, checked: flags win over a YAML preset, which wins over the defaults.

Must not know: any room. What a name means (a task, a loader, an architecture) is checked by train.py against
the room's table.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import ValidationError

from saturate.contracts import UserError, counted
from saturate.settings import help
from saturate.settings.augmentation import AugmentationSettings
from saturate.settings.cli import Settings, flag_words, nearest, refusal
from saturate.settings.clips import Clips
from saturate.settings.data import Data
from saturate.settings.detection import Detection
from saturate.settings.loading import Loading
from saturate.settings.model import Model
from saturate.settings.optimisation import Optimisation
from saturate.settings.preset import read_preset, shown
from saturate.settings.run import Run
from saturate.settings.superres import Superres
from saturate.settings.types import Facts
from saturate.system.user_files import local_path

PRESETS = Path(__file__).resolve().parents[1] / "configs"


class Config(Settings):
    """Train image classifiers, detectors, video classifiers and networks that enlarge images, see how fast it
    goes, how fast it could go, and what holds it back."""

    run: Run = Run()
    data: Data = Data()
    augmentation: AugmentationSettings = AugmentationSettings()
    clips: Clips = Clips()
    detection: Detection = Detection()
    superres: Superres = Superres()
    loading: Loading = Loading()
    model: Model = Model()
    optimisation: Optimisation = Optimisation()

    def flat(self) -> dict[str, Any]:
        """Return every setting by its flag's name, with JSON values, as a preset holds them."""
        return {
            name: value
            for group in self.model_dump(mode="json").values()
            for name, value in group.items()
        }


GROUPS = {
    name: cast("type[Settings]", field.annotation)
    for name, field in Config.model_fields.items()
}
GROUP_OF = {name: group for group, cls in GROUPS.items() for name in cls.model_fields}
FACTS_OF: dict[str, Facts] = {
    name: replace(cls.facts, **cast("dict[str, Any]", field.json_schema_extra or {}))
    for cls in GROUPS.values()
    for name, field in cls.model_fields.items()
}
"""Facts of each setting, by its name."""
OF_PIXELS = "for pixels in 0 to 1; divide values for 0 to 255 by 255"
"""What --mean and --std are."""
TUNED = ("optimizer", "lr", "schedule", "weight_decay", "warmup_epochs", "warmup_steps")
"""Settings by which a recipe is one's own."""


def build(flat: dict[str, Any], origin: str = "settings") -> Config:
    """Return a checked Config from flat keys. Raises UserError naming the first bad key, what it got and the
    nearest name."""
    nested: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
    for key, value in flat.items():
        name = str(key).replace("-", "_")[:200]
        if name not in GROUP_OF:
            if foreign := help.foreign_keys(flat, GROUP_OF):
                raise UserError(f"{origin} {foreign[0]}", *foreign[1:])
            if hint := help.answer(f"--{name}"):
                raise UserError(f"{origin}: key {shown(name)}{hint}")
            near = nearest(name, GROUP_OF)
            raise UserError(
                f"{origin}: unknown key {shown(name)}{near}; --help-all lists every setting"
            )
        nested[GROUP_OF[name]][name] = value
    try:
        config = Config.model_validate(nested)
    except ValidationError as error:
        problem = refusal(error, depth=1)
        if theirs := help.DIFFERENT.get(problem.split()[0].lstrip("-")):
            problem += f"; another program's is {theirs}"
        raise UserError(f"{origin}: {problem}") from None
    for flag, problem in _contradictions(config):
        raise UserError(f"{origin}: --{flag} {problem}")
    return config


def _contradictions(config: Config) -> Iterator[tuple[str, str]]:
    """Yield a flag, and what is wrong with it, for values that do not go together."""
    drawn = config.augmentation
    low, high = drawn.crop_scale
    if not 0 < low <= high <= 1:
        yield "crop-scale", f"got {low} {high}; two values with 0 < low <= high <= 1"
    low, high = drawn.crop_ratio
    if not 0 < low <= high:
        yield "crop-ratio", f"got {low} {high}; two values with 0 < low <= high"
    if (short := config.clips.short_side) and short[0] > short[1]:
        problem = f"got {short[0]} {short[1]}; two lengths, the smaller one first"
        yield "short-side", problem
    if drawn.mean and not 0 <= min(drawn.mean) <= max(drawn.mean) <= 1:
        yield "mean", f"got {drawn.mean}; {OF_PIXELS}"
    if drawn.std and not 0 < min(drawn.std) <= max(drawn.std) <= 1:
        yield "std", f"got {drawn.std}; each is above 0, {OF_PIXELS}"
    step = config.optimisation
    if step.global_batch_size is not None and step.accumulate > 1:
        yield "accumulate", "follows from --global-batch-size; leave one of them out"
    if step.teacher and config.data.multi_label:
        yield "teacher", "is for samples with one label; leave it out"
    run = config.run
    if run.uses and config.loading.batch_size == "auto":
        yield "batch-size", "auto is for training; name a number"
    if run.predict is not None and run.evaluate:
        yield "predict", "and --evaluate are two runs; leave one of them out"
    data = config.data.data
    if data is None or "://" in data:
        return
    written = {"manifest-dir": config.data.manifest_dir, "output": run.folder}
    for flag, folder in written.items():
        if folder and folder.resolve().is_relative_to(Path(data).resolve()):
            inside = f"{folder} lies inside --data {data}, which is never written to"
            yield flag, f"{inside}; name another folder"


def parse(argv: list[str], tables: Mapping[str, Iterable[str]] | None = None) -> Config:
    """Return the settings: flags over the preset that --config names over the defaults. Raises UserError;
    --help-all prints and exits 0.

    `tables` are those of the rooms, for --help (tasks.tables). tasks.kind_of tells whether --task is known
    and reads what is set.
    """
    words = flags_of(argv, tables)
    return checked(words, preset_of(words))


def given(argv: list[str]) -> frozenset[str]:
    """Return the names of the settings that flags or the preset have, of a command line that parses."""
    words = flags_of(argv)
    return frozenset(words.keys() | preset_of(words).keys())


def flags_of(
    argv: list[str], tables: Mapping[str, Iterable[str]] | None = None
) -> dict[str, Any]:
    """Return what flags say, by the names of settings. Raises UserError."""
    return flag_words(
        GROUPS,
        ["--help" if word == "--help-all" else word for word in argv],
        prog="train.py",
        about=Config.__doc__,
        tables=tables,
        answer=help.answer,
    )


def preset_of(words: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the preset says that --config names, by the names of settings. Raises UserError."""
    if words.get("config") is None:
        return {}
    try:
        path = local_path(words["config"])
    except ValueError as error:
        raise UserError(f"--config {error}") from None
    # configs/imagenet/resnet50.yaml is that of the package wherever no folder of the user has one
    own = PRESETS.parent / path
    preset = read_preset(own if own.exists() and not path.exists() else path)
    return {str(key).replace("-", "_"): preset[key] for key in preset}


def checked(words: dict[str, Any], preset: dict[str, Any]) -> Config:
    """Return the settings of flags over a preset. Raises UserError."""
    before = build(preset, origin=f"--config {words.get('config')}")
    config = build({**preset, **words}, origin="flags")
    _check_read(config, before)
    return config


def micro_batches(config: Config, ranks: int) -> tuple[int, int]:
    """Return the samples of a micro-batch, and the micro-batches of a step, with which so many ranks make
    --global-batch-size; without it --batch-size and --accumulate. Raises UserError where they cannot."""
    samples = config.optimisation.global_batch_size
    asked = config.loading.batch_size
    if asked == "auto":
        asked = 1  # until it was found out, see run/train.py
    if samples is None:
        return asked, config.optimisation.accumulate
    share, rest = divmod(samples, ranks)
    most = min(asked, share)
    # the largest divisor; much smaller ones would be slow, and other statistics for batch norm
    sizes = range(most, most // 2, -1)
    size = next((size for size in sizes if share % size == 0), 0)
    if rest or not size:
        unit = ranks if samples < ranks * asked else ranks * asked
        raise UserError(
            f"--global-batch-size {samples}: the {samples / ranks:g} samples of each of {counted(ranks, 'rank')} are "
            f"no micro-batches of {asked} (--batch-size) to half of it; choose a multiple of {unit}"
        )
    return size, share // size


def of_ranks(own: Config, first: Mapping[str, Any]) -> Config:
    """Return the settings of a rank: its `own`, and rank 0's (of Config.flat()) where `Facts.ranks` says so."""
    taken = {name: first[name] for name in FACTS_OF if FACTS_OF[name].ranks == "first"}
    return build({**own.flat(), **taken})


def alike(config: Config) -> dict[str, Any]:
    """Return the settings that all ranks have alike, by their flags."""
    return {
        f"--{name.replace('_', '-')}": value
        for name, value in config.flat().items()
        if FACTS_OF[name].ranks == "alike"
    }


def _check_read(config: Config, before: Config) -> None:
    """Raise UserError for a flag that nothing reads. Only what flags changed `before` is looked at: a preset
    may keep what another flag has made idle."""
    chosen = config.flat()
    preset = before.flat()
    for name, facts in FACTS_OF.items():
        if not facts.needs or chosen[name] == preset[name]:
            continue
        other, *values = facts.needs
        value = chosen[other]
        fits = value in (*values, "auto", None) if values else value
        if fits:
            continue
        flag, needs = (word.replace("_", "-") for word in (name, other))
        wanted = f"--{needs} {' or '.join(values)}".strip()
        state = f"--{needs} {'not given' if value is None else value}"
        raise UserError(f"--{flag} is for {wanted}, and this is {state}")


def recipe(config: Config, arch: str) -> list[str]:
    """Return a line for each preset with published settings of the architecture, or for weights that are
    trained already; [] when one or a part of one was named, or where nothing is trained."""
    usual = Optimisation()
    tuned = any(
        getattr(config.optimisation, one) != getattr(usual, one) for one in TUNED
    )
    if config.run.config is not None or config.run.uses or tuned:
        return []
    if config.model.weights is not None:
        note = (
            "is for weights that are trained already; these are --help-all's defaults"
        )
        folder = "configs/coco" if config.model.task == "detection" else "configs"
        return [f"--config {folder}/finetune.yaml {note}"]
    key = re.compile(rf"^arch: {re.escape(arch)}\s*(#.*)?$", re.MULTILINE)
    candidates = [
        path
        for path in sorted(PRESETS.glob("*/*.yaml"))
        if path.stem not in ("demo", "finetune")
    ]
    own = [
        path.relative_to(PRESETS.parent)
        for path in candidates
        if key.search(path.read_text(encoding="utf-8"))
    ]
    note = f"has published settings of {arch}; these are --help-all's defaults"
    return [f"--config {path} {note}" for path in own]


def as_yaml(config: Config, *, without: Collection[str] = ("config",)) -> str:
    """Return the configuration as a preset that `--config` reads back to the same Config, but for the
    settings that are left out (`without`)."""
    lines = []
    for group, cls in GROUPS.items():
        values = config.model_dump(mode="json")[group]
        listed = {name: value for name, value in values.items() if name not in without}
        if listed:
            lines.append(f"# {(cls.__doc__ or '').strip()}")
        for name, value in listed.items():
            # JSON would do, but for names beyond the basic plane, which it writes as two halves that YAML
            # does not join
            written = yaml.safe_dump(
                [value], default_flow_style=True, width=float("inf")
            )[1:-2]
            lines.append(f"{name}: {written}")
    return "\n".join(lines) + "\n"
