"""The loader of the GPU's video engines, with FFmpeg in their place: packets, pixels, shares, order, errors. tests/gpu has the engines."""

from __future__ import annotations

import heapq
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from contracts import Mistake
from loaders import CLIPS, _nvdec, _reading, default_loader, open_loader
from loaders._clips import exact
from loaders._deal import Unit
from loaders._nvdec import CLIP_TICKS, Nvdec, Packets, capabilities, within
from loaders._planes import Picture
from loaders._readers import Undecodable
from loaders._surfaces import Fit
from loaders.nvdec import loader, runs
from tests.unit import engines
from tests.unit.clip_kinds import KINDS, Made
from tests.unit.engines import Codec
from tests.unit.test_clip_loaders import BATCH, SIZE, T, feed, levels, spoiled
from tests.unit.test_clip_readers import patterns
from tests.unit.video_files import number

CLAIMED = [
    *("h264.mp4", "h264.mkv", "h264-variable.mp4", "h264-variable.mkv", "h264-90.mp4", "h264-180.mp4", "h264-270.mp4", "h264-cut.mp4"),
    *("h264-parts.mp4", "h264-90.mkv", "h264-fragments.mp4", "h264-every.mp4", "h264-two.mp4", "hevc.mp4", "hevc-variable.mkv"),
    *("hevc-cut.mp4", "hevc-90.mp4", "hevc-two.mkv", "vp9.webm", "vp9-variable.webm", "vp9.mp4", "av1.mp4", "av1-variable.webm"),
]


def shown(picture: Picture, surface: torch.Tensor) -> int:
    """The number on a whole frame."""
    height, width = picture.shape
    whole = np.array([0, 0, width, height])
    return number(Fit(picture, whole, whole.astype(float), (height, width), False)(surface[None])[0].numpy())


class Reading:
    """Frames of files by one Nvdec, with its packets read right before."""

    def __init__(self, videos: Any, codec: Codec) -> None:
        self.nvdec, self._packets, self._videos = Nvdec(videos, codec, 0, 0), Packets(videos), videos

    def __call__(self, sample: int, frames: list[int]) -> Iterator[tuple[int, Picture, torch.Tensor]]:
        return self.nvdec(self._packets(sample, self._videos.path(sample), frames))


# --- which files, which packets -------------------------------------------------------------------------------------------------------


def test_the_table(made: Made) -> None:
    claimed = exact("nvdec", made.videos, np.arange(len(made.videos)))
    assert sorted(np.array(made.names)[claimed]) == sorted(CLAIMED)


def test_what_the_device_decodes(made: Made) -> None:
    """Codecs, sides and sizes as the engines tell; of a turned picture the stored sides count."""
    caps = capabilities(Codec(least=96), 0)
    assert sorted(caps) == ["av1", "h264", "hevc"]
    fits = dict(zip(made.names, within(caps, made.videos), strict=True))
    assert fits["h264.mp4"] and fits["h264-90.mp4"] and fits["hevc.mp4"] and not fits["vp9.webm"] and not fits["mpeg4.avi"]
    assert not within({"h264": caps["h264"]._replace(least=(97, 1))}, made.videos).all()
    assert not within({"h264": caps["h264"]._replace(blocks=47)}, made.videos).any()


def test_only_codecs_of_the_set_are_asked_for(tmp_path: Path) -> None:
    """Each answer makes a CUDA context: four of them kept twelve programs that started together from their first clip for a minute."""
    every = ["VP9", "H264", "HEVC", "AV1"]  # VP9 is what the stand-in does not decode
    for names, asked in ((["hevc.mp4"], ["HEVC"]), (["vp9.webm", "h264.mp4"], ["H264", "VP9"]), (["vp9.webm"], every)):
        videos, codec = Made(tmp_path / "-".join(names), {name: KINDS[name] for name in names}).videos, Codec()
        with loader(feed(videos), codec, ""):
            assert codec.asked == asked


@pytest.mark.parametrize("name", [name for name in CLAIMED if name != "h264-parts.mp4"])
def test_frames_that_were_asked_for(made: Made, name: str) -> None:
    """One decoder for all clips of a file; none of its surfaces is looked at after the next call."""
    codec, sample = Codec(), made.names.index(name)
    read = Reading(made.videos, codec)
    for frames in patterns(len(made.videos.pts(sample))):
        came = {frame: shown(picture, surface) for frame, picture, surface in read(sample, frames)}
        assert came == {frame: made.shown(sample, frame) for frame in frames}
    assert codec.made == 1


