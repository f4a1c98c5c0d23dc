"""Saving the last whole step of a run when the ranks cannot meet any more, or a step can not be finished.

The main thread may be in the middle of a step then, for good: it may wait for another rank, or for a batch.
Weights and the optimiser's state are those of the last whole step until the optimiser moves them; running
statistics of batch norm move in each forward pass, so a step begins with a copy of them.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from contracts import UserError
from engine import checkpoint
from engine.checkpoint import Checkpoints, Progress
from engine.distributed import ProcessWorld

AHEAD = 4
"""Steps by which the host may be ahead of the device, at most."""
TRIES = 3


class Rescue:
    """The last whole step of this rank: kept where a step may be left in its middle, and saved by rank 0."""

    def __init__(self, checkpoints: Checkpoints, world: ProcessWorld, *, accumulate: int) -> None:
        self._checkpoints = checkpoints
        self._world = world
        # with one batch a step, and alone, a step waits for nothing once it has moved a buffer
        self._keeps = world.rank == 0 and (world.size > 1 or accumulate > 1)
        self._buffers = [*checkpoints.module.buffers()] if self._keeps else []
        self._kept = [buffer.detach().clone() for buffer in self._buffers]
        self._whole: deque[tuple[Progress, Any]] = deque(maxlen=AHEAD)
        self._in_step = False
        self._moving = threading.RLock()  # held while the optimiser moves the weights
        self._held = False
        if self._keeps:
            checkpoints.step.optimizer.register_step_pre_hook(lambda *_: self._hold())

    def begin(self, progress: Progress) -> None:
        """Remember what a step changes before it knows that it can be finished. `progress` is before it."""
        if not self._keeps:
            return
        if not self._whole:
            self._whole.append((replace(progress), None))
        if self._buffers:
            torch._foreach_copy_(self._kept, self._buffers)
        self._in_step = True

    def done(self, progress: Progress) -> None:
        """Count a step that is whole: `progress` is behind it."""
        if not self._keeps:
            return
        self._in_step = False
        event = None
        if self._world.device.type == "cuda":
            event = torch.cuda.Event()
            event.record()
        self._whole.append((replace(progress), event))
        if self._held:
            self._held = False
            self._moving.release()

    def end(self) -> None:
        """Forget the steps: what is trained was saved, or something else moves the weights."""
        self._whole.clear()

    def undo(self) -> None:
        """Take back what a step has changed of the network that cannot be finished; for who was in it."""
        if self._in_step and self._buffers:
            torch._foreach_copy_(self._buffers, self._kept)
        self._in_step = False

    def save(self) -> bool:
        """Write last.pt of the last whole step, without the other ranks, from any thread.

        Returns whether it did. The step that is under way never ends: the process has to.
        """
        self._moving.acquire()  # for good: the optimiser waits for ever
        with self._checkpoints.writing:  # what the main thread is writing it writes to its end
            for _ in range(TRIES):
                at = self._last()
                if at is None:
                    return False
                content = self._content(at)
                if self._last() == at:
                    return self._write(content)
        return False

    def _hold(self) -> None:
        if self._in_step:  # and no ceiling is being measured
            self._moving.acquire()
            self._held = True

    def _last(self) -> Progress | None:
        """Return where the run is with what the device has done by now."""
        done = [progress for progress, event in list(self._whole) if event is None or event.query()]
        return done[-1] if done else None

    def _content(self, progress: Progress) -> dict[str, Any]:
        """Return what a checkpoint holds, on the host; copied beside what the device hangs in."""
        cuda = self._world.device.type == "cuda"
        with torch.cuda.stream(torch.cuda.Stream(self._world.device)) if cuda else nullcontext():
            content = self._checkpoints.content(progress)
            if self._in_step:
                names = {id(buffer): at for at, buffer in enumerate(self._buffers)}
                live = dict(self._checkpoints.module.named_buffers())
                content["model"] = {
                    name: self._kept[names[id(live[name])]] if name in live else value
                    for name, value in content["model"].items()
                }
            copied: dict[str, Any] = checkpoint.on_host(content)
        return copied

    def _write(self, content: dict[str, Any]) -> bool:
        values = [each for each in content["model"].values() if each.is_floating_point()]
        if not all(bool(torch.isfinite(each).all()) for each in values):
            return False  # nobody has looked at the losses of the last steps yet
        try:
            checkpoint.write(self._checkpoints.folder / "last.pt", content)
        except UserError:
            return False  # the earlier one is there still
        return True
