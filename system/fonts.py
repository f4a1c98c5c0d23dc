"""The font of pictures: matplotlib's, since Pillow's own has the letters of English alone."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from PIL import ImageFont


def path() -> str:
    """Return the font's file; matplotlib, which takes long, is not imported."""
    package = find_spec("matplotlib")
    assert package is not None and package.origin is not None
    return str(Path(package.origin).with_name("mpl-data") / "fonts/ttf/DejaVuSans.ttf")


def font(size: float) -> ImageFont.FreeTypeFont:
    """Return the font at a size in pixels."""
    return ImageFont.truetype(path(), size)


def short(text: str, pixels: float, of: ImageFont.FreeTypeFont) -> str:
    """Return the text in one line of at most so many pixels, with dots where it was cut."""
    text = " ".join(text.split())
    if of.getlength(text) <= pixels:
        return text
    while text and of.getlength(f"{text}...") > pixels:
        text = text[:-1]
    return f"{text}..."
