"""The packets of a file, in the order of decoding -> its frames in the order of display, or why they have
none; must not know files or codecs' units."""

from __future__ import annotations

import numpy as np

from saturate.contracts import Array
from saturate.dataset.scan.manifest import Rejected
from saturate.dataset.videos.columns import Flags

PACKET = np.dtype(
    [
        ("pts", "i8"),
        ("key", "?"),
        # an edit list cuts it away
        ("discard", "?"),
        # it has no frame that is displayed, only one that others are coded from
        ("hidden", "?"),
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
    times, keys, flags = distinct(shown["pts"], shown["key"])
    return times, keys, flags | (Flags.OPEN_GOP if leading else Flags(0))


def distinct(pts: Array, keys: Array) -> tuple[Array, Array, Flags]:
    """Return (pts, keys, flags) of frames whose times ascend, with one for those that have the same time."""
    if not len(pts):
        raise Rejected("has no frames")
    times, first = np.unique(pts, return_index=True)
    same = len(pts) - len(times)
    if same > MOST_DAMAGED * len(pts):
        raise Rejected(
            f"has {same} of {len(pts)} frames at the time of another: {AGAIN}"
        )
    return times, keys[first], Flags.DAMAGED if same else Flags(0)
