"""The message for a batch that does not fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from saturate.contracts import UserError

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Number of a batch's axes -> memory format."""
GOT_NONE = {
    "can't allocate memory": "the machine has not enough memory",
    "could not create a primitive": "oneDNN got no memory",
    "_ALLOC_FAILED": "a CUDA library got no memory",
    "CUDA error: out of memory": "the GPU has no memory left",
    "bytes on device": "DALI got no memory",
    "CUDA allocation failed": "DALI got no memory",
    "DALI ran out": "DALI got no memory",
}
"""Words in an error's text -> the reason that the user is told."""


@contextmanager
def explained(batch_size: int) -> Iterator[None]:
    """Turn running out of memory in training into a UserError that names the batch size."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if (reason := lack(error)) is None:
            raise
        remedy = "a smaller one, with --accumulate to keep the step's size"
        raise UserError(
            f"--batch-size {batch_size} does not fit ({reason}): {remedy}"
        ) from None


@contextmanager
def validating(batch_size: int) -> Iterator[None]:
    """Turn running out of memory in a validation into a UserError that names its batch size."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if (reason := lack(error)) is None:
            raise
        remedy = "a smaller --val-batch-size needs less"
        raise UserError(
            f"a validation batch of {batch_size} does not fit ({reason}): {remedy}"
        ) from None


def lack(error: BaseException) -> str | None:
    """Say which memory ran out; None where the error is about something else."""
    if isinstance(error, torch.OutOfMemoryError):
        return str(error).split(".")[0]
    for sign, reason in GOT_NONE.items():
        if sign in str(error):
            return reason
    # Python's and NumPy's own
    return (
        "the machine has not enough memory" if isinstance(error, MemoryError) else None
    )
