"""`saturate photos PHOTOS [--out photos.html] [--run RUN ...]`: what is wrong with photos, on one page.

It shows copies, also re-encoded, resized or slightly cropped ones, within and across classes and across train and
validation; dark, blurred and odd photos; damaged and left-out files; sizes, formats and small classes. With runs of
all folds of --val-fold, also labels that are likely wrong. Beside the page is a list for --leave-out of training:
remove the lines of photos that shall stay. PHOTOS has a folder for each class, or train/ and val/.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from itertools import chain, groupby
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from PIL import Image

from saturate.contracts import Array, Split, UserError, counted, utf8
from saturate.dataset import copies
from saturate.dataset.images.columns import FORMATS, LARGE, Images, shown_by
from saturate.dataset.open import open_splits
from saturate.dataset.scan.manifest import printable
from saturate.loaders.images.decoders import pillow_rgb
from saturate.plan.geometry import turned_pixels
from saturate.report import page
from saturate.report.console import Console
from saturate.run.program import Parser
from saturate.settings.config import GROUP_OF, build
from saturate.system import drawing, processes
from saturate.system.exit_codes import DONE, of_program
from saturate.system.resources import cores
from saturate.tasks import _tables

SIDE = 64
"""Pixels of the longer side at which photos are looked at. Blur is told there, and JPEGs are decoded at a fraction."""
GREY = 48
"""Pixels of both sides of the grey pictures by which near copies are told."""
HASH = 12
"""Bits a side of each of the two hashes of a photo, 288 in all."""
NEAR = 90
ALIKE = 0.9
"""Near copies differ in at most NEAR bits, and the best place of one picture in the other has a correlation of ALIKE.
docs/own-images.md has what that finds."""
STEP = 200
"""Photos a task."""
BLOCK = 1024
"""Photos that are compared with all others at once: bounds the memory."""
NEIGHBOURS = 50
"""The nearest of the photos behind it that a photo may be a copy of: bounds the time for many that are alike."""
TILE = 160
"""Pixels of the longer side of a photo on the page."""
SHOWN = 24
"""Groups of a kind, photos of a group, classes and left-out files that are shown; the list has all that was found."""
FLAWS = {
    "dark": "Dark",
    "light": "Too bright",
    "blurry": "Blurred",
    "low_information": "Nearly empty",
    "odd_aspect_ratio": "Of an odd shape",
}
"""What cleanvision finds -> the title of its section."""
PREDICTIONS = "val_predictions.csv"
"""What a run leaves of its validation."""
OF_DATA = "source classes val_share val_seed val_group val_fold leave_out manifest_dir"
"""Settings of training that say which photos there are."""


class Found(NamedTuple):
    """A photo of a group that is shown side by side; without a `why` it is not in the list."""

    photo: int
    why: str = ""
    beside: str = ""  # the photo that it is a copy of, or the likelier class
    score: float | None = None


Kinds = dict[str, list[list[Found]]]
"""Title of a section -> its groups."""


class Seen(NamedTuple):
    """What the pixels of n photos say."""

    bits: Array  # bool [n, 2 * HASH * HASH]
    grey: Array  # uint8 [n, GREY, GREY]
    flaws: Array  # float [n, FLAWS], how good a photo is, 0..1; nan where it has not this flaw
    damaged: Array  # str [n], why it cannot be decoded; "" where it can


class Photos:
    """The n photos of all splits, one after the other."""

    def __init__(self, root: str, splits: Mapping[str, Split[Images]]) -> None:
        # one may stand for both
        own = {id(one): (name, one) for name, one in splits.items()}
        self.names, self.splits = zip(*own.values(), strict=True)
        self.root = os.path.realpath(root)
        self.classes = self.splits[0].columns.classes
        sizes = [len(one.columns) for one in self.splits]
        self.split = np.repeat(np.arange(len(sizes)), sizes)
        self.sample = np.concatenate([*map(np.arange, sizes)])
        tables = [one.columns for one in self.splits]
        self.label, self.height, self.width, self.format = (
            np.concatenate([getattr(table, name) for table in tables])
            for name in ("label", "height", "width", "format")
        )
        self.turn = np.concatenate([*map(shown_by, tables)])

    def __len__(self) -> int:
        return len(self.sample)

    def name(self, photo: int) -> str:
        """Return the path from the root, as --leave-out takes it."""
        columns = self.splits[self.split[photo]].columns
        path = os.fsdecode(columns.path(self.sample[photo]))
        return os.path.relpath(path, self.root)

    def picture(self, photo: int, side: int) -> Image.Image:
        """Return a photo as viewers show it, whose longer side has `side` pixels or fewer. Raises what Pillow does."""
        source = self.splits[self.split[photo]].source
        picture = pillow_rgb(source.read(int(self.sample[photo])), (side, side))
        picture.thumbnail((side, side))
        pixels = turned_pixels(np.asarray(picture), int(self.turn[photo]))
        return Image.fromarray(np.ascontiguousarray(pixels))


def look(photos: Photos, first: int) -> Seen:
    """Look at the STEP photos from `first` on."""
    import imagehash
    from cleanvision import Imagelab

    count = min(STEP, len(photos) - first)
    seen = Seen(
        bits=np.zeros((count, 2 * HASH * HASH), bool),
        grey=np.zeros((count, GREY, GREY), np.uint8),
        flaws=np.full((count, len(FLAWS)), np.nan),
        damaged=np.full(count, "", object),
    )
    pictures = {}
    for place in range(count):
        try:
            picture = photos.picture(first + place, SIDE)
        except UserError:
            raise
        except Exception as error:  # Pillow raises what it likes
            seen.damaged[place] = f"damaged: {error}"
            continue
        hashes = imagehash.phash(picture, HASH), imagehash.dhash(picture, HASH)
        seen.bits[place] = np.concatenate([one.hash for one in hashes], axis=None)
        seen.grey[place] = picture.convert("L").resize((GREY, GREY))
        pictures[place] = picture
    if pictures:
        with contextlib.redirect_stderr(io.StringIO()):  # its bar
            lab = Imagelab(torchvision_dataset=[(one,) for one in pictures.values()])
            lab.find_issues({flaw: {} for flaw in FLAWS}, n_jobs=1, verbose=False)
        for column, flaw in enumerate(FLAWS):
            score = lab.issues[f"{flaw}_score"].where(lab.issues[f"is_{flaw}_issue"])
            seen.flaws[[*pictures], column] = score
    return seen


def look_at_all(photos: Photos, console: Console) -> Seen:
    """Look at all photos, in a process a core."""
    firsts = range(0, len(photos), STEP)
    workers = min(max(round(cores()), 1), len(firsts))
    parts = []
    with console.counting("photos") as progress:
        for part in processes.results(partial(look, photos), firsts, workers):
            parts.append(part)
            progress(len(parts), len(firsts), f"looking at {STEP} photos each")
    return Seen(*map(np.concatenate, zip(*parts, strict=True)))


def near_pairs(seen: Seen) -> Array:
    """Return int64 [k, 2], the pairs of photos that are near copies."""
    # the hashes of what shows nothing are noise
    empty = np.isfinite(seen.flaws[:, [*FLAWS].index("low_information")])
    rows = np.flatnonzero(~empty & (seen.damaged == ""))
    signs = torch.from_numpy(seen.bits[rows]).float() * 2 - 1
    pairs = []
    for first in range(0, len(rows), BLOCK):
        agree = (signs[first : first + BLOCK] @ signs[first:].T).triu(1)
        most, at = agree.topk(min(NEIGHBOURS, agree.shape[1]))
        row, rank = (most >= signs.shape[1] - 2 * NEAR).nonzero().T
        near = torch.stack([row, at[row, rank]], dim=1)
        pairs += rows[near.numpy() + first].tolist()
    sure = [pair for pair in pairs if alike(*seen.grey[pair]) >= ALIKE]
    return np.array(sure, int).reshape(-1, 2)


def alike(one: Array, other: Array) -> float:
    """Return the largest correlation of one grey picture with a part of the other, of all of it or of 96 % a side."""
    return max(
        float(
            cv2.matchTemplate(
                whole, cv2.resize(part, (side, side)), cv2.TM_CCOEFF_NORMED
            ).max()
        )
        for whole, part in ((one, other), (other, one))
        for side in (GREY, GREY - 2)
    )


def of_copies(photos: Photos, seen: Seen) -> Kinds:
    """Return the copies. One of a group is not listed; where labels differ all are, since one of them is wrong."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    rows = copies.find(photos.splits)
    begins = np.searchsorted(photos.split, rows["split"])
    same = begins + rows["sample"]
    exact = np.full(len(photos), -1)
    exact[same] = rows["group"]
    # sorted by group
    first = same[np.searchsorted(rows["group"], rows["group"])]
    pairs = np.concatenate([near_pairs(seen), np.stack([same, first], axis=1)])
    links = coo_array((np.ones(len(pairs)), (*pairs.T,)), (len(photos), len(photos)))
    group_of = connected_components(links)[1]
    # that of validation comes first, and stays
    order = sorted(
        np.unique(pairs).tolist(), key=lambda one: (group_of[one], -photos.split[one])
    )
    across = "Copies across train and validation", "Copies across classes"
    kinds: Kinds = {title: [] for title in (*across, "Copies within a class")}
    for _, members in groupby(order, group_of.__getitem__):
        group = [*members]
        unlike = len({*photos.label[group]}) > 1
        findings = []
        for photo in group:
            twin = group[photo == group[0]]
            why = "copy" if exact[photo] == exact[twin] >= 0 else "near copy"
            why += ", of another class" * unlike
            is_listed = unlike or photo != group[0]
            findings.append(Found(photo, why * is_listed, photos.name(twin)))
        parted = len({*photos.split[group]}) > 1
        kinds[[*kinds][0 if parted else 1 if unlike else 2]].append(findings)
    return kinds


