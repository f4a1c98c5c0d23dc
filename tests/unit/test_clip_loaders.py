"""Loaders of clips as a loop uses them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from saturate.contracts import Batch, Feed, Pixels, Rows
from saturate.dataset.stores.folder import Folder
from saturate.dataset.videos.columns import RECORD, Videos
from saturate.loaders import of_medium, open_loader
from saturate.loaders.videos._worker import LOST, REFUSED, Decoding, passed
from saturate.loaders.videos.exact import exact, sort_of
from saturate.loaders.videos.pyav import Pyav
from saturate.plan.bundles import some
from saturate.plan.clips import ClipPlan, ClipPolicy
from tests.unit.clip_kinds import KINDS, Made, reader
from tests.unit.video_files import number

T, SIZE, BATCH = 5, 64, 4


class Clips(ClipPlan):
    """A clip of every video, then another one of each, shown whole, `crops` times; epochs differ in their frames."""

    columns: Videos

    def ordered(self, epoch: int) -> np.ndarray:
        items = ClipPlan.ordered(self, epoch).reshape(len(self.columns), 2, -1)
        return items.swapaxes(0, 1).ravel()

    def frame(self, epoch: int, ids: np.ndarray, views: np.ndarray) -> dict[str, Any]:
        draws = np.random.default_rng(epoch)
        starts = draws.random((len(self.columns), self.policy.clips))
        flips = draws.random((len(self.columns), self.views)) < 0.5
        clips = views // self.policy.crops
        begin = starts[ids, clips] * (self.columns.count[ids] - T)
        heights, widths = self._stored(ids)
        whole = np.stack([0 * widths, 0 * heights, widths, heights], axis=1)
        return {
            "regions": whole.astype(np.int64),
            "windows": whole.astype(np.float64),
            "turns": flips[ids, views].astype(np.uint8),
            "frames": begin.astype(np.int64)[:, None] + np.arange(T),
        }


def feed(videos: Any, views: int = 1) -> Feed:
    def targets(rows: Rows) -> dict[str, np.ndarray]:
        return {"labels": np.where(rows.valid, rows.ids, -1)}

    policy = ClipPolicy(frames=T, image_size=SIZE, resize=SIZE, clips=2, crops=views)
    return Feed(
        plan=Clips(videos, policy, seed=0, batch_size=BATCH, training=False),
        source=Folder(videos),
        columns=videos,
        targets=targets,
        device=torch.device("cpu"),
        workers=2,
    )


def levels(images: torch.Tensor) -> np.ndarray:
    pixels = Pixels()
    return 255 * (
        images.permute(0, 2, 3, 4, 1).numpy() * np.array(pixels.std, np.float32)
        + np.array(pixels.mean, np.float32)
    )


def shown_and_asked(
    batch: Batch, kinds: Made, place: int
) -> tuple[list[int], list[int]]:
    """Return the numbers on the frames of one clip, and those on the frames that were asked for."""
    rows: Any = batch.rows
    upright = levels(batch.images)[place][:, :, :: -1 if rows.turns[place] else 1]
    asked = [
        kinds.shown(int(rows.ids[place]), frame)
        for frame in rows.frames[place].tolist()
    ]
    return [number(frame) for frame in upright], asked


def checked(loader: Any, given: Feed, epoch: int = 0) -> Iterator[Batch]:
    """Yield the batches of an epoch, which have the form, ids and targets of their rows; what failed is
    black.
    """
    for batch, rows in zip(
        loader.batches(epoch, 0), given.plan.rows(epoch, 0), strict=True
    ):
        assert batch.images.shape == (BATCH, 3, T, SIZE, SIZE)
        assert batch.images.is_contiguous(memory_format=torch.channels_last_3d)
        np.testing.assert_array_equal(batch.ids, rows.ids)
        np.testing.assert_array_equal(
            batch.valid.numpy(), rows.valid & ~np.isin(rows.ids, batch.failed)
        )
        labels = np.where(rows.valid, rows.ids, -1)[batch.valid.numpy()]
        np.testing.assert_array_equal(
            batch.targets["labels"].numpy()[batch.valid.numpy()], labels
        )
        assert not batch.images[~batch.valid].any()
        batch.rows = rows
        yield batch


def shows_what_is_asked(
    loader: Any, given: Feed, kinds: Made, epoch: int = 0, reference: Any = None
) -> None:
    """Every clip has the frames of its row and pixels close to the reference's; none has failed."""
    others = reference.batches(epoch, 0) if reference else itertools.repeat(None)
    for batch, other in zip(checked(loader, given, epoch), others, strict=False):
        assert batch.failed == ()
        for place in np.flatnonzero(batch.valid.numpy()).tolist():
            shown, asked = shown_and_asked(batch, kinds, place)
            assert shown == asked, kinds.names[batch.ids[place]]
        if other is not None:
            apart = np.abs(levels(batch.images) - levels(other.images)).mean(
                axis=(1, 2, 3, 4)
            )
            assert apart.max() <= 2


