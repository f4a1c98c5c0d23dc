"""SRCNN on ready patches as one trains it by hand: a DataLoader, Pillow, pinned memory. Nothing of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset

SCALE = 4


class Patches(Dataset[Any]):
    """(luma of a patch that was made small and large again, luma of the patch), fp32 [1, H, W] in [0, 1]."""

    def __init__(self, root: Path) -> None:
        self.files = sorted(root.rglob("*.png"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        with Image.open(self.files[index]) as file:
            luma = file.convert("YCbCr").getchannel(0)
        bicubic = Image.Resampling.BICUBIC
        small = luma.resize((luma.width // SCALE, luma.height // SCALE), bicubic)
        return _tensor(small.resize(luma.size, bicubic)), _tensor(luma)


def _tensor(luma: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(luma, np.float32) / 255)[None]


def model() -> nn.Module:
    """Return SRCNN 9-1-5, padded."""
    return nn.Sequential(
        nn.Conv2d(1, 64, 9, padding=4),
        nn.ReLU(inplace=True),
        nn.Conv2d(64, 32, 1),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 1, 5, padding=2),
    )
