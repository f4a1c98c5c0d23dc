"""For which video files a decoder is known to give exactly the frames that were asked for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from contracts import Array
from dataset.videos.columns import CODECS, CONTAINERS, PIXELS, Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The files for which a backend gives exactly the frames that were asked for."""

    kinds: dict[str, tuple[str, ...]]  # codec -> containers
    flags: Flags  # those that a file may have
    rotated: tuple[str, ...] = CONTAINERS  # those in which it turns rotated pictures
    plain: bool = False  # only 8 bits, 4:2:0, with even sides
    from_zero: bool = False  # only where the first frame's time is 0, to half a frame


_USUAL = {
    **dict.fromkeys(("h264", "hevc", "vp9"), ("mp4", "mkv")),
    "vp8": ("mkv",),
    "mpeg4": ("mp4", "mkv", "avi"),
    "mjpeg": ("avi",),
}
_NO_MATTER = Flags.VARIABLE_RATE | Flags.OBLONG_PIXELS  # to all of them
_ANY_VP9 = Flags.HIDDEN_FRAMES | Flags.SHOWN_AGAIN
EXACT = {
    "decord": Claim(
        kinds=_USUAL, flags=_NO_MATTER | Flags.UNALIGNED | _ANY_VP9, rotated=("mp4",), from_zero=True
    ),
    "torchcodec": Claim(
        # MPEG-4 with B-frames in avi: refused
        kinds={**_USUAL, "mpeg4": ("mp4", "mkv"), "av1": ("mp4", "mkv")},
        flags=_NO_MATTER
        | Flags.EDIT_LIST
        | Flags.OPEN_GOP
        | Flags.SEVERAL_STREAMS
        | Flags.UNALIGNED
        | _ANY_VP9,
    ),
    "nvdec": Claim(
        # AV1: no engine that has it was there to see
        kinds=dict.fromkeys(("h264", "hevc", "vp9"), ("mp4", "mkv")),
        flags=_NO_MATTER | Flags.EDIT_LIST | Flags.SEVERAL_STREAMS | Flags.UNALIGNED | Flags.HIDDEN_FRAMES,
        plain=True,
    ),
    "dali-video": Claim(
        kinds=dict.fromkeys(("h264", "hevc", "vp9"), ("mp4", "mkv")),  # AV1: refused on an H200 (DALI 2.4)
        flags=_NO_MATTER | Flags.EDIT_LIST | Flags.SEVERAL_STREAMS,
        rotated=(),
        plain=True,
    ),
}
"""Kept true by tests/unit/test_clip_readers.py, with numbered frames; of those that need a GPU by
tests/gpu/test_clips.py. A backend that is not here is exact nowhere: pyav decodes everything.
"""


def exact(backend: str, columns: Any, ids: Array) -> Array:
    """Return bool [B]: samples whose frames by the backend are known to be right.

    Those of pyav always are: it gives the right ones or none.
    """
    if backend == "pyav":
        return np.ones(len(ids), bool)
    claim = EXACT.get(backend, Claim(kinds={}, flags=Flags(0)))
    able = np.zeros((len(CODECS), len(CONTAINERS)), bool)
    for codec, containers in claim.kinds.items():
        able[CODECS.index(codec), [CONTAINERS.index(container) for container in containers]] = True
    good: Array = able[columns.codec[ids], columns.container[ids]] & (
        (columns.flags[ids].astype(int) & ~int(claim.flags)) == 0
    )
    turned = np.isin(columns.container[ids], [CONTAINERS.index(container) for container in claim.rotated])
    good &= turned | (columns.rotation[ids] == 0)
    if claim.plain:
        good &= np.isin(columns.pixels[ids], [PIXELS.index(name) for name in ("yuv420p", "yuvj420p")])
        good &= (columns.height[ids] % 2 == 0) & (columns.width[ids] % 2 == 0)
    if claim.from_zero:
        good &= ~late(columns, ids)
    return good


def notes(backend: str, columns: Any, able: Array) -> list[str]:
    """Return a line for each sort of file that the backend is not known to be exact for.

    One more says how many have pixels that are not square. `able`: bool by sample, those it is exact for.
    """
    sorts = Counter(sort_of(columns, sample) for sample in np.flatnonzero(~able).tolist())
    said = [
        f"{count:,} of {len(columns):,} videos are {sort}: decoded by pyav, {backend} is not exact there"
        for sort, count in sorts.items()
    ]
    if oblong := int(np.count_nonzero(columns.flags & Flags.OBLONG_PIXELS)):
        said.append(
            f"{oblong:,} of {len(columns):,} videos have pixels that are not square: trained on as stored; "
            "`ffmpeg -i FILE -vf scale=iw*sar:ih,setsar=1 NEW.mp4` makes them square"
        )
    return said


def late(columns: Any, ids: Array) -> Array:
    """Return bool [B], whether the first frame of a file is half a step or more away from time 0."""
    first = columns.frame_pts[columns.frame_offsets[columns.file[ids]]]
    found: Array = (
        np.abs(first * (columns.time_base_num[ids] / columns.time_base_den[ids]) * columns.fps[ids]) >= 0.5
    )
    return found


def sort_of(columns: Any, sample: int) -> str:
    """Return the sort of a file, as a person would say it."""
    words = [f"{CODECS[columns.codec[sample]]} in {CONTAINERS[columns.container[sample]]}"]
    words += [
        (flag.name or "").lower().replace("_", " ") for flag in Flags if flag & int(columns.flags[sample])
    ]
    words += ["rotated"] if columns.rotation[sample] else []
    words += (
        ["begins late"]
        if CONTAINERS[columns.container[sample]] in ("mp4", "mkv") and late(columns, np.array([sample])).any()
        else []
    )
    return ", ".join(words)