def of_photos(photos: Photos, seen: Seen) -> Kinds:
    """Return what is wrong with single photos, the worst first."""
    scores = dict(zip(FLAWS.values(), seen.flaws.T, strict=True))
    pixels = photos.height.astype(float) * photos.width
    larger = pixels / np.median(pixels)
    odd = np.minimum(larger, 1 / larger)
    scores["Of an odd size"] = np.where(odd < 1 / LARGE, odd, np.nan)
    kinds: Kinds = {}
    for title, score in scores.items():
        worst = np.argsort(score)[: np.isfinite(score).sum()].tolist()
        kinds[title] = [
            [Found(one, title.lower(), "", score[one].round(4)) for one in worst]
        ]
    damaged = np.flatnonzero(seen.damaged != "").tolist()
    return kinds | {"Damaged": [[Found(one, seen.damaged[one]) for one in damaged]]}


def of_labels(photos: Photos, runs: Sequence[Path]) -> Kinds:
    """Return the labels that are likely wrong by val_predictions.csv of runs, the likeliest first. Raises UserError."""
    import pandas
    from cleanlab.filter import find_label_issues

    files = [run / PREDICTIONS for run in runs]
    read = partial(pandas.read_csv, dtype=str, keep_default_na=False)
    table = pandas.concat(map(read, files)).drop_duplicates("path").set_index("path")
    sources = [one.source for one in photos.splits]
    at = zip(photos.split, photos.sample, strict=True)
    table = table.reindex([sources[split].name(int(sample)) for split, sample in at])
    number = {_tables.inert(utf8(name)): at for at, name in enumerate(photos.classes)}
    shares = np.full((len(photos), len(number)), np.nan)
    for name in table.filter(like="class"):
        label = table[name].map(number).to_numpy()
        rows = np.flatnonzero(label >= 0)
        share = table[name.replace("class", "probability")].iloc[rows]
        shares[rows, label[rows].astype(int)] = share.astype(float)
    known = np.flatnonzero(np.isfinite(shares).any(axis=1))
    if not len(known):
        raise UserError(f"--run {runs[0]}: it has validated no photo of {photos.root}")
    label, share = photos.label[known], shares[known]
    # what the likeliest classes leave, in equal parts
    left = np.isnan(share)
    rest = 1 - np.nansum(share, axis=1, keepdims=True)
    rest = rest.clip(0) / left.sum(axis=1, keepdims=True).clip(1)
    share = np.where(left, rest, share)
    order = find_label_issues(
        label, share, return_indices_ranked_by="self_confidence", n_jobs=1
    )
    title = (
        f"Labels that are likely wrong, of {len(known):,} that the runs have validated"
    )
    findings = []
    for at in order:
        likelier = photos.classes[share[at].argmax()]
        score = share[at, label[at]].round(4)
        findings.append(Found(known[at], "label, rather", likelier, score))
    return {title: [findings]}


