"""Saving the last whole step of a run when the ranks cannot meet any more, or a step can not be finished.

The main thread may be in the middle of a step then, for good: it may wait for another rank, or for a batch.
Weights and the optimiser's state are those of the last whole step until the optimiser moves them; running
statistics of batch norm move in each forward pass, so a step begins with a copy of them.

    eager        the optimiser's pre-hook holds the lock that `save` takes, until the step is done
    CUDA graphs  no hook is called in a replay: the lock is held from a step's last batch until it is launched
    on a GPU     what is launched may still run: the event of each step tells what the device has done, and
                 nothing that was copied while one came is kept
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from contracts import UserError
from engine import checkpoint, ema
from engine.checkpoint import Checkpoints, Progress
from engine.distributed import ProcessWorld

AHEAD = 4
"""Steps by which the host may be ahead of the device, at most."""
TRIES = AHEAD + 1
SETTLES_S = 0.5
"""Seconds in which a device ends the update that it is in; one that hangs is in no update."""
HELD_S = 10.0
"""Seconds for which the main thread holds the weights at most, unless it hangs there."""


class EmergencySave:
    """The last whole step of this rank: kept where a step may be left in its middle, and saved by rank 0."""

    def __init__(
        self, checkpoints: Checkpoints, world: ProcessWorld, *, accumulate: int
    ) -> None:
        self._checkpoints = checkpoints
        self._world = world
        # a single rank without --accumulate cannot block in mid-step: no copy of the buffers is needed
        self._keeps = world.rank == 0 and (world.size > 1 or accumulate > 1)
        self._buffers = [*checkpoints.module.buffers()] if self._keeps else []
        self._kept = [buffer.detach().clone() for buffer in self._buffers]
        self._whole: deque[tuple[Progress, Any]] = deque(maxlen=AHEAD)
        self._in_step = False
        # the main thread holds it while it moves the weights, or launches that
        self._moving = threading.RLock()
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

    def hold_launch(self) -> None:
        """Let no `save` begin until a step is done that has its last batch, and is replayed next.

        Not in `begin`: the main thread may wait for a batch for ever, and `save` has to work then.
        """
        if self._keeps and self._checkpoints.step.graphs is not None:
            self._hold()

    def done(self, progress: Progress) -> None:
        """Count a step that is whole: `progress` is behind it."""
        if not self._keeps:
            return
        # the lock is taken here too: of a step that overflowed the optimiser, and so its hook, is not called
        with self._moving:
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

    def save(self, *, best: float) -> bool:
        """Write last.pt of the last whole step, without the other ranks, from any thread.

        `best` is the figure of best.pt by now. Returns whether it did. The step that is under way never ends:
        the process has to.
        """
        # the main thread that still holds it then waits for ever
        if not self._moving.acquire(timeout=HELD_S):
            return False
        settles_s = SETTLES_S if self._world.device.type == "cuda" else 0.0
        # the main thread writes its checkpoint to the end first
        with self._checkpoints.writing:
            for _ in range(TRIES):
                time.sleep(settles_s)
                at = self._last()
                if at is None:
                    return False
                content = self._content(at, best)
                time.sleep(settles_s)
                if self._last() == at:
                    return self._write(content)
        return False

    def _hold(self) -> None:
        if self._in_step and not self._held:  # and no ceiling is being measured
            self._moving.acquire()
            self._held = True

    def _last(self) -> Progress | None:
        """Return where the run is with what the device has done by now."""
        for progress, event in reversed(self._whole.copy()):
            if event is None or event.query():
                return progress
        return None

    def _content(self, progress: Progress, best: float) -> dict[str, Any]:
        """Return what a checkpoint holds, on the host; copied beside what the device hangs in."""
        side: AbstractContextManager[object] = nullcontext()
        if self._world.device.type == "cuda":
            side = torch.cuda.stream(torch.cuda.Stream(self._world.device))
        with side:
            content = self._checkpoints.content(replace(progress, best=best))
            # the host may be past a step that the device hangs in: its forward pass has moved the buffers,
            # and the copy that the next `begin` has asked for waits behind it
            newest = [each for each, _ in self._whole.copy()][-1:]
            if self._in_step or newest != [progress]:
                before = dict(zip(map(id, self._buffers), self._kept, strict=True))
                average = self._checkpoints.step.ema
                # an average moves with the weights, and not in a forward pass
                averaged = average.names if average is not None else []
                for name, buffer in self._checkpoints.module.named_buffers():
                    if name in content["model"]:
                        content["model"][name] = before[id(buffer)]
                    if (
                        ema.PREFIX + name in content.get("ema", ())
                        and name not in averaged
                    ):
                        content["ema"][ema.PREFIX + name] = before[id(buffer)]
            copied: dict[str, Any] = checkpoint.on_host(content)
        return copied

    def _write(self, content: dict[str, Any]) -> bool:
        values = [
            each for each in content["model"].values() if each.is_floating_point()
        ]
        if not all(bool(torch.isfinite(each).all()) for each in values):
            return False  # nobody has looked at the losses of the last steps yet
        try:
            checkpoint.write(self._checkpoints.folder / "last.pt", content)
        except UserError:
            return False  # the earlier one is there still
        return True
