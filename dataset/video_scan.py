"""Folder or list of videos -> manifest: reads the time of every frame once, in parallel; must not know pixels, clips or ranks.

Nothing is decoded: what the packets of a file say is enough, and what a container's header says of its frames is often wrong.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import av
import av.logging
import numpy as np
from av.stream import Discard, Disposition

from contracts import Mistake
from dataset.container import HEAD, declared_bytes, open_video
from dataset.headers import Rejected
from dataset.manifest import LISTING, Array, Rejects, create_column
from dataset.scan import Parser, Progress, each_file, remembered
from dataset.sources import folder as source
from dataset.sources.listing import SAMPLE, read_list
from dataset.videos import CODECS, CONTAINERS, FULL_RANGE, PIXELS, RECORD, Flags, Videos

CHUNK = 20  # files a task: one takes about 5 ms
PIECE = 1 << 22  # values by which a column is filled: bounds the memory
_FORMATS = dict(
    zip(("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "avi", "mpegts", "mpeg", "flv", "asf", "ogg"), range(len(CONTAINERS)), strict=True)
)
"""FFmpeg's name of a container -> index into CONTAINERS."""
_PICTURE = re.compile(rb"\x00\x00\x01\xb6(.)", re.DOTALL)  # of MPEG-4; the two highest bits of what follows are its kind
_PLACEHOLDER = 19  # bytes: a longer MPEG-4 packet is a frame, as FFmpeg's mpeg4_unpack_bframes decides it
_TURNED = re.compile(r"display ?matrix: rotation of (-?[\d.]+|nan)", re.IGNORECASE)  # in FFmpeg's description of a stream
_START = re.compile(rb"\x00\x00\x01")
_FIELDS = re.compile(r"(top|bottom) (coded )?first")  # likewise, of interlaced ones


class Times(NamedTuple):
    """What one file has: a row of RECORD, and of each frame in display order its time in ticks and whether it is a key frame."""

    record: tuple[Any, ...]
    pts: Array
    keys: Array


LEFT_OUT = Times((-1, *[0] * (len(RECORD.names or ()) - 1)), np.zeros(0, np.int64), np.zeros(0, bool))


def open_videos(
    data: Path,
    *,
    cache: Path,
    classes: Sequence[str] | None = None,
    min_frames: int = 1,
    rescan: bool = False,
    workers: int = 0,
    progress: Progress | None = None,
) -> Videos:
    """The manifest of data/<class>/**/*, or of the list file `data` (dataset/sources/listing.py): from `cache`, or from a new scan.

    A sample with fewer than `min_frames` frames is left out. The rest is as in dataset.scan.open_folder, but `workers` 0 = twice
    the cores. Raises Mistake.
    """
    real = Path(os.path.realpath(data))
    if not real.exists():
        raise Mistake(f"--data: {data} does not exist; videos are expected in {data}/<class>/, or a list of them")
    listed = not real.is_dir()
    root = real.parent if listed else real

    def fill(made: Path, rejects: Rejects, visits: list[source.Visit], say: Progress) -> Sequence[str]:
        visits.append(source.visit(os.fsencode(root), os.fsencode(real.name) if listed else b"")[0])
        source.settle(visits[0][1])
        if listed:
            files, samples, used = read_list(real, classes)
            _write_listing(files, made)
            total = len(files)
        else:
            labels = source.labels(real, classes, "videos")
            total = source.list_files(real, labels, made, visits, rejects, say)
            samples = np.zeros(total, SAMPLE)
            samples["file"], samples["end"] = np.arange(total), np.inf
            samples["label"] = np.fromfile(made / "listing.labels", LISTING["labels"])
            used = sorted(labels, key=labels.__getitem__)
        records = _read_all(root, total, made, workers, rejects, say)
        kept = _segments(root, samples, records, made, min_frames, rejects)
        if not len(kept):
            raise Mistake(f"--data: no video in {data}; left out: {rejects.count}{rejects.first and ', first '}{rejects.first}")
        if not listed:
            counts = np.bincount(kept["label"], minlength=len(classes or used))
            for name, label in labels.items():
                if not counts[label]:
                    rejects(os.fsencode(real / name), "class folder without a video")
            if classes is None:  # a folder without a video has no label: those behind it move up
                kept["label"] = (np.cumsum(counts > 0) - 1)[kept["label"]]
                used = [name for name in used if counts[labels[name]]]
        _write(kept, records, made)
        return used if classes is None else classes

    key = [str(real), None if classes is None else list(classes), "videos", min_frames]
    return remembered(Videos, data, key, fill, root=root, cache=cache, rescan=rescan, progress=progress)


