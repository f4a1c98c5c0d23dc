"""Distillation: a student that also learns what a frozen teacher says of each image (Hinton et al., 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from saturate.contracts import Batch, Task, UserError, counted
from saturate.models import Native, Unusable
from saturate.models._weights import dry_run, suiting
from saturate.system import torch_files
from saturate.tasks import architecture
from saturate.tasks.kind import TaskKind


class Distilled:
    """contracts.Task of classes whose loss is (1 - share) x the task's own + share x the distance from a teacher.

    The distance of a sample is temperature² x KL(teacher || student), of the softmax of logits / temperature.
    The teacher sees what the student sees: cropped, augmented and mixed.
    """

    def __init__(
        self, task: Task, teacher: nn.Module, share: float, temperature: float
    ) -> None:
        self._task = task
        self.targets = task.targets
        self.inputs = task.inputs
        self.shown = task.shown
        self.parts = task.parts
        self.metric = task.metric
        self._teacher = teacher
        self._share = share
        self._temperature = temperature

    def losses(
        self, outputs: torch.Tensor | Sequence[torch.Tensor], batch: Batch
    ) -> torch.Tensor:
        """Return fp32 [B], 0 where a row is not valid. Of (logits, auxiliary logits, ...) the first are compared."""
        logits = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
        with torch.no_grad():
            wanted = self._teacher(*self._task.inputs(batch))
        distances = functional.kl_div(
            functional.log_softmax(logits.float() / self._temperature, dim=1),
            functional.log_softmax(wanted.float() / self._temperature, dim=1),
            reduction="none",
            log_target=True,
        ).sum(dim=1)
        scaled = torch.where(batch.valid, distances, 0) * self._temperature**2
        # of --balance loss, and in the own part already
        scaled = scaled * batch.targets.get("weights", 1)
        own = self._task.losses(outputs, batch)
        return (1 - self._share) * own + self._share * scaled


def read_teacher(
    path: str,
    kind: TaskKind,
    native: Native,
    classes: Sequence[str],
    shape: tuple[int, ...],
    start: int | None = None,
) -> nn.Module:
    """Return the network of a checkpoint of ours, frozen and as in a validation, for batches of `shape`.

    `start` is --image-size-start. Raises UserError where it is none, or is of other classes or of images that
    were normalised otherwise, and models.Unusable where its weights, or the sizes, do not fit.
    """
    flag = f"--teacher {path}"
    if not Path(path).is_file():
        raise UserError(f"{flag}: is no file; name best.pt of a run")
    try:
        content = torch_files.load(Path(path))
    except torch_files.Unreadable as error:
        raise UserError(f"{flag}: {error}") from None
    if not torch_files.is_ours(content):
        raise UserError(f"{flag}: is no checkpoint of a run here; name its best.pt")
    if ":" in content["arch"]:
        raise UserError(
            f"{flag}: its network is built by a function, and no file of weights has code run"
        )
    theirs = content["classes"]
    if list(theirs) != list(classes):
        differs = [
            f"'{their}' where --data has '{our}'"
            for their, our in zip(theirs, classes, strict=False)
            if their != our
        ]
        example = f": {differs[0]}" if differs else ""
        raise UserError(
            f"{flag}: it was trained on {counted(len(theirs), 'class')}, and not on the {len(classes)} of "
            f"--data{example}"
        )
    for name in ("mean", "std"):
        seen = content.get("used", {}).get(name)
        if seen and tuple(seen) != tuple(getattr(native, name)):
            words = " ".join(map(str, seen))
            raise UserError(
                f"{flag}: its images had another --{name}; give --{name} {words}"
            )
    try:
        registry, arch = architecture(kind, content["arch"], flag)
        network, _ = registry.build(
            arch, classes=len(classes), shape=shape, weights=path
        )
        if start:
            got = f"--image-size-start {start}"
            with suiting(arch, got, f"{shape[-1]} pixels alone"):
                dry_run(network, (*shape[:-2], start, start))
    except Unusable as error:
        raise Unusable(f"{flag}: {error}".replace(f"--weights {path}", "it")) from None
    return network.requires_grad_(False).eval()
