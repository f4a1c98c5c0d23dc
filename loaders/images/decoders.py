"""Image decoders on the CPU: bytes -> RGB uint8 of a region, and the resize that follows.

PIL is the reference, and defines what can be decoded: whatever is not a plain 8-bit grey or RGB JPEG goes to
PIL in every reader, and so does what another decoder refuses.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from zlib import crc32

import numpy as np
import torch
from PIL import Image

from saturate.contracts import Array, ImageColumns, UserError
from saturate.dataset.images.columns import FORMATS
from saturate.dataset.images.headers import opened, parse
from saturate.dataset.images.pixels import stored_pixels
from saturate.loaders import Undecodable
from saturate.plan.geometry import turned_pixels
from saturate.system.processes import uninterrupted

Region = tuple[int, int, int, int]
Decode = Callable[[bytes, Region], Array]

# the manifest knows every size before anything is decoded
Image.MAX_IMAGE_PIXELS = None


JPEG = FORMATS.index("jpeg")
PNG = FORMATS.index("png")


def plain_jpeg(columns: ImageColumns, ids: Array) -> Array:
    """Return bool [B]: whole grey or YCbCr JPEGs, which every decoder turns into the same pixels."""
    components = columns.components[ids]
    # nvJPEG takes stored RGB for YCbCr
    coloured = (components == 3) & ~columns.rgb[ids]
    plain: Array = (
        (columns.format[ids] == JPEG)
        & (columns.depth[ids] == 8)
        & ((components == 1) | coloured)
        & columns.whole[ids]
    )
    return plain


def pillow_rgb(data: bytes, least: tuple[int, int] | None = None) -> Image.Image:
    """Return a whole file as RGB of 8 bits, its pixels as they are stored. Raises what Pillow raises, and
    Rejected. Where `least` is given, a width and a height, a JPEG may come smaller, but not below it.

    Grey of more bits keeps its high ones, as Pillow and torchvision take colours of 16 bits; Pillow's own
    conversion would clip it, which makes nearly all of it white.
    """
    stored = stored_pixels(data)
    if stored is not None:
        return Image.fromarray(stored)
    with warnings.catch_warnings():
        # a damaged EXIF block is no business of the pixels
        warnings.simplefilter("ignore")
        with opened(data) as image:
            header = parse(data, len(data))
            # the scan has bounded those of the header alone
            size = header.width, header.height
            if image.size != size:
                raise Undecodable(f"an image of {image.size}, its header says {size}")
            if least:
                image.draft(image.mode, least)
            image.load()
            if header.format == PNG:
                _require_checked(data)
            if not image.mode.startswith("I"):
                return image if image.mode == "RGB" else image.convert("RGB")
            levels = np.asarray(image).clip(0, (1 << header.depth) - 1) >> (
                header.depth - 8
            )
            return Image.fromarray(levels.astype(np.uint8)).convert("RGB")


def _require_checked(data: bytes) -> None:
    """Raise Undecodable for a PNG whose pixels are not those that its checksums are of.

    Pillow looks at none of the last ones: where the end of a file has become zeros, as in a copy that was cut off,
    its image goes on in black.
    """
    begin = 8  # of a chunk: length, kind, content, checksum
    while (kind := data[begin + 4 : begin + 8]) not in (b"", b"IEND"):
        end = begin + 8 + int.from_bytes(data[begin : begin + 4])
        check = int.from_bytes(data[end : end + 4])
        if kind == b"IDAT" and crc32(memoryview(data)[begin + 4 : end]) != check:
            raise Undecodable("damaged pixels: their checksum is that of others")
        begin = end + 4


def shown_rgb(data: bytes, turn: int) -> Image.Image:
    """Return a whole file as `pillow_rgb` does, turned by one of dataset.images.columns.TURN_OF."""
    picture = pillow_rgb(data)
    return (
        Image.fromarray(np.ascontiguousarray(turned_pixels(np.asarray(picture), turn)))
        if turn
        else picture
    )


def _pil(data: bytes, region: Region) -> Array:
    try:
        stored = stored_pixels(data)
        if stored is not None:
            # a view, which `exactly` finds too small where the image is
            return stored[region[1] : region[3], region[0] : region[2]]
        colour = pillow_rgb(data)
        # `crop` would fill up with black
        if region[2] > colour.width or region[3] > colour.height:
            raise Undecodable(f"an image of {colour.size}, its header said more")
        return np.asarray(
            colour if region == (0, 0, *colour.size) else colour.crop(region)
        )
    except UserError:
        raise
    except Exception as error:  # PIL raises OSError, SyntaxError, ValueError, struct.error, ... on damaged files
        raise Undecodable(str(error)) from error


def _cropped(whole: Callable[[bytes], Array]) -> Decode:
    """Return what decodes a region, of what decodes all of an image."""

    def decode(data: bytes, region: Region) -> Array:
        left, top, right, bottom = region
        return whole(data)[top:bottom, left:right]

    return decode


def _make_torchvision() -> Decode:
    from torchvision.io import ImageReadMode, decode_jpeg

    # torchvision 0.29 announces that TorchCodec will take its decoders over; as an error it would look like a
    # damaged file
    warnings.filterwarnings(
        "ignore",
        message="The image decoding and encoding capabilities",
        category=DeprecationWarning,
    )

    def whole(data: bytes) -> Array:
        buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return decode_jpeg(buffer, mode=ImageReadMode.RGB).permute(1, 2, 0).numpy()

    return _cropped(whole)


def _make_opencv() -> Decode:
    # 130 MB of libraries, which no other reader needs
    import cv2

    cv2.setNumThreads(0)
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION

    def whole(data: bytes) -> Array:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
        if pixels is None:
            raise Undecodable("OpenCV gives no image")
        return pixels

    return _cropped(whole)


class _NvImageCodec:
    """Decodes the region alone, with one thread. docs/benchmarks/loader.md has its rates beside PIL."""

    def __init__(self) -> None:
        from nvidia import nvimgcodec

        self._codec = nvimgcodec
        cpu_only = nvimgcodec.Backend(nvimgcodec.BackendKind.CPU_ONLY)
        self._decoder = nvimgcodec.Decoder(
            device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY,
            backends=[cpu_only],
            max_num_cpu_threads=1,
        )
        self._params = nvimgcodec.DecodeParams(apply_exif_orientation=False)

    def __call__(self, data: bytes, region: Region) -> Array:
        (pixels,) = self.many([data], [region])
        if pixels is None:
            raise Undecodable("nvImageCodec gives no image")
        return pixels

    def many(
        self, datas: Sequence[bytes], regions: Sequence[Region]
    ) -> list[Array | None]:
        """Return the pixels of each region, None where there are none, by a single call.

        Each call waits for the decoder's own thread, which costs a tenth of a decode.
        """
        codec = self._codec
        streams = [
            codec.CodeStream(data).get_sub_code_stream(
                region=codec.Region(top, left, bottom, right)
            )
            for data, (left, top, right, bottom) in zip(datas, regions, strict=True)
        ]
        return [
            None if image is None else np.asarray(image)
            for image in self._decoder.decode(streams, params=self._params)
        ]


READERS: dict[str, Callable[[], Decode]] = {
    "nvimgcodec": _NvImageCodec,
    "torchvision": _make_torchvision,
    "opencv": _make_opencv,
    "pil": lambda: _pil,
}
"""Name, as --reader in settings/loading.py has it -> a function that makes the decoder, called in the process that
decodes."""

FASTEST_FIRST = ("nvimgcodec", "torchvision", "pil")
"""What --reader auto tries: readers whose pixels are PIL's, bit for bit."""