def read(path: bytes) -> Times:
    """What the packets of one file say. Raises Rejected, and nothing else, when it is no video that can be played from its first frame."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise Rejected("broken link" if os.path.islink(path) else f"cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise Rejected("no regular file")
    if not status.st_size:
        raise Rejected("empty file")
    try:
        with open(path, "rb") as plain:
            declared = declared_bytes(plain.read(HEAD))
        if declared is not None and status.st_size < declared:
            raise Rejected(f"cut short: {status.st_size:,} of {declared:,} bytes")
        with open_video(path) as file:
            return _times(file, status.st_size)
    except (av.error.FFmpegError, OSError) as error:
        raise Rejected(f"cannot be read: {error.strerror}") from None


def _times(file: Any, size: int) -> Times:
    if file.format.name not in _FORMATS:
        raise Rejected(f"no known video container (read as {file.format.name})")
    videos = [stream.index for stream in file.streams.video if not stream.disposition & Disposition.attached_pic]
    stream = file.streams.best("video")
    if stream is None or stream.index not in videos:
        raise Rejected("has no video")
    context, container = stream.codec_context, CONTAINERS[_FORMATS[file.format.name]]
    if context is None or context.format is None or not (context.width and context.height):
        raise Rejected("has a video stream of an unknown codec")
    codec, described = context.codec.canonical_name, _described(file, stream.index)
    rotation = _rotation(described)
    packets, pictures, gradual = _packets(file, stream, codec)
    if not len(packets):
        raise Rejected("has no frames")
    if container == "avi" and codec != "mpeg4" and context.has_b_frames and (np.diff(packets["pts"]) > 0).all():
        raise Rejected(f"{codec} with B-frames in avi: nothing says when they are displayed")
    packed = len(pictures) > 0
    pts, keys, flags = _unpacked(packets, pictures) if packed else _display_order(packets)
    if packets["discard"].any() or (container == "mp4" and stream.frames > len(packets)):
        flags |= Flags.EDIT_LIST
    if len(videos) > 1:
        flags |= Flags.SEVERAL_STREAMS
    if gradual:
        flags |= Flags.GRADUAL_REFRESH
    if _FIELDS.search(described):
        flags |= Flags.INTERLACED
    steps, tick = np.diff(pts), stream.time_base
    if len(pts) > 2 and np.abs(pts - np.linspace(pts[0], pts[-1], len(pts))).max() > 1.001:  # each may be rounded to a tick
        flags |= Flags.VARIABLE_RATE
    step = float(np.median(steps) if flags & Flags.VARIABLE_RATE else steps.mean()) if len(steps) else 0.0
    height, width = (context.height, context.width) if rotation % 180 == 0 else (context.width, context.height)
    record = (
        size,
        stream.index,
        _index(CODECS, codec),
        CONTAINERS.index(container),
        _index(PIXELS, context.pix_fmt),
        context.format.components[0].bits,
        int(context.colorspace),
        context.color_range == FULL_RANGE or context.pix_fmt.startswith("yuvj"),
        height,
        width,
        rotation,
        int(flags),
        tick.numerator,
        tick.denominator,
        tick.denominator / (tick.numerator * step) if step else 0.0,
        (int(pts[-1] - pts[0]) + step) * tick.numerator / tick.denominator,
        len(pts),
    )
    return Times(record, pts, keys)


def _index(names: tuple[str, ...], name: str) -> int:
    return names.index(name if name in names else "other")


def _described(file: Any, stream: int) -> str:
    """FFmpeg's description of a stream, which has what PyAV tells of decoded frames alone."""
    before = av.logging.get_level()
    av.logging.set_level(av.logging.INFO)
    try:
        described = file.dumps_format()
    finally:
        av.logging.set_level(before)
    return re.split(rf"Stream #0:{stream}\b", described)[-1].partition("Stream #0:")[0]


def _rotation(described: str) -> int:
    """0, 90, 180 or 270 degrees counter-clockwise."""
    found = _TURNED.search(described)
    if found is not None and found[1] != "nan":
        return round(float(found[1]) / 90) * 90 % 360
    return 0


PACKET = np.dtype([("pts", "i8"), ("key", "?"), ("discard", "?"), ("hidden", "?")])
"""Discard: an edit list cuts it away. Hidden: it has no frame that is displayed, only one that others are coded from."""


