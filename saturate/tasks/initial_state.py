"""What a run begins from: weights, and to evaluate a checkpoint its settings and classes too."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from saturate.contracts import Pixels, Plan, UserError, counted
from saturate.dataset.model_classes import ModelClasses, plain
from saturate.dataset.open import Console
from saturate.dataset.val_split import Trained
from saturate.models import Native, Registry, Unusable
from saturate.models._weights import dry_run, suiting
from saturate.models.frozen import freeze
from saturate.models.recompute import recompute_blocks
from saturate.plan import draws
from saturate.plan.windows import SUPPORT
from saturate.settings import config as schema
from saturate.settings.config import Config
from saturate.settings.preset import shown
from saturate.system import torch_files
from saturate.tasks.kind import TaskKind

Opened = TypeVar("Opened")
LocalFile = Callable[[str | None], AbstractContextManager[str | None]]
"""Name of a file -> the name under which this rank can read it."""
TAKEN = {
    name
    for name, facts in schema.FACTS_OF.items()
    if facts.evaluation in ("checkpoint", "free")
}
"""Settings that an evaluation takes from a checkpoint."""
OTHER_SIZES = ("image_size_start", "val_image_size")
"""Settings of sizes that a network is not built for."""
FROM_THE_SIZE = ("val_resize", "val_crop_share", "longer_side")
"""Settings that follow from the size of the images where they were not asked for."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """The settings of a run, and the weights that its network begins with."""

    config: Config
    messages: list[
        str
    ]  # lines for the user, in which `network` says what it has chosen
    weights: str | None  # a file, or the name of published weights
    # what an evaluation is of, to begin a message: "--resume runs/a/last.pt"
    origin: str
    # the classes of the checkpoint that is evaluated; () where there is none
    trained: tuple[str, ...]
    # the `checkpoint` that is used, and which weights it is `of`; {}: there is none
    used: Mapping[str, str] = field(default_factory=dict)
    # the same settings without those of the checkpoint's own data; None: it has none
    elsewhere: Config | None = None
    # names of the settings that the user has given
    given: Collection[str] = ()

    @classmethod
    def from_config(
        cls,
        config: Config,
        given: Collection[str],
        checkpoint: Mapping[str, Any],
        *,
        path: Path | None,
        origin: str,
    ) -> Start:
        """Return the start of a run with these settings, of which the user has `given` some.

        To evaluate a `checkpoint`, which was read from `path`, the settings are its own, and what was given
        wins; those of training are left out. Raises UserError.
        """
        weights = config.model.weights
        if not checkpoint:
            config = _without_training(config) if config.run.uses else config
            return cls(
                config=config,
                messages=[],
                weights=weights,
                origin=f"--weights {weights}",
                trained=(),
            )
        asked = config.flat()
        config, messages = _evaluated(checkpoint, config, given, origin)
        of_data = {
            name: asked[name]
            for name, value in config.flat().items()
            if schema.FACTS_OF[name].of_data and value != asked[name]
        }
        elsewhere = schema.build(config.flat() | of_data) if of_data else None
        averaged = torch_files.meant(checkpoint) == torch_files.AVERAGE
        return cls(
            config=config,
            messages=messages,
            weights=str(path),
            origin=origin,
            trained=tuple(checkpoint["classes"]),
            used={"checkpoint": str(path), "of": "average" if averaged else "network"},
            elsewhere=elsewhere,
            given=given,
        )

    def trained_on(self, content: Mapping[str, Any]) -> Trained | None:
        """Return what the content of a checkpoint says of its data, whose --val-share is for them alone where
        the user has not given it. None where there is none."""
        own = bool(self.trained) and "val_share" not in self.given
        return Trained.from_checkpoint(content, own=own) if content else None

    def on_its_data(self, opened: Callable[[Config], Opened]) -> tuple[Start, Opened]:
        """Return what `opened` makes of the settings, and with which it did: of other data than a checkpoint's own
        these are `elsewhere`. Raises UserError."""
        try:
            return self, opened(self.config)
        except UserError as error:
            # without its list the data may still be its own
            if self.elsewhere is None or str(error).startswith("--leave-out"):
                raise
            own = error
        try:
            result = opened(self.elsewhere)
        except UserError as error:
            raise (error if "data" in self.given else own) from None
        before, now = self.config.flat(), self.elsewhere.flat()
        flags = ", ".join(
            f"--{name.replace('_', '-')} {_shown(before[name])}"
            for name in now
            if before[name] != now[name]
        )
        line = f"{self.origin}: left out on --data {now['data']}, which is not what it was trained on: {flags}"
        messages = [*self.messages, f"{line}; give them to have them here, too"]
        return replace(self, config=self.elsewhere, messages=messages), result

    @property
    def of_average(self) -> bool:
        """Whether answers and files are of the checkpoint's average, and not of its network."""
        return self.used.get("of") == "average"

    def weights_message(self, *, resumed: bool) -> str:
        """Return what to say of the weights that training begins with; "" where it goes on, or is meant to begin
        with none."""
        if resumed:
            return ""
        if self.weights:
            return str(self.weights)
        config = self.config
        if config.model.freeze or config.optimisation.layer_decay < 1:
            return "none, and the settings are for trained ones: --weights DEFAULT"
        return ""

    def native(self, registry: Registry, arch: str) -> Native:
        """Return what the architecture was made for, with --image-size, --mean and the like where given.

        Raises UserError.
        """
        native = registry.native(arch, self.config.model.weights)
        asked = self.config.augmentation
        if native.tested and self.config.run.uses and not self.trained:
            size, crop_share = native.tested
            native = native._replace(size=size, crop_share=crop_share)
        interpolation = asked.interpolation or native.interpolation
        if interpolation not in SUPPORT:
            raise UserError(
                f"--arch {arch} was made for {interpolation} interpolation, which is not here; "
                f"--interpolation {', '.join(SUPPORT)}"
            )
        if not asked.val_window and native.window not in ("center", "stretch"):
            raise UserError(
                f"--arch {arch} was made for the validation window '{native.window}', which is not here; "
                "--val-window center, stretch"
            )
        return native._replace(
            interpolation=interpolation,
            size=(asked.val_image_size if self.config.run.uses else None)
            or asked.image_size
            or native.size,
            mean=asked.mean or native.mean,
            std=asked.std or native.std,
        )

    def classes(self, registry: Registry, arch: str) -> ModelClasses | None:
        """Return the classes of a network that is evaluated.

        None to train, and where weights do not name them.
        """
        if self.trained:
            return ModelClasses(names=self.trained, origin=self.origin)
        if not self.config.run.uses or self.weights is None:
            return None
        names = registry.classes(arch, self.weights)
        return (
            ModelClasses(names=names, origin=self.origin, published=True)
            if names
            else None
        )

    def network(
        self,
        registry: Registry,
        arch: str,
        shape: tuple[int, ...],
        heads: Mapping[str, Any],
        console: Console,
        file: LocalFile = nullcontext,
        classes: tuple[str, ...] = (),
    ) -> nn.Module:
        """Build the network for batches of `shape`, with its weights, or with those that the seed draws.

        `heads` is of TaskKind.building; weights are read from what `file` yields. `classes` are those of the
        data to train on. Raises Unusable, and UserError where a part of an evaluation would be random.
        """
        torch.manual_seed(draws.key(self.config.run.seed, draws.Purpose.MODEL))
        model = self.config.model
        backbone = heads.get("weights_backbone")
        with file(self.weights) as weights, file(backbone) as of_backbone:
            if backbone:
                heads = {**heads, "weights_backbone": of_backbone}
            try:
                module, loaded = registry.build(
                    arch, shape=shape, weights=weights, **heads
                )
            except Unusable as error:
                raise Unusable(
                    str(error).replace(f"--weights {weights}", self.origin)
                ) from None
        # --evaluate validates both, the network and its average
        if not (self.config.run.evaluate and self.trained):
            self.messages.extend(
                line.replace(f"--weights {self.weights}", self.origin)
                for line in loaded.notes
            )
        pairs = zip(loaded.classes, classes, strict=False)
        others = (pair for pair in pairs if plain(pair[0]) != plain(pair[1]))
        if other := next(others, None):
            anew = ", ".join(_head_anew(module, registry, arch, shape, heads))
            self.messages.append(
                f"{self.origin}: its head is of other classes, such as '{other[0]}' in the place of '{other[1]}': "
                f"{anew} start anew"
            )
        if not self.config.run.uses:
            self._warn_of_other_pixels(loaded.used, registry, arch, console)
        # detectors take images of any size, but for SSD, whose plan refuses another
        if not self.config.run.uses and "keypoints" not in heads:
            for name in OTHER_SIZES:
                if side := getattr(self.config.augmentation, name):
                    flag = f"--{name.replace('_', '-')} {side}"
                    with suiting(arch, flag, f"{shape[-1]} pixels alone"):
                        dry_run(module, (*shape[:-2], side, side))
        if model.grad_checkpointing and not self.config.run.uses:
            count = recompute_blocks(module, arch)
            self.messages.append(
                f"--grad-checkpointing: the backward pass computes {counted(count, 'block')} again"
            )
        if model.sync_bn and not self.config.run.uses:
            if not torch.cuda.is_available():
                raise UserError(
                    "--sync-bn is for GPUs, and there is none; leave it out"
                )
            module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
        if self.config.run.uses and loaded.anew:
            random = ", ".join(loaded.anew)
            remedy = (
                "give data of the classes that it was trained on, or train on these"
            )
            raise UserError(
                f"{self.origin} is for other classes, {random} would be random; {remedy}"
            )
        if (pattern := self.config.model.freeze) and not self.config.run.uses:
            self.messages.append(freeze(module, pattern))
        evaluates = self.config.run.evaluate and self.weights and "classes" in heads
        if evaluates and self.classes(registry, arch) is None:
            guess = "its outputs are taken as the classes of --data in the order of their names"
            console.warn(f"{self.origin} does not name its classes: {guess}")
        return module

    def _warn_of_other_pixels(
        self,
        used: Mapping[str, Any],
        registry: Registry,
        arch: str,
        console: Console,
    ) -> None:
        """Warn where the checkpoint that weights are of was trained on images that were made otherwise (`used`)."""
        native = self.native(registry, arch)._asdict()
        theirs, ours = [], []
        for name in ("mean", "std", "interpolation"):
            own = native[name]
            values = list(own) if isinstance(own, tuple) else own
            if name in used and used[name] != values:
                theirs.append(f"--{name} {_shown(used[name])}")
                ours.append(f"{name} {_shown(values)}")
        if theirs:
            console.warn(
                f"{self.origin}: its images were made otherwise than this run's, which have {', '.join(ours)}; "
                f"{' '.join(theirs)} has them here, too"
            )

    def kept(
        self, kind: TaskKind, plan: Plan, pixels: Pixels, *, size: int
    ) -> dict[str, Any]:
        """Return what a checkpoint keeps of the settings.

        `config` is what was asked for, `used` what came of it. `plan` is that of validation, whose images are
        those of `used`.
        """
        used = {"task": kind.name, "image_size": size, **kind.used(plan)}
        used |= {
            "mean": list(pixels.mean),
            "std": list(pixels.std),
            "interpolation": pixels.interpolation,
        }
        used = {name: value for name, value in used.items() if kind.reads(name)}
        return {"config": self.config.flat(), "used": used}


