"""For which video files a decoder is known to give exactly the frames that were asked for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from saturate.contracts import Array
from saturate.dataset.videos.columns import CODECS, CONTAINERS, PIXELS, Flags, Videos
from saturate.loaders import LOADERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The files for which a backend gives exactly the frames that were asked for."""

    kinds: dict[str, tuple[str, ...]]  # codec -> containers
    flags: Flags  # those that a file may have
    rotated: tuple[str, ...] = CONTAINERS  # those in which it turns rotated pictures
    plain: bool = False  # only 8 bits, 4:2:0, with even sides


def exact(backend: str, columns: Videos) -> Array:
    """Return bool [n]: samples whose frames by this loader are known to be right.

    Those of pyav always are: it gives the right ones or none. Another loader's file has a Claim as EXACT.
    tests/unit/test_clip_readers.py and, of those that need a GPU, tests/gpu/test_clips.py keep the claims true,
    with numbered frames.
    """
    count = len(columns.codec)
    spec = LOADERS.get(backend)
    if spec is None:  # a reader that somebody tries out: pyav decodes everything
        return np.zeros(count, bool)
    if spec.exact:
        return np.ones(count, bool)
    claim: Claim = import_module(spec.module).EXACT
    # axes: [codec, container]
    able = np.zeros((len(CODECS), len(CONTAINERS)), bool)
    for codec, containers in claim.kinds.items():
        for container in containers:
            able[CODECS.index(codec), CONTAINERS.index(container)] = True
    good: Array = able[columns.codec[:], columns.container[:]]
    good &= columns.flags[:].astype(int) & ~int(claim.flags) == 0
    turning = [CONTAINERS.index(container) for container in claim.rotated]
    good &= np.isin(columns.container[:], turning) | (columns.rotation[:] == 0)
    if claim.plain:
        plain = [PIXELS.index(name) for name in ("yuv420p", "yuvj420p")]
        good &= np.isin(columns.pixels[:], plain)
        good &= (columns.height[:] % 2 == 0) & (columns.width[:] % 2 == 0)
    return good


def notes(backend: str, columns: Videos, able: Array) -> list[str]:
    """Return a line for each sort of file that the backend is not known to be exact for.

    One more says how many have pixels that are not square. `able`: bool by sample, those it is exact for.
    """
    sorts = Counter(
        sort_of(columns, sample) for sample in np.flatnonzero(~able).tolist()
    )
    lines = [
        f"{count:,} of {len(columns):,} videos are {sort}: decoded by pyav, {backend} is not exact there"
        for sort, count in sorts.items()
    ]
    if oblong := int(np.count_nonzero(columns.flags & Flags.OBLONG_PIXELS)):
        lines.append(
            f"{oblong:,} of {len(columns):,} videos have pixels that are not square: trained on as stored; "
            "`ffmpeg -i FILE -vf scale=iw*sar:ih,setsar=1 NEW.mp4` makes them square"
        )
    return lines


def sort_of(columns: Videos, sample: int) -> str:
    """Return the sort of a file, as a person would say it."""
    codec, container = columns.codec[sample], columns.container[sample]
    words = [f"{CODECS[codec]} in {CONTAINERS[container]}"]
    words += [
        (flag.name or "").lower().replace("_", " ")
        for flag in Flags
        if flag & int(columns.flags[sample])
    ]
    if columns.rotation[sample]:
        words.append("rotated")
    return ", ".join(words)
