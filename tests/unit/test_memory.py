"""What is said of a batch that does not fit."""

from __future__ import annotations

import weakref
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from contracts import UserError
from engine import memory
from engine.distributed import ProcessWorld

NO_STEP: Any = None


class Activations:
    """Stands for the tensors of a step."""


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"),
        RuntimeError("[enforce fail] can't allocate memory: you"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"),
        RuntimeError("Can't allocate 7 bytes on device 0."),
        MemoryError("CUDA allocation failed"),
        MemoryError("Unable to allocate 9 MiB"),
    ],
)
def test_the_failed_step_is_forgotten_first(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[weakref.ref[Activations]] = []

    def step() -> None:
        activations = Activations()
        held.append(weakref.ref(activations))
        raise error

    taken = MagicMock()

    def largest_fit(*_: Any) -> int:
        assert held[0]() is None
        taken.forget.assert_called_once_with()  # its gradients, and a graph's memory
        return 48

    monkeypatch.setattr(memory, "largest_fit", largest_fit)
    with (
        pytest.raises(
            UserError,
            match=r"--batch-size 64 does not fit \(.*memory\); --batch-size 48 fits, with --accumulate",
        ),
        memory.explained(taken, 64, (3, 32, 32), ProcessWorld(torch.device("cpu"))),
    ):
        step()


@pytest.mark.parametrize(
    "said", ["Caught ValueError in DataLoader worker process 0.\nTraceback", "shape"]
)
def test_another_error_stays_what_it_is(said: str) -> None:
    with (
        pytest.raises(RuntimeError, match=said),
        memory.explained(NO_STEP, 64, (3, 32, 32), ProcessWorld(torch.device("cpu"))),
    ):
        raise RuntimeError(said)
