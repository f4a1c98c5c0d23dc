"""The packets of a file, in the order of decoding -> its frames in the order of display, or why they have
none; must not know files or codecs' units."""

from __future__ import annotations

import numpy as np

from contracts import Array
from dataset.scan.manifest import Rejected
from dataset.videos.columns import Flags

PACKET = np.dtype(
    [
        ("pts", "i8"),
        ("key", "?"),
        # an edit list cuts it away
        ("discard", "?"),
        # it has no frame that is displayed, only one that others are coded from
        ("hidden", "?"),
        # it is displayed before a packet that is decoded earlier
        ("moves", "?"),
        ("damaged", "?"),
    ]
)
MOST_DAMAGED = 0.1
"""Share of a file's frames that may be damaged: where there are more, the file is left out and not clips."""
AGAIN = "encode it again: `ffmpeg -i FILE -vf setpts=N/FR/TB NEW.mp4`"


def require_onward(packets: Array) -> None:
    """Raise Rejected where a key frame is earlier than a packet that is decoded before it."""
    pts = packets["pts"]
    seen = ~packets["discard"] & ~packets["hidden"]
    before = np.maximum.accumulate(np.where(seen, pts, np.iinfo(np.int64).min))
    later = np.flatnonzero(packets["key"] & seen)
    later = later[later > packets["key"].argmax()]
    back = later[pts[later] < before[later - 1]]
    if len(back):
        raise Rejected(
            f"its times go back at packet {back[0]}, as where files were put one behind the other: "
            "`ffmpeg -i FILE -c copy NEW.mp4` counts them on"
        )


def is_odd(packets: Array) -> bool:
    """Return whether times rise in a group with packets that move, or fall in one without.

    A group goes from a key frame to the next. Packets that are damaged, or cut away, prove nothing.
    """
    begins = np.flatnonzero(packets["key"])
    if not len(begins) or packets["damaged"].any():
        return False
    falls = np.diff(packets["pts"], append=np.iinfo(np.int64).max) < 0
    falls[begins[1:] - 1] = False
    falling, moving, cut = (
        np.logical_or.reduceat(each, begins)
        for each in (falls, packets["moves"], packets["discard"] | packets["hidden"])
    )
    return bool((np.where(moving, ~falling, falling & ~cut)).any())


def require_ascending(times: Array) -> None:
    """Raise Rejected where frames, as they are displayed, have times that fall."""
    back = np.flatnonzero(np.diff(times) < 0)
    if len(back):
        raise Rejected(
            f"its times are not those of display at frame {back[0] + 1}: {AGAIN}"
        )


def display_order(packets: Array) -> tuple[Array, Array, Flags]:
    """Return (pts, keys, flags) of the frames that a player shows.

    It shows none before the first key frame, nor such that need frames before it.
    """
    if not packets["key"].any():
        raise Rejected("has no key frame")
    packets = packets[int(packets["key"].argmax()) :]
    packets = packets[(packets["pts"] >= packets["pts"][0]) & ~packets["hidden"]]
    pts = packets["pts"]
    places = np.flatnonzero(packets["key"])
    earliest_after = np.minimum.accumulate(pts[::-1])[::-1]
    inner = places[(places > 0) & (places < len(pts) - 1)]
    leading = (earliest_after[inner + 1] < pts[inner]).any()
    shown = packets[~packets["discard"]]
    shown = shown[shown["pts"].argsort(kind="stable")]
    times, keys, flags = apart(shown["pts"], shown["key"])
    return times, keys, flags | (Flags.OPEN_GOP if leading else Flags(0))


def apart(pts: Array, keys: Array) -> tuple[Array, Array, Flags]:
    """Return (pts, keys, flags) of frames whose times ascend, without two of one time.

    Where a few frames have the same time, all of them get times that no frame has, so that what is asked for
    at their places does not come, and is lost.
    """
    if not len(pts):
        raise Rejected("has no frames")
    same = np.diff(pts) == 0
    if not same.any():
        return pts, keys, Flags(0)
    doubled = np.append(same, False) | np.insert(same, 0, False)
    first = np.maximum.accumulate(
        np.where(np.insert(same, 0, False), 0, np.arange(len(pts)))
    )
    new = pts + np.where(doubled, np.arange(len(pts)) - first + 1, 0)
    if doubled.sum() > MOST_DAMAGED * len(pts) or (np.diff(new) <= 0).any():
        raise Rejected(
            f"{int(same.sum())} of {len(pts)} frames have the time of another: {AGAIN}"
        )
    return new, keys & ~doubled, Flags.DAMAGED
