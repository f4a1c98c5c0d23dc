"""Where the images of a set for super-resolution lie, by the names of folders; must not open a file.

DIV2K_train_HR/0001.png, DIV2K_train_LR_bicubic/X2/0001x2.png; of validation DIV2K_valid_HR/ ...
train/HR/, train/LR/ or train/LR/X2/; val/HR/ ...    pairs of one name, or of name and namex2
train/, val/                                         large images alone
a folder of images                                   the last tenth of the names validates
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from contracts import UserError
from dataset.walk import is_folder

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
        return slice(count - held_out, None) if split == "val" else slice(count - held_out)


def find(data: Path, split: str, scale: int) -> Found:
    """Return the folders of a split, "train" or "val". Raises UserError."""
    if not data.is_dir():
        why = "is a file" if data.exists() else "no such folder"
        raise UserError(f"--data {data}: {why}; it must be {HOLDS}")
    named = DIV2K[split]
    if is_folder(data / f"{named}_HR"):
        return Found(high=data / f"{named}_HR", low=_small(data / f"{named}_LR_bicubic", scale))
    own = data / split
    if is_folder(own / "HR"):
        return Found(high=own / "HR", low=_small(own / "LR", scale))
    if is_folder(own):
        return Found(high=own)
    other = "val" if split == "train" else "train"
    if is_folder(data / other) or is_folder(data / f"{DIV2K[other]}_HR"):
        raise UserError(f"--data {data}: has no {split}/ folder; it must be {HOLDS}")
    return Found(high=data, shared=True)


def _small(folder: Path, scale: int) -> Path | None:
    """Return the folder of small images of this scale, None where there is no such folder.

    Raises UserError where there are those of other scales alone.
    """
    if not is_folder(folder):
        return None
    if is_folder(folder / f"X{scale}"):
        return folder / f"X{scale}"
    others = sorted(name for name in os.listdir(folder) if name[:1] == "X" and name[1:].isdigit())
    if others:
        raise UserError(
            f"--data: {folder} has {', '.join(others)} and no X{scale}; name another --scale, or move the "
            "folder away: then small images are made of the large ones"
        )
    return folder