def section(photos: Photos, groups: list[list[Found]]) -> str:
    """Return the HTML of a section: the first photos of its first groups, each group side by side."""
    html = ""
    for group in filter(None, groups[:SHOWN]):
        figures = "".join(figure(photos, finding) for finding in group[:SHOWN])
        html += f'<div class="photos">{figures}</div>'
    return html


def figure(photos: Photos, finding: Found) -> str:
    """Return a photo with what is known of it; one that cannot be decoded without its picture."""
    photo = finding.photo
    picture = ""
    with contextlib.suppress(Exception):  # Pillow raises what it likes
        pixels = np.asarray(photos.picture(photo, TILE))
        picture = page.image(drawing.encoded(pixels, "JPEG"), "")
    captions = (
        photos.name(photo),
        photos.names[photos.split[photo]] * (len(photos.names) > 1),
        photos.classes[photos.label[photo]],
        f"{photos.width[photo]} x {photos.height[photo]}",
        finding.why and f"{finding.why} {finding.beside}",
    )
    lines = "<br>".join(escape(printable(line)) for line in captions if line)
    return f"<figure>{picture}{lines}</figure>"


def of_scan(photos: Photos) -> dict[str, str]:
    """Return the sections of what the scan knows: classes, sizes, formats, and files that it left out."""
    count = np.bincount(photos.label, minlength=len(photos.classes))
    smallest = np.argsort(count, kind="stable")[:SHOWN]
    sizes = Counter(zip(photos.width.tolist(), photos.height.tolist(), strict=True))
    folders = {one.columns.folder for one in photos.splits}
    texts = [(one / "rejected.txt").read_text(encoding="utf-8") for one in folders]
    lines = [line.rpartition("\t") for text in texts for line in text.splitlines()]
    return {
        "Smallest classes": page.bars(
            {printable(photos.classes[at]): int(count[at]) for at in smallest}, "photos"
        ),
        "Commonest sizes": page.bars(
            {f"{w} x {h}": times for (w, h), times in sizes.most_common(SHOWN)},
            "photos",
        ),
        "Formats": page.bars(Counter(FORMATS[at] for at in photos.format), "photos"),
        f"Left out by the scan: {len(lines):,}": page.table(
            {path: why for path, _, why in lines[:SHOWN]}
        ),
    }


