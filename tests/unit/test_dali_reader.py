"""The baselines by DALI's own readers, on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from benchmarks.baselines import dali, pytorch
from tests.unit.video_files import make, number


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


def dali_sequences(
    files: list[str], device: torch.device, **asked: Any
) -> list[list[tuple[int, list[int]]]]:
    """Return two epochs of DALI's reader: (label, numbers of the frames) of each clip, in order of label
    and first frame.
    """
    sizes: dict[str, Any] = {
        "frames": 4,
        "stride": 2,
        "size": 64,
        "shorter": 64,
        "batch_size": 1,
    }
    made = dali.clips(
        files, [7, 8], device=device, experimental=True, threads=1, **sizes | asked
    )
    epochs = []
    for _ in range(2):
        found = []
        for batch in made:
            (pixels,), (label,) = batch[0]["clips"], batch[0]["labels"]
            assert pixels.shape == (3, 4, 64, 64) and pixels.dtype == torch.float32
            levels = 255 * (pixels * torch.tensor(pytorch.STD)[:, None, None, None])
            levels += 255 * torch.tensor(pytorch.MEAN)[:, None, None, None]
            found.append(
                (
                    int(label),
                    [
                        number(frame.permute(1, 2, 0).numpy())
                        for frame in levels.unbind(1)
                    ],
                )
            )
        epochs.append(sorted(found))
    return epochs


def test_clips_by_dalis_reader(tmp_path: Path) -> None:
    pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    square: dict[str, Any] = {"codec": "vp9", "size": (64, 64), "gop": 8}
    files = [
        str(make(tmp_path / "a.webm", frames=20, **square)),
        str(make(tmp_path / "b.webm", frames=5, numbers_from=100, **square)),
    ]
    cpu, short = torch.device("cpu"), (8, [100, 102, 104, 104])
    first, second = dali_sequences(files, cpu, step=dali.step(0, 4, 2, 20))
    assert (
        first
        == second
        == [(7, [0, 2, 4, 6]), (7, [8, 10, 12, 14]), (7, [16, 18, 19, 19]), short]
    )
    first, _ = dali_sequences(files, cpu, step=dali.step(1, 4, 2, 20))
    assert first == [(7, [0, 2, 4, 6]), short], "one a video"
    first, _ = dali_sequences(files, cpu, step=dali.step(2, 4, 2, 20))
    assert first[:2] == [(7, [0, 2, 4, 6]), (7, [13, 15, 17, 19])], (
        "the last one ends where the video does"
    )
    halves = [
        dali_sequences(files, cpu, step=8, world_size=2, rank=rank)[0]
        for rank in (0, 1)
    ]
    assert sorted(halves[0] + halves[1]) == second and len(halves[0]) == 2, "shards"
    for experimental in (False, True):
        sizes: dict[str, Any] = {
            "frames": 4,
            "stride": 2,
            "step": 8,
            "size": 64,
            "shorter": 73,
        }
        threads: dict[str, Any] = {"batch_size": 2, "num_threads": 1, "device_id": 0}
        graph = dali.clip_pipeline(
            files,
            [7, 8],
            experimental=experimental,
            gpu=True,
            shards=(0, 1),
            **sizes,
            **threads,
        )
        assert graph.max_batch_size == 2, (
            "its operators take these arguments on a GPU too"
        )
