"""Super-resolution on a GPU: batches of pairs, and the kernel that finishes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from saturate.contracts import Pixels
from saturate.loaders import _postprocess, open_loader
from saturate.plan.patches import HIGH
from tests.gpu.test_rcnn import no_waits
from tests.unit import test_finish_kernel
from tests.unit.superres_files import feed_of, opened, write

PLAIN: dict[str, Any] = {"mean": (0.0,) * 3, "std": (1.0,) * 3}


def test_batches_are_those_of_the_cpu(device: torch.device, tmp_path: Path) -> None:
    """Training, and a validation whose images have other sizes each time: memory is used again."""
    for split, patch, size in (("train", 16, 4), ("val", None, 1)):
        write(tmp_path / "data" / split, 9)
        feed = feed_of(
            opened(tmp_path / "data", split), patch=patch, batch_size=size, workers=2
        )
        feed = replace(feed, pixels=Pixels(**PLAIN))
        with open_loader("paired", feed) as loader:
            expected = [
                (batch.images, batch.targets[HIGH]) for batch in loader.batches(0, 0)
            ]
        with open_loader("paired", replace(feed, device=device)) as loader:
            for batch, (low, high) in zip(loader.batches(0, 0), expected, strict=True):
                torch.testing.assert_close(batch.images.cpu(), low, rtol=0, atol=1e-6)
                torch.testing.assert_close(
                    batch.targets[HIGH].cpu(), high, rtol=0, atol=1e-6
                )


def test_the_kernel_that_finishes_does_what_torch_does(device: torch.device) -> None:
    """They agree to the bit, since it looks up what torch makes of each level; once built it never waits."""
    assert _postprocess._kernel(device, torch.float16) is not None
    test_finish_kernel.check_they_are_the_same(test_finish_kernel.differences(device))
    levels = torch.full(
        (test_finish_kernel.BATCH, 19, 19, 3), 7, dtype=torch.uint8, device=device
    )
    rows = test_finish_kernel.rows_of((19, 19))
    finish = _postprocess.Finish(test_finish_kernel.feed(device, "float16"))
    finish(levels, rows, rows.valid)
    with no_waits():
        finish(levels, rows, rows.valid)
