"""The loader of the GPU's video engines, with FFmpeg in their place."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from saturate.loaders import default_loader, open_loader
from saturate.loaders.videos import _packets, _reading
from saturate.loaders.videos._engines import capabilities, within
from saturate.loaders.videos._worker import LOST, REFUSED
from saturate.loaders.videos.exact import exact, sort_of
from saturate.loaders.videos.nvdec import loader
from tests.unit.clip_kinds import KINDS, Made
from tests.unit.engines import Codec
from tests.unit.test_clip_loaders import (
    T,
    checked,
    feed,
    levels,
    shown_and_asked,
    shows_what_is_asked,
    spoiled,
)


@pytest.mark.parametrize(("beside", "views", "epochs"), [(False, 3, 1), (True, 1, 2)])
def test_every_clip_of_every_kind(
    made: Made, beside: bool, views: int, epochs: int
) -> None:
    given, codec = feed(made.videos, views=views), Codec(lacks="")
    loading, clips = loader(given, codec, beside=beside), 2 * views * epochs
    with loading:
        for epoch in range(epochs):
            shows_what_is_asked(loading, given, made, epoch)
        able = exact("nvdec", made.videos)
        able &= within(capabilities(codec, 0), made.videos)
        for name in ("h264.mp4", "hevc.mp4", "vp9.webm", "vp9-hidden.webm"):
            assert able[made.names.index(name)]
        told = dict(loading.counts.fallbacks)
        assert sum(told.values()) >= clips * (~able).sum()
        refused = {words for words in told if "refused" in words}
        assert refused <= {"h264 in mp4, edit list, refused"}, (
            "clips of two parts of h264-parts.mp4"
        )
        assert loading.counts.delivered == clips * len(made.videos) * T
        seconds = loading.stage_seconds()
        assert {"idle", "read", "decode", "resize", "clips"} <= seconds.keys()
        assert loading.counts.decoded > loading.counts.delivered // views // 2
        assert any("mpeg4 in avi" in line and "nvdec" in line for line in loading.notes)


def test_who_decodes_changes_pixels_little_and_resuming_nothing(made: Made) -> None:
    given = feed(made.videos)
    whole = {}
    for name in (False, True):
        with loader(given, Codec(), beside=name) as loading:
            whole[name] = torch.cat([batch.images for batch in loading.batches(2, 0)])
            next(iter(loading.batches(2, 0)))  # abandoned
            tail = torch.cat([batch.images for batch in loading.batches(2, 64)])
            apart = np.abs(levels(tail) - levels(whole[name][64:])).mean(
                axis=(1, 2, 3, 4)
            )
            assert apart.max() <= (0.5 if name else 0)
    with open_loader("pyav", given) as reference:
        by_pyav = torch.cat([batch.images for batch in reference.batches(2, 0)])
    for images in whole.values():
        assert (
            np.abs(levels(images) - levels(by_pyav)).mean(axis=(1, 2, 3, 4)).max()
            <= 0.5
        )


class Refusing(Codec):
    def CreateDecoder(self, **given: Any) -> Any:
        raise Exception("cuvidCreateDecoder : no\nError code : 801")


def test_what_an_engine_refuses_pyav_decodes(tmp_path: Path) -> None:
    kinds = Made(tmp_path, {name: KINDS[name] for name in ("h264.mp4", "hevc.mp4")})
    given = feed(kinds.videos)
    loading = loader(given, Refusing())
    with loading:
        assert loading._pool is None, (
            "all files are such that the engines can decode them"
        )
        shows_what_is_asked(loading, given, kinds)
        assert loading.counts.fallbacks == {
            "h264 in mp4, refused": 2,
            "hevc in mp4, refused": 2,
        }
        assert loading.counts.refusals == dict.fromkeys(
            loading.counts.fallbacks, "nvdec: cuvidCreateDecoder : no"
        )


def test_damage_is_failed_once_pyav_has_said_so(tmp_path: Path) -> None:
    kinds = spoiled(
        tmp_path,
        lambda content: content[: len(content) // 5].ljust(len(content), b"\0"),
    )
    given, failed = feed(kinds.videos), set[int]()
    loading = loader(given, Codec(), beside=True)
    able, by_pyav = loading._able, Counter[str]()
    with loading:
        for batch in checked(loading, given):
            failed |= set(batch.failed)
            for place in np.flatnonzero(batch.valid.numpy()).tolist():
                sample = int(batch.ids[place])
                by_pyav[sort_of(kinds.videos, sample)] += not able[sample]
                # what is lost is black, and masked at its own place
                assert levels(batch.images)[place].std() > 1
                shown, asked = shown_and_asked(batch, kinds, place)
                assert shown == asked or not sample % 2
        told = {
            sort: why
            for sort, why in loading.counts.refusals.items()
            if sort.endswith(LOST)
        }
        fallbacks = {
            sort: clips
            for sort, clips in loading.counts.fallbacks.items()
            if not sort.endswith(REFUSED)
        }
    assert fallbacks == +by_pyav, "clips that it decoded, not those that it lost"
    assert failed and not any(sample % 2 for sample in failed)
    assert {*told} == {
        sort_of(kinds.videos, sample) + LOST for sample in failed
    } and all(why.startswith("pyav: ") for why in told.values())
    assert not able[sorted(failed)].all(), "one that the engines were not asked for"


def test_nothing_is_left_and_nothing_grows(made: Made) -> None:
    children, threads = (
        {child.pid for child in psutil.Process().children()},
        threading.active_count(),
    )
    codec = Codec()
    loading = loader(feed(made.videos), codec, beside=True)
    for epoch in range(2):
        list(loading.batches(epoch, 0))
    assert codec.made <= 2 * 4
    next(iter(loading.batches(9, 0)))
    loading.close()
    loading.close()
    assert {child.pid for child in psutil.Process().children()} <= children
    assert threading.active_count() <= threads


@pytest.mark.parametrize("workers", [0, 2])
def test_packets_that_have_no_room_in_a_slot(
    made: Made, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_reading, "MOST_BYTES", 1)  # a slot is a page

    given = replace(feed(made.videos), workers=workers)
    with loader(given, Codec()) as loading:
        shows_what_is_asked(loading, given, made)


def test_closing_does_not_wait_for_a_read_that_hangs(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_packets, "open_video", lambda *_, **__: time.sleep(10_000))
    loading = loader(feed(made.videos), Codec())
    loading.batches(0, 0)
    time.sleep(0.5)
    loading.close()


def test_what_auto_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for codec, auto in (
        (None, "pyav"),
        (Codec(), "nvdec+pyav"),
        (Codec(engines=0), "pyav"),
    ):
        monkeypatch.setitem(sys.modules, "PyNvVideoCodec", codec)
        assert [default_loader("videos", gpu=gpu) for gpu in (False, True)] == [
            "pyav",
            auto,
        ]