def _head_anew(
    module: nn.Module,
    registry: Registry,
    arch: str,
    shape: tuple[int, ...],
    heads: Mapping[str, Any],
) -> list[str]:
    """Give the parameters whose shapes follow the number of classes new values, and return their names."""
    if "weights_backbone" in heads:
        heads = {**heads, "weights_backbone": None}
    drawn, of_more = (
        registry.build(arch, shape=shape, weights=None, **{**heads, "classes": number})[
            0
        ].state_dict()
        for number in (heads["classes"], heads["classes"] + 1)
    )
    anew = {
        name: value
        for name, value in drawn.items()
        if value.shape != of_more[name].shape
    }
    module.load_state_dict(anew, strict=False)
    return [*anew]


def _evaluated(
    content: Mapping[str, Any], config: Config, given: Collection[str], origin: str
) -> tuple[Config, list[str]]:
    """Return the settings of an evaluation, and a line for each that is not the checkpoint's."""
    asked = {
        name: value
        for name, value in content["config"].items()
        if name in schema.GROUP_OF
    }
    used = {
        name: value for name, value in content.get("used", {}).items() if name in TAKEN
    }
    chosen = config.flat()
    messages = []
    precision = asked.get("precision", "auto")
    trained = {**asked, **used, "arch": content["arch"], "precision": precision}
    for name in ("task", "arch"):
        if name in given and chosen[name] != trained.get(name, chosen[name]):
            both = f"{trained[name]} in the checkpoint, and --{name} {chosen[name]} was given"
            raise UserError(f"{origin}: --{name} is {both}; leave it out")
    if ":" in trained["arch"] and "arch" not in given:
        function = shown(trained["arch"])
        raise UserError(
            f"{origin}: its network is built by a function, {function}, and no file of weights has code run: "
            "give it as --arch where it is yours"
        )
    size = trained.get("image_size")  # where `used` has it, that of validation
    trained["val_image_size"] = size if "val_image_size" in given else None
    if "val_resize" in used:
        trained["val_crop_share"] = None  # which it came of
    if any(
        name in given and chosen[name] != size
        for name in ("image_size", "val_image_size")
    ):
        trained |= {name: asked.get(name) for name in FROM_THE_SIZE}
    for name, other in (
        ("val_resize", "val_crop_share"),
        ("val_crop_share", "val_resize"),
    ):
        if name in given:
            trained[other] = None
    for name in sorted(given):
        if schema.FACTS_OF[name].evaluation != "checkpoint" or chosen[
            name
        ] == trained.get(name, chosen[name]):
            continue
        here = f"--{name.replace('_', '-')} {_shown(chosen[name])}"
        messages.append(
            f"{origin}: {here} differs from the checkpoint's {_shown(trained[name])}"
        )
    taken = {
        name: value for name, value in trained.items() if name in TAKEN or name in used
    }
    flat = {**chosen, **taken, **{name: chosen[name] for name in given}}
    return _without_training(schema.build(flat, origin=origin)), messages


def _without_training(config: Config) -> Config:
    defaults = Config().flat()
    return schema.build(
        config.flat()
        | {
            name: defaults[name]
            for name, facts in schema.FACTS_OF.items()
            if facts.evaluation == "unused"
        }
    )


def _shown(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "default" if value is None else str(value)