def choose(name: str) -> str:
    """Return `name`; for `auto` the fastest installed reader with exactly PIL's pixels on a probe."""
    if name != "auto":
        return name
    probe = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(probe).save(buffer, "JPEG", quality=80)
    region = (5, 3, 61, 40)
    for candidate in FASTEST_FIRST:
        try:
            with uninterrupted():
                pixels = READERS[candidate]()(buffer.getvalue(), region)
            if np.array_equal(pixels, _pil(buffer.getvalue(), region)):
                return candidate
        except (ImportError, OSError, RuntimeError):
            continue
    return "pil"


def exactly(decode: Decode, data: bytes, region: Region) -> Array:
    """Return the region, all of it. Raises Undecodable when the image is smaller than its header said."""
    pixels = decode(data, region)
    if pixels.shape != (region[3] - region[1], region[2] - region[0], 3):
        raise Undecodable(f"the region has {pixels.shape} pixels")
    return pixels


def decode_many(
    decode: Decode,
    datas: Sequence[bytes],
    regions: Sequence[Region],
    begun: Callable[[int], object],
) -> list[Array | None]:
    """Decode each region, None where this decoder gives none; at once where the decoder can.

    `begun` is told the place of each one that is begun, and -1 for all at once.
    """
    decoded: list[Array | None] = []
    begun(-1)
    try:
        if datas and isinstance(decode, _NvImageCodec):
            decoded = decode.many(datas, regions)
    except RuntimeError:  # one of them, it does not say which
        decoded = []
    if not decoded:
        for place, (data, region) in enumerate(zip(datas, regions, strict=True)):
            begun(place)
            try:
                decoded.append(decode(data, region))
            except Exception:  # decoders raise what they like on damaged files
                decoded.append(None)
    return decoded


