"""Outcomes of the last steps, read from the device together and a little late, so that reading does not hold it up."""

from __future__ import annotations

import numpy as np
import torch

from contracts import NotFinite
from engine.distributed import ProcessWorld


class Recent:
    """Device ring of the last steps' outcomes and host ring of their ids, read together every few steps.

    In mid-flight the last two steps are left for the next time: the device may not have finished them, and a host that waits
    for it would have nothing ready for the device to do next.
    """

    LEFT = 2

    def __init__(self, size: int, world: ProcessWorld) -> None:
        cuda = world.device.type == "cuda"
        self._size = size + self.LEFT
        self._ring = torch.zeros(2 * self._size, 0, device=world.device)
        self._steps: list[tuple[int, np.ndarray, torch.cuda.Event | None]] = []
        self._begin = 0  # place of the first unread step in the ring
        self._parts: tuple[str, ...] = ()
        self._world = world
        self._stream = torch.cuda.current_stream(world.device) if cuda else None  # of the steps
        self._side = torch.cuda.Stream(world.device) if cuda else None

    def add(self, step: int, outcome: torch.Tensor, ids: list[np.ndarray], parts: tuple[str, ...] = ()) -> None:
        """`outcome` as Step returns it; `parts` names what it has beside the first four."""
        self._parts = parts
        if self._ring.shape[1] != len(outcome):  # the first
            self._ring = outcome.new_zeros(len(self._ring), len(outcome))
        self._ring[(self._begin + len(self._steps)) % len(self._ring)] = outcome
        self._steps.append((step, np.concatenate(ids), self._stream.record_event() if self._stream else None))

    def full(self) -> bool:
        return len(self._steps) >= self._size

    def read(self, *, everything: bool = True) -> list[dict[str, float]]:
        """One dict a step since the last read: step, loss (mean over all ranks), grad_norm, loss_scale, and the parts of the loss by
        name. All ranks call it together.

        The loss of a step without a valid sample is nan.
        Raises NotFinite, on every rank, naming the first step whose loss is not finite, and that rank's samples.
        """
        count = len(self._steps) if everything else max(len(self._steps) - self.LEFT, 0)
        if count == 0:
            return []
        steps, self._steps = self._steps[:count], self._steps[count:]
        own = self._to_host(count, steps[-1][2])
        self._begin = (self._begin + count) % len(self._ring)
        bad = next((i for i in range(count) if not np.isfinite(own[i, 0])), None)
        told = None if bad is None else (steps[bad][0], own[bad, 0], steps[bad][1][:16].tolist())
        first = min((t for t in self._world.gather(told) if t is not None), key=lambda t: t[0], default=None)
        if first is not None:
            step, value, ids = first
            raise NotFinite(
                f"the loss is {value} at step {step}; samples {ids}; nothing was saved after it. A lower --lr or --precision fp32/bf16?"
            )
        total, valid, *of_parts = self._world.sum(np.delete(own, (2, 3), axis=1)).T
        with np.errstate(invalid="ignore", divide="ignore"):  # a step without a valid sample
            means = {name: sums / valid for name, sums in zip(("loss", *self._parts), (total, *of_parts), strict=True)}
        columns = {"step": [step for step, _, _ in steps], "grad_norm": own[:, 2], "loss_scale": own[:, 3], **means}
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def _to_host(self, count: int, last: torch.cuda.Event | None) -> np.ndarray:
        """float64 [count, 4 + P], as Step returns them; waits for the last of these steps and for nothing after it."""
        places = (self._begin + np.arange(count)) % len(self._ring)
        if self._side is None or last is None:
            return self._ring[places].double().numpy()
        with torch.cuda.stream(self._side):
            self._side.wait_event(last)
            return self._ring.cpu()[places].double().numpy()