def _packets(file: Any, stream: Any, codec: str) -> tuple[Array, Array, bool]:
    """(a PACKET for each packet, pictures, whether some key frame of H.264 is no picture of its own), in the order of decoding.

    Pictures is empty but for packed MPEG-4: then uint8, 0 to 3 for each I, P, B and S picture. Raises Rejected, or what PyAV raises.
    """
    for other in file.streams:
        if other.index != stream.index:
            other.discard = Discard.all
    found: list[tuple[int, bool, bool, bool]] = []
    pictures, packed, waiting, gradual = bytearray(), False, False, False
    length_bytes = _length_bytes(stream.codec_context.extradata)
    for packet in file.demux(stream):
        if not packet.size:  # the end
            continue
        if packet.pts is None:
            raise Rejected(f"packet {len(found)} has no time")
        if packet.is_corrupt:
            raise Rejected(f"cut short or damaged: packet {len(found)} is not whole")
        hidden = codec == "vp8" and not memoryview(packet)[0] >> 4 & 1  # RFC 6386, 9.1
        found.append((packet.pts, packet.is_keyframe, packet.is_discard, hidden))
        if codec == "h264" and packet.is_keyframe and not gradual:
            gradual = not _is_whole(memoryview(packet), length_bytes)
        if codec == "mpeg4":
            kinds = [match[1][0] >> 6 for match in _PICTURE.finditer(packet)]
            if waiting and len(kinds) == 1 and packet.size <= _PLACEHOLDER:
                waiting = False
                continue
            packed, waiting = packed or len(kinds) > 1, waiting or len(kinds) > 1
            pictures.extend(kinds)
    if waiting:  # the last one needs a packet behind it to be decoded
        del pictures[-1:]
    return np.array(found, PACKET), np.frombuffer(bytes(pictures) if packed else b"", np.uint8), gradual


def _length_bytes(extradata: bytes | None) -> int:
    """Bytes in front of each NAL unit of H.264 that say how long it is (ISO 14496-15, 5.3.3.1); 0: start codes stand between them."""
    return (extradata[4] & 3) + 1 if extradata and len(extradata) > 4 and extradata[0] == 1 else 0


def _is_whole(packet: memoryview, length_bytes: int) -> bool:
    """Whether the first slice of an H.264 packet needs no other picture (H.264, 7.3.2.8 and 7.3.3); also where it cannot be told."""
    at = 0
    while True:
        if length_bytes:
            begin, at = at + length_bytes, at + length_bytes + int.from_bytes(packet[at : at + length_bytes], "big")
        else:
            code = _START.search(packet, at)
            begin = at = code.end() if code else len(packet)
        if begin >= len(packet):
            return True
        kind = packet[begin] & 31
        if kind in (1, 5):
            return kind == 5 or _slice_type(packet[begin + 1 : begin + 9]) % 5 in (2, 4)


def _slice_type(head: memoryview) -> int:
    """The second of the Exp-Golomb numbers that a slice begins with."""
    bits, at, value = f"{int.from_bytes(head, 'big'):0{8 * len(head)}b}", 0, 0
    for _ in range(2):
        zeros = bits.find("1", at) - at
        if zeros < 0 or at + 2 * zeros >= len(bits):
            return 2
        value, at = int(bits[at + zeros : at + 2 * zeros + 1], 2) - 1, at + 2 * zeros + 1
    return value


def _display_order(packets: Array) -> tuple[Array, Array, Flags]:
    """(pts, keys, flags) of the frames that a player shows: none before the first key frame, nor such that need frames before it."""
    if not packets["key"].any():
        raise Rejected("has no key frame")
    packets = packets[int(packets["key"].argmax()) :]
    packets = packets[(packets["pts"] >= packets["pts"][0]) & ~packets["hidden"]]
    pts, places = packets["pts"], np.flatnonzero(packets["key"])
    earliest_after = np.minimum.accumulate(pts[::-1])[::-1]
    inner = places[(places > 0) & (places < len(pts) - 1)]
    flags = Flags.OPEN_GOP if (earliest_after[inner + 1] < pts[inner]).any() else Flags(0)
    shown = packets[~packets["discard"]]
    shown = shown[shown["pts"].argsort(kind="stable")]
    return _checked(shown["pts"]), shown["key"], flags


def _unpacked(packets: Array, pictures: Array) -> tuple[Array, Array, Flags]:
    """The same for packed MPEG-4, whose packets' times are right as a set alone: a frame's place is told by the kinds of pictures."""
    places = np.arange(len(pictures))
    ahead = np.flatnonzero(pictures != 2)  # I, P and S: displayed when the next of them has been decoded, behind the B between
    until = np.append(ahead[1:], len(pictures))
    places[ahead] = until - 1
    between = pictures == 2
    places[between] -= 1
    if len(pictures) != len(packets) or not len(ahead) or ahead[0] != 0:
        raise Rejected(f"packed B-frames: {len(pictures)} pictures in {len(packets)} packets")
    keys = np.zeros(len(pictures), bool)
    keys[places] = pictures == 0
    behind_key = np.append(pictures[1:], 0) == 2
    leading = (behind_key & (pictures == 0))[1:].any()
    return _checked(np.sort(packets["pts"])), keys, Flags.PACKED_B | (Flags.OPEN_GOP if leading else Flags(0))


