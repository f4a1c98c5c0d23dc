"""The baselines by DALI's own readers, on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from benchmarks.baselines import dali, pytorch


@pytest.mark.parametrize("window", ["stretch", "center", "random-resized"])
def test_images_by_dalis_reader(window: str, tmp_path: Path) -> None:
    """Every file once an epoch with its label, over two shards. Red, then the label's blue; at both ends
    green, that `center` cuts off.
    """
    pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    files, labels = (
        [str(tmp_path / f"{label}.png") for label in range(6)],
        [20 * label for label in range(6)],
    )
    red, green = torch.tensor([255.0, 0.0, 0.0]), torch.tensor([0.0, 255.0, 0.0])
    for file, label in zip(files, labels, strict=True):
        image = Image.new("RGB", (160, 64), (0, 255, 0))
        image.paste((255, 0, 0), (40, 0, 80, 64))
        image.paste((0, 0, label), (80, 0, 120, 64))
        image.save(file)
    same: dict[str, Any] = {
        "size": 32,
        "batch_size": 3,
        "threads": 1,
        "device": torch.device("cpu"),
        "files": files,
        "labels": labels,
    }
    orders = []
    for shuffle in (False, True, True, True):
        found = []
        for rank in range(2):
            (batch,) = next(
                iter(
                    dali.images(
                        window=window, shuffle=shuffle, world_size=2, rank=rank, **same
                    )
                )
            )
            assert (
                batch["images"].shape == (3, 3, 32, 32)
                and batch["images"].dtype == torch.float32
            )
            levels = 255 * (
                batch["images"] * torch.tensor(pytorch.STD)[:, None, None]
                + torch.tensor(pytorch.MEAN)[:, None, None]
            )
            for image, label in zip(levels, batch["labels"], strict=True):
                blue = torch.tensor([0.0, 0.0, float(label)])
                across = {
                    "stretch": (green, red, blue, green),
                    "center": (red, red, blue, blue),
                    "random-resized": (),
                }[window]
                for place, colour in zip((3, 12, 20, 29), across, strict=False):
                    assert torch.allclose(image[:, 16, place], colour, atol=1), place
                found.append(int(label))
        orders.append(found)
        assert sorted(found) == labels
    assert orders[0] == labels and any(order != labels for order in orders[1:]), (
        "shuffled within a shard"
    )
    folders = tmp_path / "root"
    for at, file in enumerate(files[:3]):
        (folders / str(at)).mkdir(parents=True)
        Path(file).rename(folders / str(at) / "image.png")
    del same["files"], same["labels"]
    loader, flipped = (
        dali.images(window=window, flip=True, file_root=str(folders), **same),
        set(),
    )
    for _ in range(8):
        ((batch,),) = loader  # one batch is an epoch
        assert {int(label) for label in batch["labels"]} == {0, 1, 2}
        reds = batch["images"][:, 0, 16]
        flipped |= {bool(image[20] > image[12]) for image in reds}
    assert window == "random-resized" or flipped == {False, True}
