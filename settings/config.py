"""All groups of settings as one, checked: flags win over a YAML preset, which wins over the defaults.

Must not know: any room. What a name means (a task, a loader, an architecture) is checked by train.py against
the room's table.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import ValidationError

from contracts import UserError
from settings import help
from settings.augmentation import Augmentation
from settings.cli import Settings, flags, nearest, wrong
from settings.clips import Clips
from settings.data import Data
from settings.detection import Detection
from settings.loading import Loading
from settings.model import Model
from settings.optimisation import Optimisation
from settings.preset import read_preset, shown
from settings.run import Run
from settings.superres import Superres
from settings.types import Facts
from system.user_files import local_path

PRESETS = Path(__file__).resolve().parents[1] / "configs"


class Config(Settings):
    """Train image classifiers, detectors, video classifiers and networks that enlarge images, see how fast it
    goes, how fast it could go, and what holds it back."""

    run: Run = Run()
    data: Data = Data()
    augmentation: Augmentation = Augmentation()
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
FACTS: dict[str, Facts] = {
    name: replace(cls.facts, **cast("dict[str, Any]", field.json_schema_extra or {}))
    for cls in GROUPS.values()
    for name, field in cls.model_fields.items()
}
"""What is known of each setting, by its name."""


def build(flat: dict[str, Any], origin: str = "settings") -> Config:
    """Return a checked Config from flat keys. Raises UserError naming the first bad key, what it got and the
    nearest name."""
    nested: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
    for key, value in flat.items():
        name = str(key).replace("-", "_")[:200]
        if name not in GROUP_OF:
            near = nearest(name, GROUP_OF)
            raise UserError(
                f"{origin}: unknown key {shown(name)}{near}; --help-all lists every setting"
            )
        nested[GROUP_OF[name]][name] = value
    try:
        config = Config.model_validate(nested)
    except ValidationError as error:
        first = error.errors()[0]
        where = str(first["loc"][1] if len(first["loc"]) > 1 else first["loc"][0])
        said = wrong(first["type"], first["msg"], shown(first["input"]))
        raise UserError(f"{origin}: --{where.replace('_', '-')}{said}") from None
    _check_ranges(config, origin)
    return config


def _check_ranges(config: Config, origin: str) -> None:
    for name, lowest in (("crop_scale", 0.0), ("crop_ratio", 0.0)):
        low, high = getattr(config.augmentation, name)
        if not lowest < low <= high or (name == "crop_scale" and high > 1):
            flag = name.replace("_", "-")
            raise UserError(
                f"{origin}: --{flag} got {low} {high}; two values with 0 < low <= "
                f"high{' <= 1' if name == 'crop_scale' else ''}"
            )
    short = config.clips.short_side
    if short and short[0] > short[1]:
        raise UserError(
            f"{origin}: --short-side got {short[0]} {short[1]}; two lengths, the smaller one first"
        )
    if config.augmentation.std and min(config.augmentation.std) <= 0:
        raise UserError(
            f"{origin}: --std got {config.augmentation.std}; each must be above 0"
        )
    run = config.run
    for name, value in (
        ("tta", run.tta != "none"),
        ("predict-format", run.predict_format != "csv"),
    ):
        if value and run.predict is None:
            raise UserError(
                f"{origin}: --{name} is for --predict, which was not given; leave it out"
            )
    if run.predict is not None and run.evaluate:
        raise UserError(
            f"{origin}: --predict and --evaluate are two runs; leave one of them out"
        )
    data = (
        Path(config.data.data)
        if config.data.data and "://" not in config.data.data
        else None
    )
    for flag, folder in (
        ("--manifest-dir", config.data.manifest_dir),
        ("--output", config.run.output),
    ):
        if data and folder and folder.resolve().is_relative_to(data.resolve()):
            raise UserError(
                f"{origin}: {flag} {folder} lies inside --data {data}, which is never written to; name "
                "another folder"
            )


def parse(argv: list[str], tables: Mapping[str, Iterable[str]] | None = None) -> Config:
    """Return the settings: flags over the preset that --config names over the defaults. Raises UserError;
    --help-all prints and exits 0.

    `tables` are those of the rooms, for --help (tasks.tables). tasks.kind_of tells whether --task is known
    and reads what is set.
    """
    preset, origin = _preset_of(argv)
    before = build(preset, origin=origin)
    words = ["--help" if word == "--help-all" else word for word in argv]
    asked = flags(
        Config,
        words,
        prog="train.py",
        default=before,
        tables=tables,
        answer=help.answer,
    )
    config = build(asked.flat(), origin="flags")
    _check_read(config, before)
    return config


def given(argv: list[str]) -> frozenset[str]:
    """Return the names of the settings that flags or the preset have, of a command line that parses."""
    preset, _ = _preset_of(argv)
    words = [
        *(
            word.partition("=")[0].removeprefix("--")
            for word in argv
            if word.startswith("--")
        ),
        *preset,
    ]
    return frozenset(GROUP_OF.keys() & {str(word).replace("-", "_") for word in words})


def _preset_of(argv: list[str]) -> tuple[dict[str, Any], str]:
    """Return the flat keys of the preset that --config names, and what they are of, for messages."""
    preset: dict[str, Any] = {}
    origin = "defaults"
    for word, following in zip(argv, [*argv, ""][1:], strict=True):
        if (word == "--config" and following) or word.startswith("--config="):
            path = following if word == "--config" else word.partition("=")[2]
            try:
                preset = read_preset(local_path(path))
            except ValueError as error:
                raise UserError(f"--config {error}") from None
            origin = f"--config {path}"
    return preset, origin


def _check_read(config: Config, before: Config) -> None:
    """Raise UserError for a flag that nothing reads. Only what flags changed `before` is looked at: a preset
    may keep what another flag has made idle."""
    chosen = config.flat()
    preset = before.flat()
    for name, facts in FACTS.items():
        if not facts.needs or chosen[name] == preset[name]:
            continue
        other, *values = facts.needs
        if chosen[other] not in (*values, "auto"):
            flag, needs = (word.replace("_", "-") for word in (name, other))
            wanted = " or ".join(values)
            raise UserError(
                f"--{flag} is for --{needs} {wanted}, and this is --{needs} {chosen[other]}"
            )


def recipe(config: Config, arch: str) -> list[str]:
    """Return a line for each preset with published settings of the architecture, or for weights that are
    trained already; [] when one was named."""
    if config.run.config is not None:
        return []
    if config.model.weights is not None and not config.run.uses:
        said = (
            "is for weights that are trained already; these are --help-all's defaults"
        )
        return [f"--config configs/finetune.yaml {said}"]
    key = re.compile(rf"^arch: {re.escape(arch)}\s*(#.*)?$", re.MULTILINE)
    found = (path for path in sorted(PRESETS.glob("*/*.yaml")) if path.stem != "demo")
    own = [
        path.relative_to(PRESETS.parent)
        for path in found
        if key.search(path.read_text(encoding="utf-8"))
    ]
    said = f"has published settings of {arch}; these are --help-all's defaults"
    return [f"--config {path} {said}" for path in own]


def as_yaml(config: Config, *, without: Collection[str] = ("config",)) -> str:
    """Return the configuration as a preset that `--config` reads back to the same Config, but for the
    settings that are left out (`without`)."""
    lines = []
    for group, cls in GROUPS.items():
        values = config.model_dump(mode="json")[group]
        kept = {name: value for name, value in values.items() if name not in without}
        if kept:
            lines.append(f"# {(cls.__doc__ or '').strip()}")
        for name, value in kept.items():
            # JSON would do, but for names beyond the basic plane, which it writes as two halves that YAML
            # does not join
            written = yaml.safe_dump(
                [value], default_flow_style=True, width=float("inf")
            )[1:-2]
            lines.append(f"{name}: {written}")
    return "\n".join(lines) + "\n"
