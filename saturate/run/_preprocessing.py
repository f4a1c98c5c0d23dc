"""Networks with their preprocessing inside, as operators that every exporter has. Knows no file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional

from saturate.plan.boxes import STRIDE, DetectionPolicy
from saturate.plan.clips import ClipPolicy
from saturate.plan.images import ImagePolicy


@dataclass(frozen=True, kw_only=True)
class Framing:
    """How a validation frames and normalises an image: a policy of plan/, and contracts.Pixels."""

    window: Literal["center", "stretch", "fit"]
    # of `center`: the shorter side before the crop; of `fit`: the shorter side, pixels
    resize: int
    # side of what the network gets; of `fit`: its longer side at most, pixels
    image_size: int
    mean: tuple[float, float, float]  # of RGB in [0, 1]
    std: tuple[float, float, float]
    interpolation: str  # a name of FILTERS
    exif: str  # stored or shown: whether the caller turns images as EXIF says


@dataclass(frozen=True, kw_only=True)
class ClipFraming(Framing):
    """A Framing that also says which frames of a video are a clip."""

    frames: int
    stride: int  # from one frame to the next: frames of the video, or of `fps`
    fps: float | None


def _triangle(offsets: torch.Tensor) -> torch.Tensor:
    return torch.clamp(1 - offsets.abs(), min=0.0)


def _cubic(offsets: torch.Tensor) -> torch.Tensor:
    """Return Keys' kernel with a = -1/2, which Pillow has."""
    far = offsets.abs()
    near = (1.5 * far - 2.5) * far * far + 1
    outer = ((-0.5 * far + 2.5) * far - 4) * far + 2
    return torch.where(
        far < 1, near, torch.where(far < 2, outer, torch.zeros_like(far))
    )


FILTERS = {"bilinear": _triangle, "bicubic": _cubic}
"""--interpolation -> its kernel, of distances in pixels of whichever image has larger ones."""


HALF = 0.501
"""It is added to levels before they are rounded down: so a half goes up, as Pillow rounds, whatever its last bit is."""


