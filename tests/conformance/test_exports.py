"""A file of each format gives its network the pixels that torchvision gives, by a runtime that we have not opened."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnxruntime import InferenceSession
from PIL import Image
from torch import nn
from torchvision import transforms

from saturate.contracts import Array
from saturate.run import export
from saturate.run._preprocessing import ClipFraming, Clips, Framing, Images

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
PIXELS: dict[str, Any] = {"mean": MEAN, "std": STD, "interpolation": "bilinear"}
PIXELS |= {"exif": "stored", "window": "center", "resize": 32, "image_size": 24}
ABOUT = {"classes": '["a", "b"]', "arch": "flatten"}


def smooth(seed: int, count: int, size: tuple[int, int]) -> Array:
    """Return pictures, uint8 [count, H, W, 3], whose parts differ."""
    coarse = np.random.default_rng(seed).integers(0, 256, (count, 5, 7, 3), np.uint8)
    pictures = [Image.fromarray(one).resize(size[::-1]) for one in coarse]
    return np.stack([np.asarray(picture) for picture in pictures])


def by_hand(frames: Array) -> Array:
    """Return what frames, uint8 [T, H, W, 3], are for a network, by torchvision on Pillow's images: [3, T, 24, 24]."""
    framed = transforms.Compose([transforms.Resize(32), transforms.CenterCrop(24)])
    shown = np.stack([np.asarray(framed(Image.fromarray(one))) for one in frames])
    return ((shown / 255 - MEAN) / STD).transpose(3, 0, 1, 2)


def still(size: tuple[int, int]) -> tuple[Any, Array, Array]:
    """Return a network that answers its pixels, a photo, and these."""
    photo = smooth(1, 1, size)
    return Images(nn.Flatten(), Framing(**PIXELS)), photo, by_hand(photo)


def clip(size: tuple[int, int]) -> tuple[Any, Array, Array]:
    """Return a network that answers its pixels, a clip of three frames, and these."""
    framing = ClipFraming(**PIXELS, frames=3, stride=1, fps=None)
    frames = smooth(2, 3, size)
    return Clips(nn.Flatten(), framing), frames[None], by_hand(frames)


def by_onnxruntime(content: bytes, given: Array) -> tuple[Array, dict[str, str]]:
    session = InferenceSession(content, providers=["CPUExecutionProvider"])
    model = onnx.load_from_string(content)
    about = {one.key: one.value for one in model.metadata_props}
    return np.asarray(session.run(None, {"images": given})[0]), about


def by_torch(content: bytes, given: Array) -> tuple[Array, dict[str, str]]:
    files = {"metadata.json": ""}
    program = torch.export.load(io.BytesIO(content), extra_files=files)
    answers = program.module()(torch.from_numpy(given))
    return answers.detach().numpy(), json.loads(files["metadata.json"])


CASES: dict[str, Callable[..., tuple[Any, Array, Array]]] = {
    "classification": still,
    "video": clip,
}
RUNTIMES = {"onnx": by_onnxruntime, "pt2": by_torch}


@pytest.mark.parametrize("form", export.FORMATS)
@pytest.mark.parametrize("task", export.EXPORTED)
def test_a_file_gives_its_network_torchvisions_pixels(task: str, form: str) -> None:
    assert form in RUNTIMES, f"--format {form} has no case in RUNTIMES"
    if task == "detection":  # tests/unit/test_preprocessing.py has its ONNX file
        return
    assert task in CASES, f"an exported {task} has no case in CASES"
    content, _ = export.FORMATS[form](CASES[task]((48, 64))[0], ABOUT)
    for size in ((48, 64), (70, 41)):
        _, given, expected = CASES[task](size)
        answers, about = RUNTIMES[form](content, given)
        levels = 255 * 0.2 * np.abs(answers - expected.reshape(1, -1))
        # Pillow rounds between its two passes
        assert levels.max() < 1.3 and levels.mean() < 0.01
        assert about == ABOUT
