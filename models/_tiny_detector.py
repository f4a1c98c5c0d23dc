"""A detector that learns small pictures on a CPU, of torchvision's parts. Imports none of ours."""

from __future__ import annotations

from torch import nn
from torchvision.models.detection import FCOS
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.fcos import FCOSHead
from torchvision.models.resnet import BasicBlock
from torchvision.ops import Conv2dNormActivation

SIZE = 128
"""Shorter side of the detector's images, pixels."""
LONGER = 192
"""Longer side of the detector's images, pixels."""
STEM = 16
"""Channels behind the first convolution."""
PYRAMID = 64
"""Channels of each level of the pyramid."""
REACH = (4, 8, 16)
"""Pixels, one value a level: a level has the boxes whose sides are 4 to 8 of these away. Half of the strides
8, 16, 32, because objects are small here."""


def tiny(num_classes: int) -> nn.Module:
    """Build torchvision's FCOS on four stages of one block, 0.7 M parameters; `num_classes` counts the
    background."""
    body = nn.Sequential(
        Conv2dNormActivation(3, STEM, 3, stride=2),
        _stage(STEM),
        _stage(2 * STEM),
        _stage(4 * STEM),
    )
    # and a third level, pooled
    backbone = BackboneWithFPN(
        body, {"2": "0", "3": "1"}, [4 * STEM, 8 * STEM], PYRAMID
    )
    return FCOS(
        backbone,
        num_classes,
        min_size=SIZE,
        max_size=LONGER,
        anchor_generator=AnchorGenerator(
            tuple((size,) for size in REACH), ((1.0,),) * len(REACH)
        ),
        head=FCOSHead(PYRAMID, 1, num_classes, num_convs=2),
        center_sampling_radius=2.0,  # of REACH: one stride
    )


def _stage(channels: int) -> nn.Sequential:
    """Return a stage: half the size, twice the channels."""
    return nn.Sequential(
        Conv2dNormActivation(channels, 2 * channels, 3, stride=2),
        BasicBlock(2 * channels, 2 * channels),
    )
