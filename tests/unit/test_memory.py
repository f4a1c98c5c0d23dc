"""What is said of a batch that does not fit."""

from __future__ import annotations

import pytest
import torch

from saturate.contracts import UserError
from saturate.engine import memory


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"),
        MemoryError("Unable to allocate 9 MiB"),
    ],
)
def test_a_batch_that_does_not_fit_is_named(error: Exception) -> None:
    with (
        pytest.raises(UserError, match=r"--batch-size 64 does not fit \(.*memory\)"),
        memory.explained(64),
    ):
        raise error
    with (
        pytest.raises(UserError, match="a validation batch of 64 does not fit"),
        memory.validating(64),
    ):
        raise error


def test_another_error_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="shape"), memory.explained(64):
        raise RuntimeError("shape")