def fed(made: Made, name: str, frames: list[int]) -> tuple[list[int], list[int]]:
    """Display places of the packets that were fed, and of those whose frames were to be shown, in the order of decoding."""
    codec, sample = Codec(), made.names.index(name)
    list(Reading(made.videos, codec)(sample, frames))
    pts = made.videos.pts(sample).tolist()
    places = [pts.index(label % CLIP_TICKS + pts[0]) for label, _ in codec.packets]
    return places, [place for place, (_, hidden) in zip(places, codec.packets, strict=True) if not hidden]


def test_packets_from_the_key_frame_to_the_last_wanted_one(made: Made) -> None:
    """Key frames are 12 apart. Of those before the wanted ones, B-frames that no other frame is made from are left out."""
    places, asked = fed(made, "h264.mkv", [20, 21])
    assert places[0] == 12 and sorted(asked) == [20, 21, 23] and not set(places) - set(range(12, 25)), "23 comes before them"
    assert 16 in places and not set(places) & {13, 15}, "those are disposable"
    places, asked = fed(made, "h264.mkv", [24])
    assert (places, asked) == ([24], [24])
    places, _ = fed(made, "hevc.mp4", [20])
    assert sorted(places) == [12, 13, 14, 15, 16, 20], "in HEVC none is left out"
    places, _ = fed(made, "h264.mkv", [2, 40])
    assert 12 not in places and 24 not in places and 36 in places, "two key frames, with none of the frames between"


def test_an_edit_list_hides_frames_that_others_need(made: Made) -> None:
    sample = made.names.index("h264-cut.mp4")
    read = Reading(made.videos, Codec())
    came = [shown(picture, surface) for _, picture, surface in read(sample, [0, 1])]
    assert sorted(came) == [7, 8]


class Losing(Codec):
    """Gives no picture for the packet of one label, as a parser that leaves a damaged one out."""

    lost = 0

    def CreateDecoder(self, **given: Any) -> Any:
        session = super().CreateDecoder(**given)
        decode = session.Decode

        def losing(data: Any) -> Any:
            if data.bsl and data.pts % CLIP_TICKS == self.lost:
                heapq.heappush(session._labels, data.pts)
                return []
            return decode(data)

        session.Decode = losing  # type: ignore[method-assign]
        return session


@pytest.mark.parametrize("wanted", [[7, 8, 9], [7], [5, 40]])
def test_a_missing_picture_is_no_reason_to_show_others(made: Made, wanted: list[int]) -> None:
    """Those behind it would have had the labels of the ones before them."""
    sample = made.names.index("hevc.mp4")
    pts, codec = made.videos.pts(sample), Losing()
    read = Reading(made.videos, codec)
    codec.lost = int(pts[5] - pts[0])  # no picture is made from it
    with pytest.raises(Undecodable, match=r"a picture is missing|did not come"):
        list(read(sample, wanted))
    codec.lost = -1
    assert {frame: shown(picture, surface) for frame, picture, surface in read(sample, wanted)} == {frame: frame for frame in wanted}
    assert codec.made == 2, "the decoder still had a label"


def test_parts_in_another_order_are_refused(made: Made) -> None:
    """Nine frames from the end come first. Clips of one part are right; those of both are pyav's."""
    sample = made.names.index("h264-parts.mp4")
    read = Reading(made.videos, Codec())
    for frames in ([0, 3, 4], [9, 12], [20, 22, 30], [44]):
        came = {frame: shown(picture, surface) for frame, picture, surface in read(sample, frames)}
        assert came == {frame: made.shown(sample, frame) for frame in frames}
    for frames in ([7, 9], [5, 12, 13]):
        with pytest.raises(Undecodable, match="parts in another order"):
            list(read(sample, frames))