def resize_pil(
    out: Array, pixels: Array, window: Array, interpolation: str = "bilinear"
) -> None:
    """Do what `resize_window` does, by Pillow itself: with `--reader pil` nothing else touches a sample."""
    if interpolation not in ANTIALIASED:
        sample_window(out, pixels, window, nearest=interpolation == "nearest")
        return
    height, width = out.shape[:2]
    image = Image.fromarray(np.ascontiguousarray(pixels))
    left, top, right, bottom = window.tolist()
    resample = ANTIALIASED[interpolation][0]
    out[:] = image.resize((width, height), resample, (left, top, right, bottom))


def resize_window(
    out: Array, pixels: Array, window: Array, interpolation: str = "bilinear"
) -> None:
    """Fill `out`, uint8 [h, w, 3], with a window of `pixels`, by --interpolation.

    The window is x0 y0 x1 y1, and may be fractional.
    """
    height, width = pixels.shape[:2]
    if interpolation not in ANTIALIASED or tuple(window) != (0, 0, width, height):
        resize_pil(out, pixels, window, interpolation)
    elif out.shape == pixels.shape:
        out[:] = pixels
    else:
        resized = out if out.flags.c_contiguous else np.empty(out.shape, np.uint8)
        _resize_whole(resized, pixels, interpolation)
        if resized is not out:
            out[:] = resized


def sample_window(out: Array, pixels: Array, window: Array, *, nearest: bool) -> None:
    """Fill `out` with what lies at its pixels' centres: the nearest pixel, or what is between four."""
    left, top, right, bottom = window
    levels = pixels if nearest else pixels.astype(np.float32)
    for axis, begin, end in ((0, top, bottom), (1, left, right)):
        count, side = out.shape[axis], pixels.shape[axis]
        places = begin + (np.arange(count) + 0.5) * (end - begin) / count - 0.5
        if nearest:
            index = np.clip(np.floor(places + 0.5).astype(np.int64), 0, side - 1)
            levels = levels.take(index, axis)
            continue
        low = np.clip(np.floor(places).astype(np.int64), 0, side - 1)
        high = np.minimum(low + 1, side - 1)
        share = np.clip(places - low, 0, 1).astype(np.float32)
        share = share.reshape(-1, 1, 1).swapaxes(0, axis)
        levels = levels.take(low, axis) * (1 - share) + levels.take(high, axis) * share
    out[:] = np.rint(levels)


def _resize_whole(out: Array, pixels: Array, interpolation: str) -> None:
    """Call torch's interpolate, into `out`: 0.08 ms an image, and 0.24 through the public function."""
    owned = np.require(pixels, requirements=["C", "W"])  # PIL's arrays are read-only
    given, result = (
        torch.from_numpy(array).permute(2, 0, 1)[None] for array in (owned, out)
    )
    ANTIALIASED[interpolation][1](
        given, list(out.shape[:2]), False, None, None, out=result
    )


ANTIALIASED: dict[str, tuple[Image.Resampling, Callable[..., object]]] = {
    "bilinear": (Image.Resampling.BILINEAR, torch.ops.aten._upsample_bilinear2d_aa.out),
    "bicubic": (Image.Resampling.BICUBIC, torch.ops.aten._upsample_bicubic2d_aa.out),
}
"""Interpolation -> Pillow's filter, and torch's."""
