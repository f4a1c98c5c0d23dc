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
DIV2K = {"train": "DIV2K_train", "val": "DIV2K_valid"}
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
        if not self.shared:
            return slice(None)
        held_out = max(count // HELD_OUT, 1)
        return (
            slice(count - held_out, None) if split == "val" else slice(count - held_out)
        )


def find(data: Path, split: str, scale: int) -> Found:
    """Return the folders of a split, "train" or "val". Raises UserError."""
    if not data.is_dir():
        why = "is a file" if data.exists() else "no such folder"
        raise UserError(f"--data {data}: {why}; it must be {HOLDS}")
    if is_folder(data / f"{DIV2K[split]}_HR"):
        small = {
            part: _small(data, f"{name}_LR")
            for part, name in DIV2K.items()
            if is_folder(data / f"{name}_HR")
        }
        return Found(
            high=data / f"{DIV2K[split]}_HR", low=_of_scale(_alike(small, split), scale)
        )
    own = data / split
    if is_folder(own / "HR"):
        small = {
            part: _small(data / part, "LR")
            for part in DIV2K
            if is_folder(data / part / "HR")
        }
        return Found(high=own / "HR", low=_of_scale(_alike(small, split), scale))
    if is_folder(own):
        return Found(high=own)
    other = "val" if split == "train" else "train"
    if is_folder(data / other) or is_folder(data / f"{DIV2K[other]}_HR"):
        raise UserError(f"--data {data}: has no {split}/ folder; it must be {HOLDS}")
    return Found(high=data, shared=True)


def _small(folder: Path, prefix: str) -> Path | None:
    """Return the folder of small images: that of bicubic ones, else the only one of another kind, or None.

    Its name is `prefix`, or goes on with _bicubic, _unknown, _mild or any other kind. Raises UserError where
    there are several others.
    """
    for name in (f"{prefix}_bicubic", prefix):
        if is_folder(folder / name):
            return folder / name
    others = sorted(path.name for path in folder.glob(f"{prefix}_*") if is_folder(path))
    if len(others) > 1:
        raise UserError(
            f"--data {folder}: has {', '.join(others)}; leave the one that is meant"
        )
    return folder / others[0] if others else None


def _alike(small: Mapping[str, Path | None], split: str) -> Path | None:
    """Return the folder of a split's small images, of those of both splits.

    Raises UserError where the other split's are of another kind.
    """
    kinds = {}
    for part, path in small.items():
        # what is made is bicubic; what lies in a folder LR may be of any kind
        kind = "_bicubic" if path is None else path.name.rpartition("LR")[2]
        if kind:
            kinds[part] = kind.removeprefix("_")
    if len(set(kinds.values())) > 1:
        both = ", ".join(f"{kind} to {part}" for part, kind in kinds.items())
        raise UserError(
            f"--data: small images are {both}; give both splits those of one kind"
        )
    return small[split]


def _of_scale(folder: Path | None, scale: int) -> Path | None:
    """Return the folder of small images of this scale. Raises UserError where there are others alone."""
    if folder is None:
        return None
    if is_folder(folder / f"X{scale}"):
        return folder / f"X{scale}"
    others = sorted(
        name for name in os.listdir(folder) if name[:1] == "X" and name[1:].isdigit()
    )
    if others:
        raise UserError(
            f"--data: {folder} has {', '.join(others)} and no X{scale}; name another --scale, or move the "
            "folder away: then small images are made of the large ones"
        )
    return folder
