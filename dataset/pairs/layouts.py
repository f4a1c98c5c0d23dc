"""Where the images of a set for super-resolution lie, by the names of folders; must not open a file.

DIV2K_train_HR/0001.png, DIV2K_train_LR_bicubic/X2/0001x2.png; of validation DIV2K_valid_HR/ ...
                                                     also LR_unknown/X2/, LR_mild/0001x4m.png, LR_x8/ ...
train/HR/, train/LR/ or train/LR/X2/; val/HR/ ...    pairs of one name, or of name and namex2
train/, val/                                         large images alone
a folder of images                                   the last tenth of the names validates
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contracts import UserError
from dataset.scan.file_tree import is_folder

HOLDS = (
    "a folder with DIV2K_train_HR/ and DIV2K_valid_HR/, or with train/ and val/ (of images, or of HR/ and "
    "LR/), or of images alone"
)
HELD_OUT = 10
"""One image in so many validates where a single folder holds them all."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """The folders of a split: of large images, and of their small ones; None: they are made."""

    high: Path
    low: Path | None = None
    shared: bool = False  # both splits lie in this one folder

    def part(self, split: str, count: int) -> slice:
        """Return which of `count` images in the order of their names the split has."""
        end = count - max(count // HELD_OUT, 1)
        if not self.shared:
            return slice(None)
        return slice(end, None) if split == "val" else slice(end)


def find(data: Path, split: str, scale: int) -> Found:
    """Return the folders of a split, "train" or "val". Raises UserError."""
    if not data.is_dir():
        why = "is a file" if data.exists() else "no such folder"
        raise UserError(f"--data {data}: {why}; it must be {HOLDS}")
    for form, val in (("DIV2K_{}_", "valid"), ("{}/", "val")):
        begins = {
            part: os.path.join(data, form.format(name))
            for part, name in (("train", "train"), ("val", val))
        }
        high = {part: Path(f"{begin}HR") for part, begin in begins.items()}
        there = [part for part in high if is_folder(high[part])]
        if split in there:
            low = {part: _small(data, f"{begins[part]}LR") for part in there}
            return Found(high=high[split], low=_of_scale(_alike(low, split), scale))
        if there:
            raise UserError(
                f"--data {data}: has no {high[split].relative_to(data)} folder; it must be {HOLDS}"
            )
    if is_folder(data / split):
        return Found(high=data / split)
    if is_folder(data / "train") or is_folder(data / "val"):
        raise UserError(f"--data {data}: has no {split}/ folder; it must be {HOLDS}")
    return Found(high=data, shared=True)


def _small(data: Path, prefix: str) -> Path | None:
    """Return the folder of small images: that of bicubic ones, else the only one of another kind, or None.

    Its path is `prefix`, or goes on with _bicubic, _unknown, _mild or any other kind. Raises UserError where
    there are several others.
    """
    usual = [Path(f"{prefix}_bicubic"), Path(prefix)]
    others = sorted(path for path in usual[1].parent.glob(f"{usual[1].name}_*"))
    folders = [path for path in (*usual, *others) if is_folder(path)]
    if folders and folders[0] not in usual and len(folders) > 1:
        names = ", ".join(path.name for path in folders)
        raise UserError(f"--data {data}: has {names}; leave the one that is meant")
    return folders[0] if folders else None


def _alike(low: Mapping[str, Path | None], split: str) -> Path | None:
    """Return the folder of a split's small images, of those of the splits.

    Raises UserError where the other split's are of another kind.
    """
    # what is made is bicubic; what lies in a folder LR may be of any kind
    kinds = {
        part: "bicubic" if path is None else path.name.rpartition("LR")[2].strip("_")
        for part, path in low.items()
    }
    if len({*kinds.values()} - {""}) > 1:
        both = ", ".join(f"{kind} to {part}" for part, kind in kinds.items())
        raise UserError(
            f"--data: small images are {both}; give both splits those of one kind"
        )
    return low[split]


def _of_scale(folder: Path | None, scale: int) -> Path | None:
    """Return the folder of small images of this scale. Raises UserError where there are others alone."""
    if folder is None or is_folder(folder / f"X{scale}"):
        return folder and folder / f"X{scale}"
    others = sorted(path.name for path in folder.glob("X[0-9]*"))
    if others:
        raise UserError(
            f"--data: {folder} has {', '.join(others)} and no X{scale}; name another --scale, or move the "
            "folder away: then small images are made of the large ones"
        )
    return folder
