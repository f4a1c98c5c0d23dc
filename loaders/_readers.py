"""Image decoders on the CPU: bytes -> RGB uint8 of a region. One small function each, and the resize that follows.

PIL is the reference, and defines what can be decoded: whatever is not a plain 8-bit grey or RGB JPEG goes to PIL in every
reader, and so does what another decoder refuses.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image

Array = np.ndarray[Any, Any]
Decode = Callable[[bytes, tuple[int, int, int, int]], Array]

Image.MAX_IMAGE_PIXELS = None  # the manifest knows every size before anything is decoded


class Undecodable(ValueError):
    """These bytes are no image that PIL can decode."""


def _pil(data: bytes, region: tuple[int, int, int, int]) -> Array:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a damaged EXIF block is no business of the pixels
            with Image.open(io.BytesIO(data)) as image:
                return np.asarray(image.convert("RGB"))[region[1] : region[3], region[0] : region[2]]
    except Exception as error:  # PIL raises OSError, SyntaxError, ValueError, struct.error, ... on damaged files
        raise Undecodable(str(error)) from error


def _make_pil() -> Decode:
    return _pil


def _make_torchvision() -> Decode:
    from torchvision.io import ImageReadMode, decode_jpeg

    # torchvision 0.29 announces that TorchCodec will take its decoders over; as an error it would look like a damaged file
    warnings.filterwarnings("ignore", message="The image decoding and encoding capabilities", category=DeprecationWarning)

    def decode(data: bytes, region: tuple[int, int, int, int]) -> Array:
        buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        pixels = decode_jpeg(buffer, mode=ImageReadMode.RGB)
        return pixels.permute(1, 2, 0).numpy()[region[1] : region[3], region[0] : region[2]]

    return decode


def _make_opencv() -> Decode:
    import cv2

    cv2.setNumThreads(0)

    def decode(data: bytes, region: tuple[int, int, int, int]) -> Array:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)
        if pixels is None:
            raise Undecodable("OpenCV gives no image")
        return pixels[region[1] : region[3], region[0] : region[2]]

    return decode


def _make_imageio() -> Decode:
    import imageio.v3 as imageio

    def decode(data: bytes, region: tuple[int, int, int, int]) -> Array:
        return imageio.imread(data, mode="RGB", rotate=False)[region[1] : region[3], region[0] : region[2]]

    return decode


def _make_nvimgcodec() -> Decode:
    """Decodes the region alone, with one thread. docs/benchmarks/image.md: 1.9x PIL a core."""
    from nvidia import nvimgcodec

    cpu_only = nvimgcodec.Backend(nvimgcodec.BackendKind.CPU_ONLY)
    decoder = nvimgcodec.Decoder(device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY, backends=[cpu_only], max_num_cpu_threads=1)
    params = nvimgcodec.DecodeParams(apply_exif_orientation=False)

    def decode(data: bytes, region: tuple[int, int, int, int]) -> Array:
        left, top, right, bottom = region
        stream = nvimgcodec.CodeStream(data).get_sub_code_stream(region=nvimgcodec.Region(top, left, bottom, right))
        image = decoder.decode(stream, params=params)
        if image is None:
            raise Undecodable("nvImageCodec gives no image")
        return np.asarray(image)

    return decode


READERS: dict[str, Callable[[], Decode]] = {
    "nvimgcodec": _make_nvimgcodec,
    "torchvision": _make_torchvision,
    "opencv": _make_opencv,
    "imageio": _make_imageio,
    "pil": _make_pil,
}
"""name -> a function that makes the decoder; called in the process that decodes."""

FASTEST_FIRST = ("nvimgcodec", "torchvision", "pil")


def choose(name: str) -> str:
    """`auto` resolved: the fastest installed reader whose pixels were PIL's, bit for bit, on a probe made here."""
    if name != "auto":
        return name
    probe = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(probe).save(buffer, "JPEG", quality=80)
    region = (5, 3, 61, 40)
    for candidate in FASTEST_FIRST:
        try:
            if np.array_equal(READERS[candidate]()(buffer.getvalue(), region), _pil(buffer.getvalue(), region)):
                return candidate
        except (ImportError, OSError, RuntimeError):
            continue
    return "pil"


def exactly(decode: Decode, data: bytes, region: tuple[int, int, int, int]) -> Array:
    """The region, all of it. Raises Undecodable when the image turns out smaller than its header said."""
    pixels = decode(data, region)
    if pixels.shape != (region[3] - region[1], region[2] - region[0], 3):
        raise Undecodable(f"the region has {pixels.shape} pixels")
    return pixels


def resize_pil(pixels: Array, window: Array, size: tuple[int, int]) -> Array:
    """uint8 [size, 3] by Pillow itself: with `--reader pil` a sample goes through nothing but Pillow, as in torchvision's transforms."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling.BILINEAR, box=(window[0], window[1], window[2], window[3])))


def resize_window(pixels: Array, window: Array, size: tuple[int, int]) -> Array:
    """uint8 [size, 3] (height, width): the window (x0 y0 x1 y1, may be fractional) of `pixels`, antialiased triangle filter."""
    height, width = pixels.shape[:2]
    x0, y0, x1, y1 = window
    if (x0, y0, x1, y1) == (0, 0, width, height):
        if (height, width) == size:
            return pixels
        owned = np.require(pixels, requirements=["C", "W"])  # PIL's arrays are read-only
        tensor = torch.from_numpy(owned).permute(2, 0, 1)[None]
        resized = torch.nn.functional.interpolate(tensor, size, mode="bilinear", antialias=True, align_corners=False)
        return resized[0].permute(1, 2, 0).numpy()
    return resize_pil(pixels, window, size)
