"""Folder or list of videos -> manifest: reads each frame's time once, in parallel; must not know clips."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from saturate.contracts import MAX_PIXELS, Array, UserError
from saturate.dataset.scan import file_tree
from saturate.dataset.scan.byte_ranges import Files
from saturate.dataset.scan.cache import (
    Parser,
    Progress,
    each_file,
    nothing_found,
    reading,
    remembered,
    require_few,
)
from saturate.dataset.scan.lists import VERSION, class_names
from saturate.dataset.scan.manifest import FILE_LIST, Rejects, create_column
from saturate.dataset.videos.columns import RECORD, Videos
from saturate.dataset.videos.file_list import GRAMMAR, SAMPLE, read_list
from saturate.dataset.videos.packets import LEFT_OUT, Times, read
from saturate.system.resources import cores

CHUNK = 20  # files a task: one takes about 5 ms
PIECE = 1 << 22  # values by which a column is filled: bounds the memory


def open_videos(
    data: Path,
    *,
    cache: Path,
    classes: Sequence[str] | None = None,
    rescan: bool = False,
    max_pixels: int = MAX_PIXELS,
    workers: int = 0,
    progress: Progress | None = None,
) -> Videos:
    """Return the manifest of data/<class>/**/*, or of the list file `data`: from `cache`, or from a new scan.

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

    def fill(
        made: Path, rejects: Rejects, visits: list[file_tree.Visit], say: Progress
    ) -> Sequence[str]:
        with reading(data):
            within = os.fsencode(real.name) if listed else b""
            file_tree.remember(visits, os.fsencode(root), within)
            if listed:
                files, samples, names, fixed = read_list(real, classes, rejects)
                file_tree.remember_folders(visits, root, file_tree.folders_of(files))
                file_tree.write_file_list(files, made)
                total = len(files)
                used = {names[label] for label in np.unique(samples["label"]).tolist()}
            else:
                fixed = False
                labels = file_tree.labels(real, classes, visits, rejects, "video")
                total = file_tree.list_files(real, labels, made, visits, rejects, say)
                names = sorted(labels, key=labels.__getitem__)
                samples = np.zeros(total, SAMPLE)
                samples["file"] = np.arange(total)
                samples["end"] = np.inf
                samples["label"] = _file_list(made, "labels")
                used = set(labels)
        names = list(classes or names)
        records = _read_all(
            root, total, made, workers, rejects, say, max_pixels=max_pixels
        )
        rows = _segments(root, samples, records, made, rejects)
        if not len(rows):
            raise nothing_found("video", str(data), rejects)
        if not fixed:
            counts = np.bincount(rows["label"], minlength=len(names))
            for name in (each for each in names if each in used):
                if counts[names.index(name)]:
                    continue
                if listed:
                    why = f"class '{name}' has no video that can be read"
                    rejects(os.fsencode(real), why)
                else:
                    rejects(os.fsencode(real / name), "class without a video")
            if classes is None:
                # one without a video has no label: those behind it move up
                rows["label"] = (np.cumsum(counts > 0) - 1)[rows["label"]]
                names = [
                    name for name, count in zip(names, counts, strict=True) if count
                ]
        _write(rows, records, made)
        return names

    key = [str(real), None if classes is None else list(classes), "videos", max_pixels]
    if listed:  # what it depends on beside the list
        key += [VERSION, GRAMMAR.separators, class_names(root, root / "train")]
    return remembered(
        Videos,
        data,
        key,
        fill,
        root=root,
        cache=cache,
        rescan=rescan,
        progress=progress,
    )


def _read_all(
    root: Path,
    total: int,
    made: Path,
    workers: int,
    rejects: Rejects,
    say: Progress,
    *,
    max_pixels: int,
) -> Array:
    """Return a RECORD a file, with size -1 where it is left out.

    The frames of all files go to made/file_list.pts and made/file_list.keys.
    """
    if not total:
        return np.zeros(0, RECORD)
    records: Array = np.lib.format.open_memmap(
        made / "file_list.records", mode="w+", dtype=RECORD, shape=(total,)
    )
    shown = Files(root).shown

    def read_one(name: bytes) -> Times:
        times = read(shown(name))
        record = dict(zip(RECORD.names or (), times.record, strict=True))
        require_few(record["width"], record["height"], max_pixels)
        return times

    parser = Parser(read_one, LEFT_OUT, _pack, shown, made, step=CHUNK, what="videos")
    count = min(workers or max(int(2 * cores()), 1), -(-total // CHUNK))
    with (
        open(made / "file_list.pts", "wb") as pts,
        open(made / "file_list.keys", "wb") as keys,
    ):
        for first, (rows, some_pts, some_keys) in each_file(
            parser, total, count, rejects, say
        ):
            records[first : first + len(rows)] = rows
            pts.write(some_pts)
            keys.write(some_keys)
    return records


def _pack(times: list[Times]) -> tuple[Array, Array, Array]:
    if not times:
        return np.zeros(0, RECORD), *LEFT_OUT[1:]
    records, pts, keys = zip(*times, strict=True)
    return np.array(list(records), RECORD), np.concatenate(pts), np.concatenate(keys)


def _file_list(made: Path, name: str) -> Array:
    return np.fromfile(made / f"file_list.{name}", FILE_LIST[name])


def _segments(
    root: Path, samples: Array, records: Array, made: Path, rejects: Rejects
) -> Array:
    """Return the samples that have a frame, as (file, label, first, frames)."""
    paths, offsets = _file_list(made, "paths"), _file_list(made, "offsets")
    all_pts = (
        np.memmap(made / "file_list.pts", np.int64, "r")
        if records["count"].any()
        else np.zeros(0, np.int64)
    )
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
            path = os.path.join(os.fsencode(root), name)
            rejects(
                path,
                f"{what}no frame (the video has {record['count']} in {record['duration']:.3g} s)",
            )
        else:
            rows.append((file, label, first, frames))
    return np.array(
        rows, [("file", "i8"), ("label", "i4"), ("first", "i8"), ("frames", "i8")]
    )


def _write(samples: Array, records: Array, made: Path) -> None:
    """Write the columns, without the files that are left out."""
    good = records["size"] >= 0
    paths, offsets = _file_list(made, "paths"), _file_list(made, "offsets")
    lengths = np.diff(offsets)
    counts = records["count"][good]
    values = {
        "path_bytes": paths[np.repeat(good, lengths)],
        "path_offsets": np.cumsum([0, *lengths[good]]),
        "label": samples["label"],
        "file": (np.cumsum(good) - 1)[samples["file"]],
        "first": samples["first"],
        "frames": samples["frames"],
        "frame_offsets": np.cumsum([0, *counts]),
        "frame_pts": np.memmap(made / "file_list.pts", np.int64, "r"),
        "frame_keys": np.memmap(made / "file_list.keys", bool, "r"),
        **{name: records[name][samples["file"]] for name in RECORD.names or ()},
    }
    for name, dtype in Videos.COLUMNS.items():
        column = create_column(made, name, dtype, len(values[name]))
        for first in range(0, len(column), PIECE):
            column[first : first + PIECE] = values[name][first : first + PIECE]
