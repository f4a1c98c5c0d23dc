"""Clips that are decoded on the GPU: frames, pixels and batches as elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from saturate.contracts import Batch, Feed, Pixels, Rows
from saturate.loaders import open_loader
from saturate.loaders.videos import _surfaces
from tests.conformance.scenes import lone
from tests.gpu.conftest import CUDA
from tests.unit.clip_kinds import KINDS, Made
from tests.unit.test_clip_loaders import feed, levels, spoiled
from tests.unit.test_surfaces import levels_apart
from tests.unit.video_files import number

LOADERS = [loader.name for loader in lone(CUDA, clips=True) if loader.decodes_on_gpu]
LARGE = {"size": (192, 256)}
"""NVDEC takes no HEVC below 144 x 144, nor VP9 below 128 x 128."""
APART = 2.0
"""Mean grey levels that a clip may be from pyav's."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(
        tmp_path_factory.mktemp("kinds"),
        {name: LARGE | video for name, video in KINDS.items() if name != "vp9-odd.mp4"},
    )


def on_gpu(given: Feed, device: torch.device) -> Feed:
    return replace(given, device=device, pixels=Pixels(dtype="float16"))


def on_cpu(images: torch.Tensor) -> np.ndarray:
    return levels(images.float().cpu())


def test_the_compiled_kernel_does_what_the_host_does(device: torch.device) -> None:
    assert _surfaces._kernel(device) is not None
    for turns in range(4):
        most, mean = levels_apart(device, turns)
        assert most <= 1 and mean < 0.05


def shows_what_is_asked(clip: np.ndarray, rows: Rows, place: int, kinds: Made) -> None:
    """A clip, float32 [T, H, W, 3], has the frames of its row."""
    assert rows.frames is not None
    asked = [
        kinds.shown(int(rows.ids[place]), frame)
        for frame in rows.frames[place].tolist()
    ]
    upright = clip[:, :, :: -1 if rows.turns[place] else 1]
    assert [number(frame) for frame in upright] == asked, kinds.names[rows.ids[place]]


def apart_from(other: Batch, batch: Batch) -> np.ndarray:
    """Mean grey levels between the clips of two batches, [B]."""
    return np.asarray(
        np.abs(on_cpu(batch.images) - on_cpu(other.images)).mean(axis=(1, 2, 3, 4))
    )


def same_as_pyavs(given: Feed, name: str, kinds: Made, epochs: int) -> dict[str, int]:
    """Every clip has its form, the frames of its row and pixels close to pyav's. Return the fallbacks."""
    with open_loader("pyav", given) as reference, open_loader(name, given) as loading:
        for epoch in range(epochs):
            batches, others = loading.batches(epoch, 0), reference.batches(epoch, 0)
            for batch, other, rows in zip(
                batches, others, given.plan.rows(epoch, 0), strict=True
            ):
                assert batch.failed == () and batch.images.dtype == torch.float16
                assert batch.images.is_contiguous(memory_format=torch.channels_last_3d)
                np.testing.assert_array_equal(batch.ids, rows.ids)
                np.testing.assert_array_equal(batch.valid.cpu(), rows.valid)
                labels = np.where(rows.valid, rows.ids, -1)
                np.testing.assert_array_equal(batch.targets["labels"].cpu(), labels)
                assert not batch.images[~batch.valid].any()
                clips, apart = on_cpu(batch.images), apart_from(other, batch)
                for place in np.flatnonzero(rows.valid).tolist():
                    shows_what_is_asked(clips[place], rows, place, kinds)
                    assert apart[place] <= APART, kinds.names[rows.ids[place]]
        told = dict(loading.counts.fallbacks)
    print(f"{name}: {told}")
    return told


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("name", LOADERS)
def test_every_clip_of_every_kind(
    made: Made, name: str, views: int, device: torch.device
) -> None:
    told = same_as_pyavs(on_gpu(feed(made.videos, views=views), device), name, made, 2)
    # clips of both parts of h264-parts.mp4
    of_parts = "h264 in mp4, edit list, refused"
    refused = [words for words in told if "refused" in words and words != of_parts]
    assert told and not refused, refused


SIZES: list[tuple[str, dict[str, Any]]] = [
    *(("hevc.mp4", {"size": (168, 248), "unit": unit}) for unit in (32, 16, 8)),
    *(
        ("hevc.mp4", {"size": size, "unit": 8})
        for size in [(168, 256), (176, 256), (176, 248), (192, 256)]
    ),
    *(
        ("h264.mp4", {"size": size})
        for size in [(168, 248), (168, 256), (176, 256), (176, 248), (192, 256)]
    ),
    *(
        ("vp9.webm", {"size": size})
        for size in [(168, 250), (168, 256), (176, 256), (192, 256)]
    ),
    ("h264-90.mp4", {"size": (248, 168)}),
]
"""Sizes of which many are coded in the same blocks of 16, and which parsers take for others."""


@pytest.mark.parametrize("name", LOADERS)
def test_sizes_that_are_coded_alike(
    name: str, tmp_path: Path, device: torch.device
) -> None:
    """A frame that is larger or smaller would still show its number."""
    files = {
        f"{at:02}-{kind}": KINDS[kind] | more for at, (kind, more) in enumerate(SIZES)
    }
    kinds = Made(tmp_path, files)
    same_as_pyavs(on_gpu(feed(kinds.videos), device), name, kinds, 4)


@pytest.mark.parametrize("name", LOADERS)
def test_files_beside_damaged_ones_are_right(
    name: str, tmp_path: Path, device: torch.device
) -> None:
    """A decoder that has seen a damaged file must not harm the next one."""
    kinds = spoiled(
        tmp_path,
        lambda content: (
            content[: len(content) // 3] + bytes(len(content) - len(content) // 3)
        ),
    )
    given = on_gpu(feed(kinds.videos), device)
    with open_loader(name, given) as loading:
        for epoch in range(3):
            for batch, rows in zip(
                loading.batches(epoch, 0), given.plan.rows(epoch, 0), strict=True
            ):
                assert not any(sample % 2 for sample in batch.failed)
                clips = on_cpu(batch.images)
                for place in np.flatnonzero(
                    batch.valid.cpu().numpy() & (rows.ids % 2 == 1)
                ).tolist():
                    shows_what_is_asked(clips[place], rows, place, kinds)
