"""Memory on the way to the device: many small arrays in one copy, buffers that only grow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from saturate.contracts import Array

ALIGNED = 16  # bytes: numbers of every dtype may begin there


def to_device(values: Sequence[Array], device: torch.device) -> list[torch.Tensor]:
    """Return host numbers on the device, by one copy; on the CPU they stay where they are.

    A GPU's current stream waits for the copy, and the host does not.
    """
    arrays = [np.ascontiguousarray(value) for value in values]
    tensors = [torch.from_numpy(array) for array in arrays]
    if device.type != "cuda":
        return tensors
    host = torch.empty(packed_bytes(tensors), dtype=torch.uint8, pin_memory=True)
    pack(host.numpy(), arrays)
    return unpacked(host.to(device, non_blocking=True), tensors)


def _begins(like: Sequence[torch.Tensor]) -> list[int]:
    """Return where tensors behind each other begin, multiples of ALIGNED, and where the last one ends."""
    room = (-(-tensor.nbytes // ALIGNED) * ALIGNED for tensor in like)
    return list(accumulate(room, initial=0))


def packed_bytes(like: Sequence[torch.Tensor]) -> int:
    """Return how many bytes tensors behind each other take."""
    return _begins(like)[-1]


def pack(memory: Array, arrays: Sequence[Array]) -> None:
    """Write contiguous arrays into `memory`, uint8 [packed_bytes]; torch would take five times as long."""
    begin = 0
    for array in arrays:
        memory[begin : begin + array.nbytes] = array.reshape(-1).view(np.uint8)
        begin += -(-array.nbytes // ALIGNED) * ALIGNED


def unpacked(memory: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return `memory`, uint8 [packed_bytes], as tensors of these shapes and dtypes."""
    return [
        memory[begin : begin + one.nbytes].view(one.dtype).view(one.shape)
        for begin, one in zip(_begins(like), like, strict=False)
    ]


def too_small(memory: torch.Tensor | None, shape: Sequence[int]) -> bool:
    """Whether the storage behind a tensor cannot hold that shape."""
    if memory is None:
        return True
    needed = math.prod(shape) * memory.element_size()
    return memory.untyped_storage().nbytes() < needed


def fitted(
    memory: torch.Tensor | None, shape: Sequence[int], **options: Any
) -> torch.Tensor:
    """Return a tensor's storage at that shape; where it is too small, new memory with these options."""
    if memory is None or too_small(memory, shape):
        return torch.empty(tuple(shape), **options)
    # all of the storage: the tensor may be a smaller view of it
    return memory.as_strided((math.prod(shape),), (1,), 0).view(tuple(shape))
