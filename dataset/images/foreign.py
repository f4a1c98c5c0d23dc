"""Names the formats of images that no loader reads, with what converts them; must not know files."""

from __future__ import annotations

import re

_MAGICK = "magick IN OUT.png"
_FOREIGN: tuple[tuple[re.Pattern[bytes], str, str], ...] = tuple(
    (re.compile(magic, re.DOTALL), name, command)
    for magic, name, command in (
        (rb"....ftyp.{0,60}avi[fs]", "AVIF", "avifdec IN OUT.png"),
        (rb"....ftyp.{0,60}(?:hei[cxms]|hev[cmsx]|mif1|msf1)", "HEIC", "heif-convert IN OUT.png"),
        (rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51", "JPEG 2000", "opj_decompress -i IN -o OUT.png"),
        (rb"\0\0\0\x0cJXL \r\n\x87\n|\xff\x0a", "JPEG XL", "djxl IN OUT.png"),
        (rb"II\xbc", "JPEG XR", "JxrDecApp -i IN -o OUT.bmp"),
        (rb"8BPS", "PSD", _MAGICK),
        (rb"\x76\x2f\x31\x01", "OpenEXR", _MAGICK),
        (rb"\0\0[\1\2]\0[\1-\x40]\0", "ICO", _MAGICK),
        (rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml.{0,500})?<svg", "SVG", "rsvg-convert IN -o OUT.png"),
        (rb"%PDF-", "PDF", "pdftoppm -png IN OUT"),
        (rb".{128}DICM", "DICOM", "dcmj2pnm --write-png IN OUT.png"),
    )
)


def named(head: bytes) -> str:
    """Return what a file that begins so is, and what converts it, or "" where that is unknown."""
    for magic, name, command in _FOREIGN:
        if magic.match(head):
            return f"{name}, which no loader reads: {command} converts it"
    return ""