@pytest.mark.parametrize(
    "backend", [name for name in of_medium("videos") if name != "synthetic"]
)
def test_every_clip_of_every_kind(made: Made, backend: str) -> None:
    reader(backend, made.videos)  # or skip
    given = feed(made.videos)
    with open_loader("pyav", given) as reference, open_loader(backend, given) as loader:
        for epoch in (0, 1):
            # pyav is the reference itself
            other = None if backend == "pyav" else reference
            shows_what_is_asked(loader, given, made, epoch, other)
        claimed = exact(backend, made.videos)
        others = {
            sort_of(made.videos, sample) for sample in np.flatnonzero(~claimed).tolist()
        }
        told = dict(loader.counts.fallbacks)
        # decord refuses the one in fragments
        assert others <= set(told) and set(told) - others <= {"h264 in mp4, refused"}
        assert set(loader.counts.refusals) == {
            words for words in told if words.endswith(REFUSED)
        }
        assert all(loader.counts.refusals.values())
        assert backend != "pyav" or not told
        assert all(told[words] >= 4 for words in others)


def test_what_a_decoder_goes_through() -> None:
    """A decoder begins at the last key frame, or goes on from the wanted frame before."""
    keys = np.zeros(100, bool)
    keys[[0, 60]] = True
    for frames, expected in (
        ([0], 1),
        ([59], 60),
        ([59, 60], 61),
        ([62, 63, 64], 5),
        ([10, 20, 90], 21 + 31),
    ):
        assert passed(keys, np.array(frames)) == expected


def test_a_frame_of_another_size_is_none(made: Made) -> None:
    """A stream may change its size; its windows are for the one in the manifest."""
    read = Pyav(made.videos)
    given = feed(made.videos)
    names = (*(RECORD.names or ()), "file", "frame_pts", "frame_offsets")
    columns = SimpleNamespace(
        **{name: getattr(made.videos, name) for name in names}
        | {"width": made.videos.width + 2}
    )
    work = Decoding(replace(given, columns=columns), "pyav", lambda _: read, None)
    place, batch = next(
        (place, batch)
        for batch in given.plan.rows(0, 0)
        for place in np.flatnonzero(batch.ids == made.names.index("h264.mp4")).tolist()
    )
    told = work(
        some(batch, slice(place, place + 1)), np.empty(T * SIZE * SIZE * 3, np.uint8)
    )
    assert (told.lost, told.delivered) == ([0], 0)
    assert told.refusals and all(
        "pixels, its file said" in why for why in told.refusals.values()
    )


def spoiled(folder: Path, spoil: Callable[[bytes], bytes]) -> Made:
    """Files of other kinds, each of which is changed after the scan."""
    kinds = Made(
        folder,
        {
            name: KINDS[name]
            for name in (
                "h264.mp4",
                "h264.mkv",
                "h264.ts",
                "hevc.mp4",
                "mpeg4.mp4",
                "vp9.webm",
            )
        },
    )
    for sample in range(0, len(kinds.videos), 2):
        path = Path(os.fsdecode(kinds.videos.path(sample)))
        path.write_bytes(spoil(path.read_bytes()))
    return kinds


@pytest.mark.parametrize(
    "backend", [name for name in of_medium("videos") if name != "synthetic"]
)
def test_damage_that_is_noticed_is_masked(backend: str, tmp_path: Path) -> None:
    """Half of the files are damaged from their middle on, without a change of size."""

    def spoil(content: bytes) -> bytes:
        begin, end = len(content) * 4 // 10, len(content) * 8 // 10
        noise = np.random.default_rng(0).integers(0, 256, end - begin, np.uint8)
        return content[:begin] + noise.tobytes() + content[end:]

    reader(backend, None)  # or skip
    kinds = spoiled(tmp_path, spoil)
    given, failed = feed(kinds.videos), set()
    with open_loader(backend, given) as loader:
        for epoch in range(2):
            for batch in checked(loader, given, epoch):
                failed |= set(batch.failed)
                for place in np.flatnonzero(batch.valid.numpy()).tolist():
                    sample = int(batch.ids[place])
                    shown, asked = shown_and_asked(batch, kinds, place)
                    if sample % 2:  # one that is whole
                        assert shown == asked
                    # torn at worst (-1); decord makes up what they cannot decode
                    elif backend == "pyav":
                        pairs = zip(shown, asked, strict=True)
                        assert all(found in (-1, frame) for found, frame in pairs), (
                            kinds.names[sample]
                        )
        told = loader.counts.fallbacks
        assert backend != "pyav" or not told
        lost = {sort_of(kinds.videos, sample) + LOST for sample in failed}
        assert set(loader.counts.refusals) == lost | {
            words for words in told if words.endswith(REFUSED)
        }
        assert all(loader.counts.refusals[words].startswith("pyav: ") for words in lost)
    assert failed and not any(sample % 2 for sample in failed)
