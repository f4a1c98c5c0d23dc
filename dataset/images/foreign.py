"""Names the formats of images that no loader reads, with what converts them; must not know files."""

from __future__ import annotations

import re

_MAGICK = "magick IN OUT.png"
FROM_RAW = "dcraw -T IN"
_RAW = rb"FUJIFILMCCD-RAW|IIR[OS]|IIU\0|....ftypcrx "  # RAF, ORF, RW2, CR3
_FOREIGN: tuple[tuple[re.Pattern[bytes], str, str], ...] = tuple(
    (re.compile(magic, re.DOTALL), name, command)
    for magic, name, command in (
        (rb"....ftyp.{0,60}avi[fs]", "AVIF", "avifdec IN OUT.png"),
        (
            rb"....ftyp.{0,60}(?:hei[cxms]|hev[cmsx]|mif1|msf1)",
            "HEIC",
            "heif-convert IN OUT.png",
        ),
        (
            rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
            "JPEG 2000",
            "opj_decompress -i IN -o OUT.png",
        ),
        (rb"\0\0\0\x0cJXL \r\n\x87\n|\xff\x0a", "JPEG XL", "djxl IN OUT.png"),
        (rb"II\xbc", "JPEG XR", "JxrDecApp -i IN -o OUT.bmp"),
        (_RAW, "camera raw", FROM_RAW),
        (rb"8BPS", "PSD", _MAGICK),
        (rb"gimp xcf", "XCF", _MAGICK),
        (rb"qoif", "QOI", _MAGICK),
        (rb"DDS ", "DDS", _MAGICK),
        (rb"P[7Ff]\s", "PAM or PFM", _MAGICK),
        (rb"#\?R(?:ADIANC|GB)E", "Radiance HDR", _MAGICK),
        (rb"\x01\xda[\0\1][\1\2]", "SGI", _MAGICK),
        (rb"\x59\xa6\x6a\x95", "Sun raster", _MAGICK),
        (rb"\x0a[\0\2-\5]\x01[\1\2\4\x08]", "PCX", _MAGICK),
        (rb"SIMPLE  =", "FITS", _MAGICK),
        (rb"SDPX|XPDS", "DPX", _MAGICK),
        (rb"\x76\x2f\x31\x01", "OpenEXR", _MAGICK),
        (rb"\0\0[\1\2]\0[\1-\x40]\0", "ICO", _MAGICK),
        (
            rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml.{0,500})?<svg",
            "SVG",
            "rsvg-convert IN -o OUT.png",
        ),
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
