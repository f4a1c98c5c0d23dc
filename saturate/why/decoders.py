"""How fast the decoders that are installed are on files which a program's workers have decoded.

Each gives what the program has from its own: a picture of Pillow, where that decodes.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any


def _pillow() -> Callable[[bytes], Any]:
    from PIL import Image

    return lambda data: Image.open(io.BytesIO(data)).convert("RGB")


def _torchvision() -> Callable[[bytes], Any]:
    import torch
    from torchvision.io import ImageReadMode, decode_image

    def decode(data: bytes) -> Any:
        content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        pixels = decode_image(content, ImageReadMode.RGB)
        return pixels.permute(1, 2, 0).contiguous().numpy()

    return decode


def _opencv() -> Callable[[bytes], Any]:
    import cv2
    import numpy

    def decode(data: bytes) -> Any:
        pixels = cv2.imdecode(numpy.frombuffer(data, numpy.uint8), cv2.IMREAD_COLOR)
        return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)

    return decode


def _nvimagecodec() -> Callable[[bytes], Any]:
    import numpy
    from nvidia import nvimgcodec

    decoder = nvimgcodec.Decoder(
        device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY,
        backends=[nvimgcodec.Backend(nvimgcodec.BackendKind.CPU_ONLY)],
        max_num_cpu_threads=1,
    )
    return lambda data: numpy.asarray(decoder.decode(data))


DECODERS = {
    "Pillow": _pillow,
    "torchvision.io": _torchvision,
    "OpenCV": _opencv,
    "nvImageCodec, as ours": _nvimagecodec,
}
"""Name -> what gives it, or raises ImportError."""
TIMES = 3


def measured(paths: Sequence[str], for_pillow: bool) -> dict[str, float]:
    """Return ms a file of each decoder that is installed and decodes all of them, on one core; `for_pillow` where the
    program goes on with pictures of Pillow.
    """
    contents = [Path(path).read_bytes() for path in paths if Path(path).is_file()]
    found: dict[str, float] = {}
    for name, of in DECODERS.items():
        if contents:
            # what cannot decode one of them is no choice, whatever it says
            with suppress(Exception):
                decode = of()
                taken = []
                for _ in range(TIMES):
                    began = time.perf_counter()
                    for content in contents:
                        pixels = decode(content)
                        if for_pillow and name != "Pillow":
                            sys.modules["PIL.Image"].fromarray(pixels)
                    taken.append(time.perf_counter() - began)
                found[name] = 1e3 * min(taken) / len(contents)
    return found
