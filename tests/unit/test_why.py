"""What `saturate why` sees in a program: samples of a batch, and a batch that the loop has changed."""

from typing import Any

import pytest
import torch

from saturate.why import phases

t = torch.zeros
BATCHES: dict[str, tuple[Any, int]] = {
    "a tuple": ((t(8, 3, 4, 4), t(8)), 8),
    "labels first": ([t(9), t(9, 10)], 9),
    "a list of images": ([t(3, 4, 4)] * 5, 5),
    "torchvision's of detection": (([t(3, 4, 5)] * 5, [{"boxes": t(2, 4)}] * 5), 5),
    "Detectron2's": ([{"file": "a", "image": t(3, 4, 4)}] * 6, 6),
    "DALI's": ([{"data": t(7, 3, 5, 5), "label": t(7, 1)}], 7),
    "DALI's, grey": ([{"data": t(7, 5, 5), "mask": t(7, 5, 5)}], 7),
    "tokens": ({"input_ids": t(4, 9), "labels": t(4)}, 4),
    "names beside": ((["a", "b"], t(2, 3)), 2),
    "no tensor": ("x", 0),
    "numbers": ([1, 2, 3], 0),
}


@pytest.mark.parametrize("batch", BATCHES)
def test_samples_of_a_batch(batch: str) -> None:
    content, count = BATCHES[batch]
    assert phases.samples_of(content) == count


def changed_in_place(batch: dict[str, Any]) -> None:
    batch["x"].mul_(2)


def replaced(batch: dict[str, Any]) -> None:
    batch["x"] = batch["x"] * 2


def emptied(batch: dict[str, Any]) -> None:
    batch.pop("x")


@pytest.mark.parametrize("change", [changed_in_place, replaced, emptied])
def test_a_batch_comes_again_as_it_was(change: Any) -> None:
    kept = phases.Kept({"x": torch.ones(2, 3), "names": ["a", "b"]})
    for _ in range(3):
        batch = kept.again()
        assert float(batch["x"].sum()) == 6 and batch["names"] == ["a", "b"]
        change(batch)


def test_a_batch_that_cannot_be_copied_comes_again() -> None:
    import threading

    batch = {"x": torch.ones(2), "lock": threading.Lock()}
    assert phases.Kept(batch).again() is batch