def test_a_key_frame_without_parameter_sets_is_refused(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that has seen another file would decode it with that one's."""
    monkeypatch.setattr("loaders._nvdec.FILTERS", {})
    sample = made.names.index("h264.mp4")
    with pytest.raises(Undecodable, match="parameter sets"):
        list(Reading(made.videos, Codec())(sample, [20]))


def test_a_surface_of_another_size_is_none(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "nv12", lambda planes: torch.zeros(12, 16, dtype=torch.uint8))
    sample = made.names.index("h264.mp4")
    with pytest.raises(Undecodable, match="surface"):
        list(Reading(made.videos, Codec())(sample, [20]))


# --- copies -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], []),
        ([(0, 3), (1, 4), (2, 5)], [(0, 3, 3)]),
        ([(0, 0), (0, 1), (1, 2), (3, 3), (4, 4)], [(0, 0, 1), (0, 1, 2), (3, 3, 2)]),
        ([(5, 1), (6, 0)], [(5, 1, 1), (6, 0, 1)]),
    ],
)
def test_runs(pairs: list[tuple[int, int]], expected: list[tuple[int, int, int]]) -> None:
    assert list(runs(pairs)) == expected


# --- the loader -----------------------------------------------------------------------------------------------------------------------


def numbers(images: torch.Tensor, rows: Any, place: int) -> list[int]:
    upright = levels(images)[place][:, :, :: -1 if rows.flips[place] else 1]
    return [number(frame) for frame in upright]


def expected(kinds: Made, rows: Any, place: int) -> list[int]:
    return [kinds.shown(int(rows.ids[place]), frame) for frame in rows.frames[place].tolist()]


@pytest.mark.parametrize("beside", ["", "pyav", "decord"])
@pytest.mark.parametrize("views", [1, 3])
def test_every_clip_of_every_kind(made: Made, beside: str, views: int) -> None:
    if beside == "decord":
        pytest.importorskip("decord")
    given = feed(made.videos, views=views)
    loading = loader(given, Codec(), beside)
    with loading:
        for epoch in (0, 1):
            for batch, rows in zip(loading.batches(epoch, 0), given.plan.rows(epoch, 0), strict=True):
                assert batch.images.shape == (BATCH, 3, T, SIZE, SIZE)
                assert batch.images.is_contiguous(memory_format=torch.channels_last_3d)
                assert batch.failed == ()
                np.testing.assert_array_equal(batch.ids, rows.ids)
                np.testing.assert_array_equal(batch.targets["labels"].numpy(), np.where(rows.valid, rows.ids, -1))
                assert not batch.images[~batch.valid].any()
                for place in np.flatnonzero(rows.valid).tolist():
                    assert numbers(batch.images, rows, place) == expected(made, rows, place), made.names[rows.ids[place]]
        able = exact("nvdec", made.videos, np.arange(len(made.videos))) & within(capabilities(Codec(), 0), made.videos)
        told = dict(loading.counts.fallbacks)
        assert sum(told.values()) >= 4 * views * (~able).sum()
        refused = {words for words in told if "refused" in words and beside != "decord"}
        assert refused <= {"h264 in mp4, edit list, refused"}, "clips of two parts of h264-parts.mp4"
        assert loading.counts.delivered == 2 * given.plan.samples * T and loading.counts.decoded > loading.counts.delivered // views // 2
        assert any("mpeg4 in avi" in line and "nvdec" in line for line in loading.notes)


def test_who_decodes_changes_pixels_little_and_resuming_nothing(made: Made) -> None:
    given = feed(made.videos)
    whole = {}
    for name in ("", "pyav"):
        with loader(given, Codec(), name) as loading:
            whole[name] = torch.cat([batch.images for batch in loading.batches(2, 0)])
            next(iter(loading.batches(2, 0)))  # abandoned
            tail = torch.cat([batch.images for batch in loading.batches(2, 8)])
            apart = np.abs(levels(tail) - levels(whole[name][8:])).mean(axis=(1, 2, 3, 4))
            assert apart.max() <= (0 if name == "" else 0.5)
    with open_loader("pyav", given) as reference:
        by_pyav = torch.cat([batch.images for batch in reference.batches(2, 0)])
    for images in whole.values():
        assert np.abs(levels(images) - levels(by_pyav)).mean(axis=(1, 2, 3, 4)).max() <= 0.5


class Refusing(Codec):
    """A driver that refuses every stream."""

    def CreateDecoder(self, **given: Any) -> Any:
        raise Exception("cuvidCreateDecoder : no\nError code : 801")