class Preprocessed(nn.Module):
    """A network that takes RGB levels of any height and width, uint8 [..., H, W, 3], as they are decoded.

    Pixels are resized by the filters of Pillow: two products with matrices that are made of the size. Levels
    are rounded after each, as Pillow does; it may take the rows first, which may be another grey level.
    """

    axes: tuple[str | int, ...]
    """The axes of the input: a name for one that varies, the length of any other."""
    outputs: tuple[str, ...] = ("logits",)
    traced = False
    """Whether the exporter records one run of it: torch.export takes no sizes that depend on what is found."""
    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, network: nn.Module, framing: Framing) -> None:
        super().__init__()
        self.network = network
        self.framing = framing
        # axes: [channels, height, width]
        self.register_buffer("mean", torch.tensor(framing.mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(framing.std).view(3, 1, 1))

    @staticmethod
    def framing_of(policy: Any, pixels: dict[str, Any]) -> Framing:
        """Return the framing of a validation's policy. `pixels`: the fields that policies do not have."""
        raise NotImplementedError

    def framed(self, images: torch.Tensor) -> torch.Tensor:
        """Return what the network gets, fp32 [N, 3, h, w], of uint8 [N, H, W, 3]."""
        levels = images.permute(0, 3, 1, 2).float()
        rows, columns = self._windows(levels)
        across = self._filter(levels.shape[3], *columns, like=levels)
        down = self._filter(levels.shape[2], *rows, like=levels)
        levels = torch.floor(levels @ across.T + HALF).clamp(0, 255)
        levels = torch.floor(down @ levels + HALF).clamp(0, 255)
        return (levels / 255 - self.mean) / self.std

    def _windows(self, levels: torch.Tensor) -> list[tuple[Any, Any, Any]]:
        """Return begin and end, in stored pixels, and the length of what they fill: of rows, and of columns."""
        framing = self.framing
        # as tensors: sizes are known when the exported network runs
        lengths = [_length(side, levels) for side in levels.shape[2:]]
        shorter, longer = torch.minimum(*lengths), torch.maximum(*lengths)
        if framing.window == "stretch":
            return [(length * 0, length, framing.image_size) for length in lengths]
        if framing.window == "fit":
            # in fp64 and by tensors, as plan.windows.fitted to the last bit: what is rounded down may be 62.99...
            wanted, most = (
                torch.full_like(shorter, side, dtype=torch.double)
                for side in (framing.resize, framing.image_size)
            )
            scale = torch.minimum(wanted / shorter, most / longer)
            sides = [torch.floor(length * scale).clamp(min=1) for length in lengths]
            return [
                (length * 0, length, side.long()[0])
                for length, side in zip(lengths, sides, strict=True)
            ]
        windows = []
        for length in lengths:
            resized = torch.floor(framing.resize * length / shorter)
            begin = self._half(resized - framing.image_size)
            step = length / resized
            end = (begin + framing.image_size) * step
            windows.append((begin * step, end, framing.image_size))
        return windows

    def _half(self, margin: torch.Tensor) -> torch.Tensor:
        """Return how much of a margin, whole pixels, lies before the crop: to even, as torchvision's crop."""
        return torch.round(margin / 2)

    def _filter(
        self,
        length: int,
        begin: torch.Tensor,
        end: torch.Tensor,
        size: Any,
        *,
        like: torch.Tensor,
    ) -> torch.Tensor:
        """Return fp32 [size, length], the weight of each stored pixel in each pixel of the output."""
        scale = (end - begin) / size
        support = torch.clamp(scale, min=1.0)
        centres = begin + (torch.arange(size, device=like.device) + 0.5) * scale
        offsets = torch.arange(length, device=like.device) + 0.5
        kernel = FILTERS[self.framing.interpolation]
        weights = kernel((offsets[None, :] - centres[:, None]) / support)
        return weights / weights.sum(dim=1, keepdim=True)


class Images(Preprocessed):
    """uint8 [B, H, W, 3] -> a classifier's logits, fp32 [B, C]."""

    axes = ("batch", "height", "width", 3)

    @staticmethod
    def framing_of(policy: ImagePolicy, pixels: dict[str, Any]) -> Framing:
        return Framing(
            window="stretch" if policy.window == "stretch" else "center",
            resize=policy.resize,
            image_size=policy.image_size,
            **pixels,
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits, fp32 [B, C]."""
        logits: torch.Tensor = self.network(self.framed(images))
        return logits.float()


class Clips(Preprocessed):
    """uint8 [B, T, H, W, 3], T frames of a video -> a classifier's logits, fp32 [B, C]: of the middle crop."""

    def __init__(self, network: nn.Module, framing: ClipFraming) -> None:
        super().__init__(network, framing)
        self.axes = ("batch", framing.frames, "height", "width", 3)

    @staticmethod
    def framing_of(policy: ClipPolicy, pixels: dict[str, Any]) -> ClipFraming:
        return ClipFraming(
            window="center",
            resize=policy.resize,
            image_size=policy.image_size,
            frames=policy.frames,
            stride=policy.stride,
            fps=policy.fps,
            **pixels,
        )

    def _half(self, margin: torch.Tensor) -> torch.Tensor:
        # up, as plan.clips.fixed_window
        return torch.ceil(margin / 2)

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        """Return logits, fp32 [B, C]."""
        frames = self.framed(clips.flatten(0, 1))
        # axes: [B, 3, T, h, w]
        own = frames.unflatten(0, (-1, clips.shape[1])).transpose(1, 2)
        logits: torch.Tensor = self.network(own)
        return logits.float()


class Detections(Preprocessed):
    """uint8 [H, W, 3], one image -> what models.detection.Detector finds in it, best first."""

    axes = ("height", "width", 3)
    outputs = ("boxes", "labels", "scores")
    traced = True

    @staticmethod
    def framing_of(policy: DetectionPolicy, pixels: dict[str, Any]) -> Framing:
        return Framing(
            window="fit" if policy.longer else "stretch",
            resize=policy.size,
            image_size=policy.longer or policy.size,
            **pixels,
        )

    def forward(
        self, image: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return boxes fp32 [N, 4], x0 y0 x1 y1 in pixels of the image; labels int64 [N]; scores fp32 [N]."""
        pixels = self.framed(image[None])
        height, width = pixels.shape[2:]
        if self.framing.window == "fit":
            padding = (0, -width % STRIDE, 0, -height % STRIDE)
            pixels = functional.pad(pixels, padding)
        (detections,) = self.network(pixels, [(height, width)])
        rows, columns = (_length(side, image) for side in image.shape[:2])
        limits = torch.cat([columns, rows, columns, rows])
        scale = torch.cat([columns / width, rows / height]).repeat(2)
        boxes = torch.minimum(detections["boxes"] * scale, limits)
        return boxes, detections["labels"], detections["scores"]


def _length(length: int, like: torch.Tensor) -> torch.Tensor:
    """Return a length as fp32 [1]."""
    return torch.arange(length, device=like.device)[-1:] + 1.0
