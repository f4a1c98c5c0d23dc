"""The packets of a file, in the order of decoding -> its frames in the order of display, or why they have
none; must not know files or codecs' units."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from contracts import Array
from dataset.scan.manifest import Rejected
from dataset.videos.columns import Flags
from dataset.videos.nal_units import NO, SURE

PACKET = np.dtype(
    [
        ("pts", "i8"),
        ("key", "?"),
        ("discard", "?"),  # an edit list cuts it away
        (
            "hidden",
            "?",
        ),  # it has no frame that is displayed, only one that others are coded from
        (
            "own",
            "i1",
        ),  # whether it is a key frame by its units: NO, MAY or SURE of units.py; -1: unknown
        (
            "moves",
            "?",
        ),  # whether it may be displayed before a packet that is decoded earlier
        ("place", "i8"),  # among all packets of the stream, in the order of decoding
        ("damaged", "?"),  # it is not whole
    ]
)
MOST_DAMAGED = 0.1
"""Share of a file's frames that may be damaged: where there are more, the file is left out and not clips."""
AGAIN = "encode it again: `ffmpeg -i FILE -vf setpts=N/FR/TB NEW.mp4`"


def settle_keys(packets: Array, marked: Array | None) -> Flags:
    """Make packets["key"] what the units say, where they do, and return WRONG_KEYS where marks differ.

    `marked`: bool for each packet, whether its container says that it is a key frame; None: it does not.
    """
    own = packets["own"]
    packets["key"] = np.where(own < 0, packets["key"], own != NO)
    if marked is None or len(marked) != len(packets):
        return Flags(0)
    wrong = marked & (own == NO) | ~marked & (own == SURE)
    return Flags.WRONG_KEYS if wrong.any() else Flags(0)


def require_order(
    packets: Array, places: Callable[[int, int], Sequence[int | None]] | None
) -> None:
    """Raise Rejected where the order of the packets' times is not that in which FFmpeg displays them.

    `places(begin, end)`: as dataset.videos.nal_units.display_places, of packets from a key frame to the next;
    None: `places_by_kind` has them.
    Groups whose times show that their writer knew of an order of display are not looked into, nor those
    where packets are damaged, beside which others may be missing.
    """
    begins = np.flatnonzero(packets["key"])
    if not len(begins):
        return
    pts = packets["pts"]
    seen = ~packets["discard"] & ~packets["hidden"]
    _require_onward(pts, seen, begins)
    ends = np.append(begins[1:], len(packets))
    rises = np.append(np.diff(pts) > 0, True)
    rises[ends - 1] = True
    rising = np.logical_and.reduceat(rises, begins)
    moves = np.logical_or.reduceat(packets["moves"], begins)
    whole = np.logical_and.reduceat(
        seen, begins
    )  # what an edit list cuts away may have times of others
    readable_key = packets["own"][begins] >= 0
    order = np.argsort(pts, kind="stable")
    twins = order[:-1][np.diff(pts[order]) == 0]
    doubled = np.zeros(len(begins), bool)
    doubled[np.maximum(np.searchsorted(begins, twins, side="right") - 1, 0)] = True
    # a damaged packet does not say that it moves: then times that fall prove nothing
    readable = np.logical_and.reduceat(packets["own"] >= 0, begins)
    odd = np.where(moves, rising | doubled & whole, ~rising & whole & readable)
    damaged = packets["damaged"]
    # FFmpeg's parsers mark the packet that they hold, which may be a neighbour
    near = damaged | np.append(damaged[1:], False) | np.insert(damaged[:-1], 0, False)
    odd &= ~np.logical_or.reduceat(near, begins)
    for group in np.flatnonzero(readable_key & odd).tolist():
        begin = int(begins[group])
        end = int(ends[group])
        numbers: Sequence[int | None] = range(end - begin)
        if moves[group]:
            between = packets["moves"][begin:end]
            numbers = (
                places_by_kind(between).tolist()
                if places is None
                else places(begin, end)
            )
        if not _agrees(pts[begin:end], numbers):
            what = (
                "those of decoding, not of display,"
                if rising[group]
                else "not in the order of display"
            )
            raise Rejected(
                f"its times are {what} at packets {begin} to {end - 1}: {AGAIN}"
            )


