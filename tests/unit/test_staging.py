"""Memory on the way to the device: many arrays in one copy, and what only grows."""

from __future__ import annotations

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from saturate.loaders._memory import (
    ALIGNED,
    fitted,
    pack,
    packed_bytes,
    too_small,
    unpacked,
)

DTYPES = [torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64]
SHAPES = st.lists(st.integers(0, 5), min_size=1, max_size=3)


@given(st.lists(st.tuples(SHAPES, st.sampled_from(DTYPES)), max_size=6))
@example(
    [([0, 4], torch.float32), ([3], torch.bool), ([2], torch.int64), ([0], torch.int64)]
)
def test_what_is_packed_is_what_comes_out(
    asked: list[tuple[list[int], torch.dtype]],
) -> None:
    tensors = [torch.ones(shape).cumsum(0).to(dtype) for shape, dtype in asked]
    memory = torch.full((packed_bytes(tensors),), 255, dtype=torch.uint8)
    pack(memory.numpy(), [tensor.numpy() for tensor in tensors])
    found = unpacked(memory, tensors)
    assert all(map(torch.equal, found, tensors)) and len(found) == len(tensors)
    assert len(memory) % ALIGNED == 0
    assert len(memory) <= sum(tensor.nbytes + ALIGNED - 1 for tensor in tensors)


SIDES = st.integers(1, 9)


@given(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=6))
def test_memory_only_grows(shapes: list[tuple[int, int]]) -> None:
    memory: torch.Tensor | None = None
    most = 0
    for shape in shapes:
        before, grows = memory, too_small(memory, shape)
        memory = fitted(memory, shape, dtype=torch.float16)
        assert memory.shape == shape
        assert memory.is_contiguous()
        assert grows == (shape[0] * shape[1] > most)
        assert grows or (before is not None and memory.data_ptr() == before.data_ptr())
        most = max(most, shape[0] * shape[1])
        memory.fill_(1)
