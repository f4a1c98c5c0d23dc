"""Folder or list of videos -> manifest: reads each frame's time once, in parallel; must not know clips."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import numpy as np

from saturate.contracts import MAX_PIXELS, Array, UserError
from saturate.dataset.scan import file_tree
from saturate.dataset.scan.byte_ranges import Files
from saturate.dataset.scan.cache import (
    NothingFound,
    Options,
    each_file,
    reading,
    remembered,
    require_few,
)
from saturate.dataset.scan.file_tree import Scan
from saturate.dataset.scan.lists import VERSION, class_names
from saturate.dataset.scan.manifest import (
    file_list,
    mapped,
    offsets_of,
    write_column,
    write_paths,
)
from saturate.dataset.videos.columns import RECORD, Videos
from saturate.dataset.videos.file_list import GRAMMAR, SAMPLE, read_list
from saturate.dataset.videos.packets import LEFT_OUT, Times, read
from saturate.system.resources import cores

CHUNK = 20  # files a task: one takes about 5 ms
SEGMENT = np.dtype([("file", "i8"), ("label", "i4"), ("first", "i8"), ("frames", "i8")])


def open_videos(
    data: Path,
    *,
    classes: Sequence[str] | None = None,
    **how: Unpack[Options],
) -> Videos:
    """Return the manifest of data/<class>/**/*, or of the list file `data`: from the cache, or from a new scan.

    dataset/videos/file_list.py says what a list is. A segment without a frame is left out. The rest is as in
    dataset.stores.folder.open_folder, but `workers` 0 = twice the cores.

    Raises UserError.
    """
    real = Path(os.path.realpath(data))
    if not real.exists():
        raise UserError(
            f"--data: {data} does not exist; videos are expected in {data}/<class>/, or a list of them"
        )
    listed = not real.is_dir()
    root = real.parent if listed else real

    max_pixels = how.get("max_pixels", MAX_PIXELS)

    def fill(scan: Scan) -> Sequence[str]:
        reject = scan.rejects
        with reading(data):
            if listed:
                scan.remember(real.name)
                files, samples, names, fixed = read_list(real, classes, scan)
                scan.remember_folders(files)
                file_tree.write_file_list(scan.made, [(files, [0] * len(files))])
                used = {names[label] for label in np.unique(samples["label"]).tolist()}
            else:
                scan.remember("")
                fixed = False
                labels = file_tree.labels(scan, classes, "video")
                file_tree.list_files(scan, labels)
                names = sorted(labels, key=labels.__getitem__)
                label = file_list(scan.made)[2]
                samples = np.zeros(len(label), SAMPLE)
                samples["file"] = np.arange(len(label))
                samples["end"] = np.inf
                samples["label"] = label
                used = set(labels)
        names = list(classes or names)
        records = _read_all(scan, max_pixels, how.get("workers", 0))
        rows = _segments(scan, samples, records)
        if not len(rows):
            raise NothingFound("video", str(data), reject)
        if not fixed:
            counts = np.bincount(rows["label"], minlength=len(names))
            for name, count in zip(names, counts, strict=True):
                if count or name not in used:
                    continue
                if listed:
                    why = f"class '{name}' has no video that can be read"
                    reject(real, why)
                else:
                    reject(real / name, "class without a video")
            if classes is None:
                # one without a video has no label: those behind it move up
                rows["label"] = (np.cumsum(counts > 0) - 1)[rows["label"]]
                names = [
                    name for name, count in zip(names, counts, strict=True) if count
                ]
        _write(scan.made, rows, records)
        return names

    key = [str(real), None if classes is None else list(classes), "videos", max_pixels]
    if listed:  # what it depends on beside the list
        key += [VERSION, GRAMMAR.separators, class_names(root, root / "train")]
    return remembered(Videos, data, key, fill, root, how)


def _read_all(scan: Scan, max_pixels: int, workers: int) -> Array:
    """Return a RECORD a file, with size -1 where it is left out.

    The frames of all files go to made/file_list.pts and made/file_list.keys.
    """
    made = scan.made
    records: Array = np.lib.format.open_memmap(
        made / "file_list.records", "w+", RECORD, (len(file_list(made)[2]),)
    )
    shown = Files(scan.root).shown

    def read_one(name: bytes) -> Times:
        times = read(shown(name))
        record = dict(zip(RECORD.names or (), times.record, strict=True))
        require_few(record["width"], record["height"], max_pixels)
        return times

    with (
        open(made / "file_list.pts", "wb") as pts,
        open(made / "file_list.keys", "wb") as keys,
    ):
        for first, (rows, some_pts, some_keys) in each_file(
            scan,
            scan.rejects,
            read_one,
            LEFT_OUT,
            _pack,
            shown,
            step=CHUNK,
            workers=workers or max(int(2 * cores()), 1),
            what="videos",
        ):
            records[first : first + len(rows)] = rows
            pts.write(some_pts)
            keys.write(some_keys)
    return records


def _pack(times: list[Times]) -> tuple[Array, bytes, bytes]:
    records, *frames = zip(*times, strict=True)
    pts, keys = (np.concatenate(each).tobytes() for each in frames)
    return np.array([*records], RECORD), pts, keys


def _segments(scan: Scan, samples: Array, records: Array) -> Array:
    """Return the SEGMENT of each sample that has a frame."""
    paths, offsets, _ = file_list(scan.made)
    all_pts = mapped(scan.made / "file_list.pts", "i8")
    ends = np.cumsum(records["count"])
    rows = []
    for file, label, start, end in samples:
        record = records[file]
        if record["size"] < 0:
            continue
        first, frames, what = 0, int(record["count"]), ""
        if end != np.inf or start:
            pts = all_pts[ends[file] - frames : ends[file]]
            tick_s = record["time_base_num"] / record["time_base_den"]
            # half a tick: times are rounded to ticks
            limits = pts[0] + np.array([start, end]) / tick_s - 0.5
            first, last = np.searchsorted(pts, limits).tolist()
            frames = last - first
            what = f"from {start:g} to {end:g} s: "
        if frames < 1:
            name = paths[offsets[file] : offsets[file + 1]].tobytes()
            has = f"{record['count']} in {record['duration']:.3g} s"
            path = os.path.join(os.fsencode(scan.root), name)
            scan.rejects(path, f"{what}no frame (the video has {has})")
        else:
            rows.append((file, label, first, frames))
    return np.array(rows, SEGMENT)


def _write(made: Path, samples: Array, records: Array) -> None:
    """Write the columns, without the files that are left out."""
    good = records["size"] >= 0
    write_paths(made, good)
    values = {
        "label": samples["label"],
        "file": (np.cumsum(good) - 1)[samples["file"]],
        "first": samples["first"],
        "frames": samples["frames"],
        "frame_offsets": offsets_of(records["count"][good]),
        "frame_pts": mapped(made / "file_list.pts", "i8"),
        "frame_keys": mapped(made / "file_list.keys", "?"),
        **{name: records[name][samples["file"]] for name in RECORD.names or ()},
    }
    for name, value in values.items():
        write_column(made, name, Videos.COLUMNS[name], value)