def report(options: argparse.Namespace) -> int:
    """Write the page and the list. Raises UserError."""
    needs = ["cleanvision", *["cleanlab"] * bool(options.run)]
    if lacking := [name for name in needs if not importlib.util.find_spec(name)]:
        raise UserError(f"it needs packages: pip install {' '.join(lacking)}")
    began = time.monotonic()
    out, listed = options.out, options.out.with_suffix(".csv")
    inside = out.resolve().is_relative_to(Path(options.data).resolve())
    if out.exists() or listed.exists() or inside or out == listed:
        raise UserError(
            f"--out {out}: it, or {listed.name}, is there already or lies inside the data; name another one"
        )
    if not out.absolute().parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}")
    for run in options.run:
        if not (run / PREDICTIONS).is_file():
            raise UserError(f"--run {run}: it has no {PREDICTIONS}")
    console = Console()
    asked = {
        name: one for name, one in vars(options).items() if one and name in GROUP_OF
    }
    splits = open_splits(
        build(asked).data,
        loader="torchvision",
        validates=False,
        may_be_whole=True,
        console=console,
    )
    photos = Photos(options.data, splits)
    seen = look_at_all(photos, console)
    kinds = of_labels(photos, options.run) if options.run else {}
    kinds |= of_copies(photos, seen) | of_photos(photos, seen)
    lists = {title: [*chain.from_iterable(groups)] for title, groups in kinds.items()}
    rows = [
        finding._asdict() | {"photo": photos.name(finding.photo)}
        for finding in chain.from_iterable(lists.values())
        if finding.why
    ]
    parts = {
        f"{title}: {sum(bool(finding.why) for finding in lists[title]):,}": section(
            photos, groups
        )
        for title, groups in kinds.items()
    }
    about = [os.path.basename(photos.root), photos.root]
    behind = f"photos; {counted(len(rows), 'line')} in {listed.name}"
    count = f"{len(photos):,}"
    out.write_bytes(page.document(about, count, behind, parts | of_scan(photos)))
    if rows:
        listed.write_bytes(_tables.written(rows))
    console.info(
        *(title for title, part in parts.items() if part),
        f"{out}: {count} {behind}, in {time.monotonic() - began:.0f} s",
        *["remove the lines of photos that shall stay, and train with --leave-out"]
        * bool(rows),
    )
    return DONE


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, 2 for a mistake, 130 on Ctrl-C."""
    parser = Parser("photos", __doc__)
    parser.add_argument("data", metavar="PHOTOS", help="as --data of training")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("photos.html"),
        help="the page; default: photos.html, with the list photos.csv",
    )
    parser.add_argument(
        "--run",
        type=Path,
        nargs="+",
        default=[],
        help="folders of runs that have validated the photos",
    )
    for name in OF_DATA.split():
        parser.add_argument(f"--{name.replace('_', '-')}", help="as of training")
    options = parser.parse_args(arguments)
    return of_program("photos", lambda: report(options))