def test_what_an_engine_refuses_pyav_decodes(tmp_path: Path) -> None:
    kinds = Made(tmp_path, {name: KINDS[name] for name in ("h264.mp4", "hevc.mp4")})
    given = feed(kinds.videos)
    loading = loader(given, Refusing(), "")
    with loading:
        assert loading._pool is None, "all files are such that the engines can decode them"
        for batch, rows in zip(loading.batches(0, 0), given.plan.rows(0, 0), strict=True):
            for place in np.flatnonzero(rows.valid).tolist():
                assert numbers(batch.images, rows, place) == expected(kinds, rows, place)
        assert loading.counts.fallbacks == {"h264 in mp4, refused": 2, "hevc in mp4, refused": 2}
        assert loading.counts.refusals == dict.fromkeys(loading.counts.fallbacks, "nvdec: cuvidCreateDecoder : no")


def test_damage_is_failed_once_pyav_has_said_so(tmp_path: Path) -> None:
    kinds = spoiled(tmp_path, lambda content: content[: len(content) // 5] + bytes(len(content) - len(content) // 5))
    given, failed = feed(kinds.videos), set[int]()
    with loader(given, Codec(), "pyav") as loading:
        for batch, rows in zip(loading.batches(0, 0), given.plan.rows(0, 0), strict=True):
            failed |= set(batch.failed)
            np.testing.assert_array_equal(batch.valid.numpy(), rows.valid & ~np.isin(rows.ids, batch.failed))
            assert not batch.images[~batch.valid].any()
            for place in np.flatnonzero(batch.valid.numpy()).tolist():
                if rows.ids[place] % 2:
                    assert numbers(batch.images, rows, place) == expected(kinds, rows, place)
    assert failed and not any(sample % 2 for sample in failed)


def test_of_a_damaged_video_the_clips_that_are_whole_are_shown(tmp_path: Path) -> None:
    """Two crops of a clip at its beginning, and a clip behind the damage."""
    kinds = spoiled(tmp_path, lambda content: content[: len(content) * 6 // 10] + bytes(len(content) - len(content) * 6 // 10))
    given = replace(feed(kinds.videos), workers=0)
    rows = given.plan.rows(0, 0)[0]
    first = np.zeros(BATCH, int)
    whole = np.tile([0, 0, int(kinds.videos.width[0]), int(kinds.videos.height[0])], (BATCH, 1))
    late = len(kinds.videos.pts(0)) - T
    rows = replace(
        rows,
        ids=first,
        regions=whole,
        windows=whole.astype(float),
        flips=first.astype(bool),
        frames=np.array([[clip + t for t in range(T)] for clip in (0, 0, late, 0)]),
    )
    loading = loader(given, Refusing(), "")
    with loading:
        out = torch.zeros((BATCH, T, SIZE, SIZE, 3))
        told = [loading._all[0]._decode(rows, Unit(np.array(places), able=True), out) for places in ([0, 1], [2])]
        assert [its.lost for its in told] == [[], [2]] and told[0].fallbacks == ["h264 in mkv, refused"] * 2
        shown = [numbers(out.movedim(-1, 1), rows, place) for place in (0, 1)]
        assert shown == [expected(kinds, rows, place) for place in (0, 1)] and not out[2:].any()


@pytest.mark.parametrize("beside", ["", "pyav"])
def test_a_file_that_is_gone_is_the_users_mistake(tmp_path: Path, beside: str) -> None:
    kinds = Made(tmp_path, {"h264.mp4": {}, "hevc.mp4": {"codec": "hevc"}})
    Path(os.fsdecode(kinds.videos.path(1))).unlink()
    with loader(feed(kinds.videos), Codec(), beside) as loading, pytest.raises(Mistake, match=r"is gone.*--rescan"):
        list(loading.batches(0, 0))


def test_nothing_is_left_and_nothing_grows(made: Made) -> None:
    """No process or thread after `close`, also in the middle of a batch; few decoders."""
    children, threads = {child.pid for child in psutil.Process().children()}, threading.active_count()
    codec = Codec()
    loading = loader(feed(made.videos), codec, "pyav")
    for epoch in range(4):
        list(loading.batches(epoch, 0))
    assert codec.made <= 2 * 4
    next(iter(loading.batches(9, 0)))
    loading.close()
    loading.close()
    assert {child.pid for child in psutil.Process().children()} <= children
    assert threading.active_count() <= threads


def test_workers_beside_the_engines_leave_cores_to_the_threads(made: Made) -> None:
    def processes(beside: str, workers: int) -> int:
        before = len(psutil.Process().children())
        with loader(replace(feed(made.videos), workers=workers), Codec(engines=4), beside):
            return len(psutil.Process().children()) - before

    assert [processes("pyav", workers) for workers in (7, 2, 0)] == [4 + 5, 2 + 1, 0], "that read, one for each engine, and that decode"
    assert processes("", 6) == 6 + 6, "of which the second ones decode only what engines cannot"


@pytest.mark.parametrize("workers", [0, 2])
def test_packets_that_have_no_room_in_a_slot(made: Made, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come through a pipe, beside others that have; without workers there are no slots."""
    monkeypatch.setattr(_reading, "MOST_BYTES", 1)  # a slot is a page
    large, made_read = list[bool](), _reading.Read

    def noted(data: np.ndarray, about: Any) -> Any:
        large.append(len(data) > mmap.PAGESIZE)
        return made_read(data, about)

    monkeypatch.setattr(_reading, "Read", noted)  # which this process makes of what came
    given = replace(feed(made.videos), workers=workers)
    with loader(given, Codec(), "") as loading:
        for batch, rows in zip(loading.batches(0, 0), given.plan.rows(0, 0), strict=True):
            for place in np.flatnonzero(rows.valid).tolist():
                assert numbers(batch.images, rows, place) == expected(made, rows, place), made.names[rows.ids[place]]
    assert {*large} == ({True, False} if workers else set()), "clips of both sorts"


def test_closing_does_not_wait_for_a_read_that_hangs(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_nvdec, "open_video", lambda *_, **__: time.sleep(60))
    loading = loader(feed(made.videos), Codec(), "")
    loading.batches(0, 0)
    time.sleep(0.5)
    began = time.monotonic()
    loading.close()
    assert time.monotonic() - began < 10


SIZES = [(96, 128), (128, 96), (192, 64), (64, 192), (160, 160), (96, 128), (130, 202)]


def test_one_decoder_for_files_of_many_sizes(tmp_path: Path) -> None:
    """It grows to what is the largest of both sides; of two sizes with as many pixels none is taken for the other."""
    kinds = Made(tmp_path, {f"{at}.mp4": {"size": size, "frames": 12} for at, size in enumerate(SIZES)})
    codec = Codec()
    read = Reading(kinds.videos, codec)
    for sample in [*range(len(SIZES)), *reversed(range(len(SIZES)))]:
        came = {frame: shown(picture, surface) for frame, picture, surface in read(sample, [3, 7])}
        assert came == {3: 3, 7: 7}
    assert codec.made == 4, "for 128 x 128, 192 x 128, 192 x 192 and 192 x 256"
    assert [(decoder.height, decoder.width) for decoder in read.nvdec._decoders.values()] == [(192, 256)]
    read.nvdec.close()
    assert not read.nvdec._decoders


def test_without_a_gpu(made: Made) -> None:
    for name in ("nvdec", "nvdec+pyav", "nvdec+decord"):
        assert name in CLIPS
        with pytest.raises(Mistake, match="needs an NVIDIA GPU"):
            open_loader(name, feed(made.videos))
    with pytest.raises(Mistake, match="no engine"):
        loader(feed(made.videos), Codec(engines=0), "")


def test_what_auto_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PyNvVideoCodec, with it, and on a GPU without engines; on a CPU it is not asked for."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for codec, auto in ((None, "pyav"), (Codec(), "nvdec+pyav"), (Codec(engines=0), "pyav")):
        monkeypatch.setitem(sys.modules, "PyNvVideoCodec", codec)
        assert [default_loader("video", gpu=gpu) for gpu in (False, True)] == ["pyav", auto]


@pytest.fixture(autouse=True)
def no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without PyNvVideoCodec."""
    monkeypatch.setitem(sys.modules, "PyNvVideoCodec", None)


def test_without_the_module(made: Made) -> None:
    with pytest.raises(Mistake, match=r"pip install PyNvVideoCodec.*--loader pyav") as caught:
        open_loader("nvdec", replace(feed(made.videos), device=torch.device("cuda", 0)))
    assert "\n" not in str(caught.value)
