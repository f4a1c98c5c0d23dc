"""Fonts of pictures: a text is drawn in the first font of the machine that has its letters.

Pillow draws a text with one font, and its own has the letters of English alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from PIL import ImageFont

from saturate.contracts import escaped

FAMILIES = (
    *("notosanscjk", "sourcehansans", "notosans", "wqy-", "ipa", "nanumgothic"),
    *("droidsansfallback", "arialuni", "pingfang", "hiragino", "applesdgothic"),
    *("msyh", "yugoth", "malgun", "unifont"),
)
"""How names of font files begin, without blanks: those that are tried behind matplotlib's font, in this order."""
NOT_PLAIN = ("bold", "italic", "light", "thin", "black", "medium", "mono")
FOLDERS = (
    *("/usr/share/fonts", "/usr/local/share/fonts", "~/.local/share/fonts"),
    *("~/.fonts", "/System/Library/Fonts", "/Library/Fonts", "~/Library/Fonts"),
    "/mnt/c/Windows/Fonts",
)
"""Where Linux, macOS and Windows below WSL have their fonts."""
NO_LETTER = "\U0010ffff"
"""No font has it: it is drawn as what a font shows of letters that it lacks."""


@cache
def first() -> str:
    """Return the file of matplotlib's font; matplotlib, which takes long, is not imported."""
    package = find_spec("matplotlib")
    assert package is not None and package.origin is not None
    return str(Path(package.origin).with_name("mpl-data") / "fonts/ttf/DejaVuSans.ttf")


@cache
def others() -> list[str]:
    """Return the files of the other fonts that are installed, of FAMILIES."""
    ranked = []
    for folder in map(os.path.expanduser, FOLDERS):
        for parent, _, files in os.walk(folder):
            for file in files:
                name = file.lower().replace(" ", "")
                families = [family for family in FAMILIES if name.startswith(family)]
                plain = not any(style in name for style in NOT_PLAIN)
                if families and plain and name.endswith((".ttf", ".ttc", ".otf")):
                    ranked.append(
                        (FAMILIES.index(families[0]), name, f"{parent}/{file}")
                    )
    return [file for *_, file in sorted(ranked)]


@cache
def _opened(file: str, size: float) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(file, size)


@cache
def _draws(file: str, letter: str) -> bool:
    try:
        masks = (_opened(file, 18).getmask(one) for one in (letter, NO_LETTER))
        drawn, box = map(bytes, masks)
    except OSError:  # a font of pictures, or none at all
        return False
    return drawn != box


def lacking(text: str, file: str) -> int:
    """Return how many letters of a text a font lacks."""
    return sum(not letter.isspace() and not _draws(file, letter) for letter in {*text})


def path(text: str = "") -> str:
    """Return the file of the font that lacks the fewest letters of a text."""
    if not lacking(text, first()):
        return first()
    return min((first(), *others()), key=lambda file: lacking(text, file))


def font(size: float) -> ImageFont.FreeTypeFont:
    """Return matplotlib's font at a size in pixels."""
    return _opened(first(), size)


def line(text: str, pixels: float, size: float) -> tuple[str, ImageFont.FreeTypeFont]:
    """Return a text in one line of at most so many pixels, with dots where it was cut, and its font.

    A letter that no font here has is a question mark.
    """
    text = " ".join(escaped(text).split())
    file = path(text)
    text = "".join("?" if lacking(letter, file) else letter for letter in text)
    own = _opened(file, size)
    if own.getlength(text) <= pixels:
        return text, own
    while text and own.getlength(f"{text}...") > pixels:
        text = text[:-1]
    return f"{text}...", own


def legible(name: str, place: int) -> str:
    """Return the name of a class; "class 12" for that in place 12 where no font here has its letters.

    Where there is a classes.csv, the place is the row, from 1 on.
    """
    name = escaped(name)
    return f"class {place}" if lacking(name, path(name)) else name


def unseen(names: Sequence[str]) -> str | None:
    """Say of which classes pictures have no names; None where they have all."""
    lost = [name for name in names if legible(name, 0) != escaped(name)]
    if not lost:
        return None
    return (
        f"names of {len(lost)} classes have letters that no font here has, first {lost[0]}: in pictures they are "
        "numbers, as class 12 (their rows of classes.csv, or COCO's ids); install a font, of Debian's "
        "fonts-noto-cjk (Chinese, Japanese, Korean) or fonts-noto-core (others)"
    )
