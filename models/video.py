"""torchvision's video registry by name, and a small network: builds, fits the head to the classes, loads
weights. Imports none of ours."""

from __future__ import annotations

import torchvision
from torch import nn
from torchvision.models.video.resnet import BasicBlock, Conv3DSimple, VideoResNet

from saturate.models import Loaded, Native
from saturate.models._weights import (
    batches,
    categories,
    dry_run,
    load,
    published_weights,
    set_depth,
    suiting,
)


class Tiny(VideoResNet):
    """r3d_18 with one block a stage and a quarter of the channels: learns small clips on a CPU."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(
            BasicBlock, [Conv3DSimple] * 4, [1] * 4, _TinyStem, num_classes
        )
        self.fc = nn.Linear(512 // 4, num_classes)

    def _make_layer(
        self, block: type, conv_builder: type, planes: int, blocks: int, stride: int = 1
    ) -> nn.Sequential:
        if stride == 1:  # the first: torchvision's stem has 64
            self.inplanes = 64 // 4
        layers: nn.Sequential = super()._make_layer(
            block, conv_builder, planes // 4, blocks, stride
        )
        return layers


class _TinyStem(nn.Sequential):
    """torchvision's BasicStem, a quarter as wide."""

    def __init__(self) -> None:
        conv = nn.Conv3d(
            3,
            64 // 4,
            kernel_size=(3, 7, 7),
            stride=(1, 2, 2),
            padding=(1, 3, 3),
            bias=False,
        )
        super().__init__(conv, nn.BatchNorm3d(64 // 4), nn.ReLU(inplace=True))


OWN = {"r3d_tiny": Tiny}
"""Architectures that torchvision does not have."""
OWN_SIZE = 48
"""Side of the frames that they take, pixels."""
MEAN = (0.43216, 0.394666, 0.37645)
STD = (0.22803, 0.22145, 0.216989)


def names() -> list[str]:
    """List every architecture for clips that torchvision registers, and ours."""
    return [*torchvision.models.list_models(module=torchvision.models.video), *OWN]


def native(arch: str, weights: str | None = None) -> Native:
    """Return the side of the frames, mean and deviation of torchvision's first weights; of ours those of
    Kinetics-400."""
    published = [*published_weights(arch).values()]
    if not published:
        return Native(OWN_SIZE, MEAN, STD)
    made_for = published[0].transforms()
    return Native(int(made_for.crop_size[0]), tuple(made_for.mean), tuple(made_for.std))


def build(
    arch: str,
    *,
    classes: int,
    shape: tuple[int, ...],
    weights: str | None = None,
    stochastic_depth: float | None = None,
) -> tuple[nn.Module, Loaded]:
    """Return the module for batches of `shape` [B, 3, T, H, W], and what it began with.

    `weights` is a file, or the name of torchvision weights; `stochastic_depth` the largest probability of a
    block to be left out, None for torchvision's own. Raises Unusable, also when the architecture
    cannot train on batches of this shape.
    """
    # torchvision's mvit has no other
    made_for = f"{native(arch).size} pixels" + (
        " and 16 frames" if arch.startswith("mvit") else ""
    )
    with suiting(arch, f"--clip-frames {shape[2]} of {batches(shape)}", made_for):
        module = (
            OWN[arch](classes)
            if arch in OWN
            else torchvision.models.get_model(arch, weights=None, num_classes=classes)
        )
        dry_run(module, shape)
    if stochastic_depth is not None:
        set_depth(module, arch, stochastic_depth)
    return module, load(module, arch, weights) if weights else Loaded()


def classes(arch: str, weights: str) -> tuple[str, ...]:
    """Return the names of the outputs of torchvision's weights; () for any other file."""
    return categories(arch, weights)
