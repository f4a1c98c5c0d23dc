"""How fast the decoders that are installed are on files which a program's workers have decoded.

Each gives what the program has from its own: a picture of Pillow, where that decodes.
"""

from __future__ import annotations

import functools
import io
import sys
import timeit
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any


def _pillow(data: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(data)).convert("RGB")


def _torchvision(data: bytes) -> Any:
    import torch
    from torchvision.io import ImageReadMode, decode_image

    content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    pixels = decode_image(content, ImageReadMode.RGB)
    return pixels.permute(1, 2, 0).contiguous().numpy()


def _opencv(data: bytes) -> Any:
    import cv2
    import numpy

    pixels = cv2.imdecode(numpy.frombuffer(data, numpy.uint8), cv2.IMREAD_COLOR)
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)


@functools.cache
def _nvimagecodec() -> Any:
    from nvidia import nvimgcodec as codec

    return codec.Decoder(
        device_id=codec.NVIMGCODEC_DEVICE_CPU_ONLY,
        backends=[codec.Backend(codec.BackendKind.CPU_ONLY)],
        max_num_cpu_threads=1,
    )


DECODERS: dict[str, Callable[[bytes], Any]] = {
    "Pillow": _pillow,
    "torchvision.io": _torchvision,
    "OpenCV": _opencv,
    "nvImageCodec, as ours": lambda data: sys.modules["numpy"].asarray(
        _nvimagecodec().decode(data)
    ),
}
"""Name -> what makes pixels of a file's content, or fails where that is not installed."""
TIMES = 3


def measured(paths: Sequence[str], for_pillow: bool) -> dict[str, float]:
    """Return ms a file of each decoder that is installed and decodes all of them, on one core; `for_pillow` where the
    program goes on with pictures of Pillow.
    """
    contents = [Path(path).read_bytes() for path in paths if Path(path).is_file()]

    def decode_all(name: str) -> None:
        for content in contents:
            pixels = DECODERS[name](content)
            if for_pillow and name != "Pillow":
                sys.modules["PIL.Image"].fromarray(pixels)

    torch = sys.modules["torch"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as workers have it
    times_ms: dict[str, float] = {}
    for name in DECODERS if contents else ():
        # what cannot decode one of them is no choice, whatever it says
        with suppress(Exception):
            decode = functools.partial(decode_all, name)
            seconds = timeit.repeat(decode, number=1, repeat=TIMES)
            times_ms[name] = 1e3 * min(seconds) / len(contents)
    torch.set_num_threads(threads)
    return times_ms