def _checked(pts: Array) -> Array:
    if not len(pts):
        raise Rejected("has no frames")
    if same := int((np.diff(pts) <= 0).sum()):
        raise Rejected(f"{same} of {len(pts)} frames have the time of another")
    return pts


def _write_listing(files: list[bytes], made: Path) -> None:
    """The files of a list, as sources/folder.py leaves those of a folder."""
    (made / "listing.paths").write_bytes(b"".join(files))
    np.cumsum([0, *map(len, files)], dtype=LISTING["offsets"]).tofile(made / "listing.offsets")
    np.zeros(len(files), LISTING["labels"]).tofile(made / "listing.labels")


def _read_all(root: Path, total: int, made: Path, workers: int, rejects: Rejects, say: Progress) -> Array:
    """A RECORD a file, size -1 where it is left out; the frames of all files go to made/listing.pts and made/listing.keys."""
    if not total:
        return np.zeros(0, RECORD)
    records: Array = np.lib.format.open_memmap(made / "listing.records", mode="w+", dtype=RECORD, shape=(total,))
    parser = Parser(read, LEFT_OUT, _pack, root, made, step=CHUNK)
    count = min(workers or 2 * len(os.sched_getaffinity(0)), -(-total // CHUNK))
    with open(made / "listing.pts", "wb") as pts, open(made / "listing.keys", "wb") as keys:
        for first, (rows, some_pts, some_keys) in each_file(parser, total, count, rejects, say):
            records[first : first + len(rows)] = rows
            pts.write(some_pts)
            keys.write(some_keys)
    return records


def _pack(found: list[Times]) -> tuple[Array, Array, Array]:
    if not found:
        return np.zeros(0, RECORD), *LEFT_OUT[1:]
    records, pts, keys = zip(*found, strict=True)
    return np.array(list(records), RECORD), np.concatenate(pts), np.concatenate(keys)


def _segments(root: Path, samples: Array, records: Array, made: Path, min_frames: int, rejects: Rejects) -> Array:
    """The samples that have enough frames, as (file, label, first, frames)."""
    paths, offsets = (np.fromfile(made / f"listing.{name}", LISTING[name]) for name in ("paths", "offsets"))
    all_pts = np.memmap(made / "listing.pts", np.int64, "r") if records["count"].any() else np.zeros(0, np.int64)
    ends = np.cumsum(records["count"])
    kept = []
    for file, label, start, end in samples:
        record = records[file]
        if record["size"] < 0:
            continue
        first, frames, what = 0, int(record["count"]), ""
        if end != np.inf or start:
            pts, tick_s = all_pts[ends[file] - frames : ends[file]], record["time_base_num"] / record["time_base_den"]
            first, last = np.searchsorted(pts, pts[0] + np.array([start, end]) / tick_s - 0.5)  # half a tick: times are rounded to ticks
            first, frames, what = int(first), int(last - first), f"from {start:g} to {end:g} s: "
        if frames < max(min_frames, 1):
            path = os.fsencode(root) + b"/" + paths[offsets[file] : offsets[file + 1]].tobytes()
            rejects(
                path,
                f"{what}{frames} of at least {max(min_frames, 1)} frames (the video has {record['count']} in {record['duration']:.3g} s)",
            )
        else:
            kept.append((file, label, first, frames))
    return np.array(kept, [("file", "i8"), ("label", "i4"), ("first", "i8"), ("frames", "i8")])


def _write(samples: Array, records: Array, made: Path) -> None:
    """The columns, without the files that are left out."""
    good = records["size"] >= 0
    paths, offsets = (np.fromfile(made / f"listing.{name}", LISTING[name]) for name in ("paths", "offsets"))
    lengths, counts = np.diff(offsets), records["count"][good]
    values = {
        "path_bytes": paths[np.repeat(good, lengths)],
        "path_offsets": np.cumsum([0, *lengths[good]]),
        "label": samples["label"],
        "file": (np.cumsum(good) - 1)[samples["file"]],
        "first": samples["first"],
        "frames": samples["frames"],
        "frame_offsets": np.cumsum([0, *counts]),
        "frame_pts": np.memmap(made / "listing.pts", np.int64, "r"),
        "frame_keys": np.memmap(made / "listing.keys", bool, "r"),
        **{name: records[name][samples["file"]] for name in RECORD.names or ()},
    }
    for name, dtype in Videos.COLUMNS.items():
        column = create_column(made, name, dtype, len(values[name]))
        for first in range(0, len(column), PIECE):
            column[first : first + PIECE] = values[name][first : first + PIECE]
