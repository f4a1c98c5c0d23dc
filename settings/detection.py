"""What detectors alone have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from settings.cli import Settings
from settings.types import Side


class Detection(Settings):
    """Detectors' training and scoring (--task detection); --image-size is the shorter side, or SSD's both."""

    augment: Literal["flip", "multiscale", "lsj", "ssd", "ssdlite"] = "flip"
    """Training images: flipped alone; at a random scale (multiscale: --short-sides; lsj: 0.1 to 2, then cut
    or filled to --image-size, as "Simple Copy-Paste"); ssd: colours, zoom out, crop by overlap, as SSD's
    paper; ssdlite: crop by overlap. All of them flip."""
    longer_side: Side | None = None
    """Largest length of the longer side, in pixels; the shorter side shrinks with it. Default: what the
    architecture was made for, mostly 1333."""
    short_sides: tuple[Side, ...] = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)
    """--augment multiscale: lengths that the shorter side is drawn from, in pixels."""
    keep_empty: bool = False
    """Also train on images without a box."""
    weights_backbone: str | None = None
    """Start the backbone from a state dict file of its classifier, or from torchvision's weights of that
    name."""
    trainable_layers: Annotated[int, Field(ge=0, le=6)] | None = None
    """Stages of the backbone that are trained, counted from its end. Default: torchvision's, with weights;
    else all."""
    evaluator: Literal["faster-coco-eval", "pycocotools"] = "faster-coco-eval"
    """Library that computes AP. Both give the same figures; faster-coco-eval is faster."""
    score: Path | None = None
    """Score a results file in COCO's format against --data's validation annotations, and stop."""
