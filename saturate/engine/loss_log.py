"""Outcomes of the last steps, read from the device together and a little late, so that reading does not hold
it up.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import numpy as np
import torch

from saturate.contracts import NotFinite
from saturate.engine.distributed import ProcessWorld
from saturate.engine.precision import remedy


class LossLog:
    """A ring of the last steps' outcomes on the device, and their ids on the host, read together every few
    steps.

    In mid-flight the last two steps are left for the next time: the device may not have finished them, and a
    host that waits for it would have nothing ready for the device to do next.
    """

    LEFT = 2
    """Steps that a read in mid-flight leaves."""

    def __init__(self, size: int, world: ProcessWorld, *, precision: str) -> None:
        cuda = world.device.type == "cuda"
        self._size = size + self.LEFT
        self._ring = torch.zeros(2 * self._size, 0, device=world.device)
        self._slots = self._ring.unbind()
        # number, ids of its batches, what tells that it is done, learning rate
        self._steps: list[tuple[int, list[np.ndarray], Any, float]] = []
        # events of steps that were read: a long run would make millions
        self._spare: list[torch.cuda.Event] = []
        self._begin = 0  # slot of the first unread step in the ring
        self._loss_terms: tuple[str, ...] = ()
        self.failed = 0
        self._world = world
        self._remedy = remedy(precision)
        # the stream of the steps
        self._stream = torch.cuda.current_stream(world.device) if cuda else None
        # a read copies on this one, so that it does not wait for the steps after it
        self._side = torch.cuda.Stream(world.device) if cuda else None

    def add(
        self,
        step: int,
        outcome: torch.Tensor,
        ids: list[np.ndarray],
        loss_terms: tuple[str, ...] = (),
        lr: float = 0.0,
    ) -> None:
        """Keep an `outcome` as Step returns it; `loss_terms` names what it has behind the first four. `lr` is
        the learning rate of that step.
        """
        self._loss_terms = loss_terms
        # the first one says how many terms there are
        if self._slots[0].shape != outcome.shape:
            self._ring = outcome.new_zeros(len(self._slots), len(outcome))
            self._slots = self._ring.unbind()
        self._slots[(self._begin + len(self._steps)) % len(self._slots)].copy_(outcome)
        done = None
        if self._stream is not None:
            done = self._spare.pop() if self._spare else torch.cuda.Event()
            done.record(self._stream)
        self._steps.append((step, ids, done, lr))

    def full(self) -> bool:
        """Whether it must be read before the next step is added."""
        return len(self._steps) >= self._size

    def read(
        self, *, everything: bool = True, failed: int = 0
    ) -> list[dict[str, float]]:
        """Return one dict a step since the last read: step, lr, loss, grad_norm, loss_scale, and the terms of
        the loss by name. `failed` is a count of this rank, which `self.failed` sums over all of them.

        The loss and its terms are means over the valid samples of all ranks, nan in a step without one. All
        ranks call it together. Raises NotFinite, on every rank, naming the first step whose loss is not
        finite, and that rank's samples.
        """
        count = len(self._steps) if everything else max(len(self._steps) - self.LEFT, 0)
        if count == 0:
            return []
        steps = self._steps[:count]
        self._steps = self._steps[count:]
        rows = self._to_host(count, steps[-1][2])
        self._spare += [done for _, _, done, _ in steps if done is not None]
        self._begin = (self._begin + count) % len(self._slots)
        # norm and scale are the same on every rank, the other columns are sums over its samples
        own = np.delete(rows, (2, 3), axis=1)
        # one collective: each is a ring over all ranks, which costs 0.1 s of 1,024
        summed = self._world.sum(np.append(own, float(failed)))
        sums = summed[:-1].reshape(own.shape)
        self.failed = int(summed[-1])
        if not np.isfinite(sums[:, 0]).all():
            self._raise_not_finite(steps, rows)
        # a step may have no valid sample
        with np.errstate(invalid="ignore", divide="ignore"):
            means = np.delete(sums, 1, axis=1) / sums[:, 1:2]
        names = ("loss", *self._loss_terms)
        return [
            {
                "step": step,
                "lr": lr,
                "grad_norm": row[2],
                "loss_scale": row[3],
                **dict(zip(names, mean, strict=True)),
            }
            for (step, _, _, lr), row, mean in zip(steps, rows, means, strict=True)
        ]

    def _raise_not_finite(self, steps: list[Any], rows: np.ndarray) -> None:
        """Raise NotFinite for the first step of all ranks whose loss is not finite."""
        bad = [
            (step, row[0], np.concatenate(ids)[:16].tolist())
            for (step, ids, _, _), row in zip(steps, rows, strict=True)
            if not np.isfinite(row[0])
        ]
        everyones = [
            each for of_rank in self._world.gather(bad[:1]) for each in of_rank
        ]
        step, value, ids = min(everyones, key=itemgetter(0))
        problem = f"the loss is {value} at step {step}; samples {ids}"
        raise NotFinite(f"{problem}; nothing was saved after it. {self._remedy}")

    def _to_host(self, count: int, last: torch.cuda.Event | None) -> np.ndarray:
        """Return float64 [count, 4 + P], as Step returns them; wait for the last of these steps and for
        nothing after it.
        """
        slots = (self._begin + np.arange(count)) % len(self._slots)
        if self._side is None or last is None:
            return self._ring[slots].double().numpy()
        with torch.cuda.stream(self._side):
            self._side.wait_event(last)
            return self._ring.cpu()[slots].double().numpy()
