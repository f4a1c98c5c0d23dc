"""Where the images of a set for super-resolution lie, by the names of folders; must not open a file.

DIV2K_train_HR/0001.png, DIV2K_train_LR_bicubic/X2/0001x2.png; of validation DIV2K_valid_HR/ ...
                                                     also LR_unknown/X2/, LR_mild/0001x4m.png, LR_x8/ ...
train/HR/, train/LR/ or train/LR/X2/; val/HR/ ...    pairs of one name, or of name and namex2
train_HR/, train_LR/; HR/train/, LR/train/           the same in other orders; GT/, LQ/ as HR/, LR/
HR/, LR/; Flickr2K_HR/, Flickr2K_LR_bicubic/X2/      pairs, of which the last tenth of the names validates
train/, val/                                         large images alone
a folder of images                                   the last tenth of the names validates

Folders that say which side they are are never read as anything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from saturate.contracts import UserError
from saturate.dataset.scan import names

HOLDS = (
    "a folder with DIV2K_train_HR/ and DIV2K_valid_HR/, or with train/ and val/ (of images, or of HR/ and "
    "LR/), or with HR/ and LR/, or of images alone"
)
HELD_OUT = 10
"""One image in so many validates where a single folder holds them all."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """The folders of a split: of large images, and of their small ones; None: they are made."""

    high: Path
    low: Path | None = None
    shared: bool = False  # both splits lie in this one folder
    beside: Sequence[str] = ()  # what lies at the top of the data and is not read

    def part(self, split: str, count: int) -> slice:
        """Return which of `count` images in the order of their names the split has."""
        end = count - max(count // HELD_OUT, 1)
        if not self.shared:
            return slice(None)
        return slice(end, None) if split == "val" else slice(end)


@dataclass(frozen=True, kw_only=True)
class _Side:
    """A folder of large or of small images, by its name."""

    path: Path
    below: str  # below the data
    about: names.Name  # what `below` says


def find(data: Path, split: str, scale: int) -> Found:
    """Return the folders of a split, "train" or "val". Raises UserError."""
    if not data.is_dir():
        why = "is a file" if data.exists() else "no such folder"
        raise UserError(f"--data {data}: {why}; it must be {HOLDS}")
    sides = [*_sides(data)]
    high = [side for side in sides if side.about.side == "high"]
    if high:
        parts = {
            part: [side for side in high if side.about.splits == {part}]
            for part in ("train", "val")
        }
        one = _only(data, parts[split] or [] if any(parts.values()) else high)
        if one is None:
            sibling = (parts["train"] or parts["val"])[0].below
            lacking = re.sub("train|valid|val", split, sibling, flags=re.IGNORECASE)
            raise UserError(
                f"--data {data}: has no {lacking} folder; it must be {HOLDS}"
            )
        if unsplit := [side for side in high if not side.about.splits and side != one]:
            _only(data, [one, *unsplit])
        low = {
            part: _small(data, sides, candidates[0], scale)
            for part, candidates in parts.items()
            if candidates
        }
        low = low or {split: _small(data, sides, one, scale)}
        _require_alike({part: kind for part, (_, kind) in low.items()})
        small = [path for path, _ in low.values() if path]
        if len(high) < len(sides) and not small:
            unlike = next(side for side in sides if side not in high)
            raise UserError(
                f"--data {data}: {unlike.below} has small images, and none large of that split; {HOLDS}"
            )
        read = [
            *small,
            *(side.path for candidates in parts.values() for side in candidates),
        ]
        return Found(
            high=one.path,
            low=low[split][0],
            shared=not one.about.splits,
            beside=_beside(data, [one.path, *read]),
        )
    if sides:
        raise UserError(
            f"--data {data}: has small images alone, {sides[0].below}; it must be {HOLDS}"
        )
    splits = names.splits_among(names.folders(data))
    if not splits:
        for name in names.folders(data):
            inside = names.splits_among(names.folders(data / name))
            if len({*inside.values()}) > 1:
                raise UserError(
                    f"--data {data}: the splits lie in {name}/; name --data {data / name}"
                )
        return Found(high=data, shared=True)
    mine = [name for name, role in splits.items() if role == split]
    if len(mine) > 1:
        raise UserError(
            f"--data {data}: {' and '.join(mine)} may be the images of {split}; leave the one that is meant"
        )
    if not mine:
        raise UserError(f"--data {data}: has no {split}/ folder; it must be {HOLDS}")
    read = [data / name for name, role in splits.items() if role != "test"]
    return Found(high=data / mine[0], beside=_beside(data, read))


def _beside(data: Path, read: Sequence[Path]) -> Sequence[str]:
    """Return what lies at the top of the data and is not read."""
    return names.beside(data, [path.relative_to(data).parts[0] for path in read])


def _sides(folder: Path, below: str = "", depth: int = 3) -> Iterator[_Side]:
    """Yield the folders of large and of small images: HR, train/HR, HR/train, DIV2K/DIV2K_train_HR."""
    for name in names.folders(folder):
        path = folder / name
        about = names.read(below + name)
        inside = names.folders(path) if about.side and not about.splits else []
        parts = [part for part in inside if names.read(part).splits]
        if about.side:
            for part in parts or [""]:
                shown = f"{below}{name}/{part}".rstrip("/")
                yield _Side(path=path / part, below=shown, about=names.read(shown))
        elif depth > 1:
            yield from _sides(path, f"{below}{name}/", depth - 1)


def _only(data: Path, sides: Sequence[_Side]) -> _Side | None:
    """Return the one of some folders, None of none. Raises UserError for several."""
    if len(sides) > 1:
        several = ", ".join(side.below for side in sides)
        raise UserError(f"--data {data}: has {several}; leave the one that is meant")
    return sides[0] if sides else None


def _small(
    data: Path, sides: Sequence[_Side], high: _Side, scale: int
) -> tuple[Path | None, str]:
    """Return the folder of small images of large ones, and their kind; None, "bicubic" where they are made.

    That of bicubic ones goes first, then one that says no kind, then the only one of another kind. Raises
    UserError where there are several others, and where those of this scale are not there.
    """
    kinds = {
        side: " ".join(sorted(side.about.rest - high.about.rest))
        for side in sides
        if side.about.side == "low" and side.about.splits == high.about.splits
    }
    # what is made is bicubic; what lies in a folder LR may be of any kind
    if not kinds:
        return None, "bicubic"
    of_scale = [side for side in kinds if side.about.scale in (0, scale)]
    stated = [side for side in of_scale if side.about.scale]
    for usual in ("bicubic", ""):
        of_kind = [side for side in stated or of_scale if kinds[side] == usual]
        if of_kind:
            break
    one = _only(data, of_kind or of_scale)
    if one is None:
        raise _without(scale, data, [side.below for side in kinds])
    inside = names.folders(one.path)
    scales = {name: names.read(name).scale for name in inside}
    mine = [name for name in inside if scales[name] == scale]
    exact = [name for name in mine if name.casefold() == f"x{scale}"] or mine
    if len(exact) > 1:
        raise UserError(
            f"--data: {one.path} has {' and '.join(exact)}; leave the one that is meant"
        )
    others = [name for name in inside if scales[name]]
    if others and not mine:
        raise _without(scale, one.path, others)
    return one.path / (exact or [""])[0], kinds[one]


def _without(scale: int, folder: Path, others: Sequence[str]) -> UserError:
    return UserError(
        f"--data: {folder} has {', '.join(others)} and no X{scale}; name another --scale, or move the "
        "folder away: then small images are made of the large ones"
    )


def _require_alike(kinds: Mapping[str, str]) -> None:
    """Raise UserError where the small images of the splits are of several kinds."""
    if len({*kinds.values()} - {""}) > 1:
        both = ", ".join(f"{kind} to {part}" for part, kind in kinds.items())
        raise UserError(
            f"--data: small images are {both}; give both splits those of one kind"
        )