def places_by_kind(between: Array) -> Array:
    """Return the place of display of each picture of MPEG, in the order of decoding; `between`: B, bool.

    B is displayed when it is decoded; I, P and S when the next of them is, behind the B between them.
    """
    places = np.arange(len(between))
    ahead = np.flatnonzero(~between)
    places[ahead] = np.append(ahead[1:], len(between)) - 1
    places[between] -= 1
    return places


def _require_onward(pts: Array, seen: Array, begins: Array) -> None:
    """Raise Rejected where a key frame is earlier than a packet that is decoded before it."""
    before = np.maximum.accumulate(np.where(seen, pts, np.iinfo(np.int64).min))
    later = begins[1:][seen[begins[1:]]]
    back = later[pts[later] < before[later - 1]]
    if len(back):
        raise Rejected(
            f"its times go back at packet {back[0]}, as where files were put one behind the other: "
            "`ffmpeg -i FILE -c copy NEW.mp4` counts them on"
        )


def _agrees(pts: Array, numbers: Sequence[int | None]) -> bool:
    """Return whether the numbers that are known do not fall in the order of the times."""
    is_known = np.array([number is not None for number in numbers])
    known = np.array([number for number in numbers if number is not None])
    order = np.lexsort((known, pts[is_known]))
    return bool((np.diff(known[order]) >= 0).all())


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
    flags = (
        Flags.OPEN_GOP if (earliest_after[inner + 1] < pts[inner]).any() else Flags(0)
    )
    shown = packets[~packets["discard"]]
    shown = shown[shown["pts"].argsort(kind="stable")]
    apart, doubled = _apart(shown["pts"])
    return (
        apart,
        shown["key"] & ~doubled,
        flags | (Flags.DAMAGED if doubled.any() else Flags(0)),
    )


def unpacked(packets: Array, pictures: Array) -> tuple[Array, Array, Flags]:
    """Return the frames of packed MPEG-4, as display_order does for others.

    Its packets' times are right as a set alone: the kinds of pictures tell a frame's place.
    """
    between = pictures == 2
    places = places_by_kind(between)
    if len(pictures) != len(packets) or not len(pictures) or between[0]:
        raise Rejected(
            f"packed B-frames: {len(pictures)} pictures in {len(packets)} packets"
        )
    keys = np.zeros(len(pictures), bool)
    keys[places] = pictures == 0
    behind_key = np.append(pictures[1:], 0) == 2
    leading = (behind_key & (pictures == 0))[1:].any()
    pts = np.sort(packets["pts"])
    _require_apart(pts, np.diff(pts) <= 0)
    return pts, keys, Flags.PACKED_B | (Flags.OPEN_GOP if leading else Flags(0))


def _require_apart(pts: Array, same: Array) -> None:
    if not len(pts):
        raise Rejected("has no frames")
    if same.any():
        raise Rejected(
            f"{int(same.sum())} of {len(pts)} frames have the time of another: {AGAIN}"
        )


def _apart(pts: Array) -> tuple[Array, Array]:
    """Return (times, which of them are not the file's) of ascending ones.

    Where a few frames have the same time, all of them get times that no frame has, so that what is asked for
    at their places does not come, and is lost.
    """
    same = np.diff(pts) == 0
    if not same.any() and len(pts):
        return pts, np.zeros(len(pts), bool)
    doubled = np.append(same, False) | np.insert(same, 0, False)
    first = np.maximum.accumulate(
        np.where(np.insert(same, 0, False), 0, np.arange(len(pts)))
    )
    apart = pts + np.where(doubled, np.arange(len(pts)) - first + 1, 0)
    if doubled.sum() > MOST_DAMAGED * len(pts) or (np.diff(apart) <= 0).any():
        _require_apart(pts, same)
    return apart, doubled
