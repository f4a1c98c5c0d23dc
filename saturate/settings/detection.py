"""Settings of detectors alone."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from saturate.settings.cli import Settings
from saturate.settings.types import Facts, Share, Side, setting


class Detection(Settings):
    """Detectors' training and scoring (--task detection); --image-size is the shorter side, or SSD's both."""

    facts: ClassVar[Facts] = Facts(tasks=("detection",))

    augment: Literal["flip", "multiscale", "lsj", "ssd", "ssdlite"] = setting(
        "flip", evaluation="unused"
    )
    """Training images: flipped alone; at a random scale (multiscale: --short-sides; lsj: 0.1 to 2, then cut
    or filled to --image-size, as "Simple Copy-Paste"); ssd: colours, zoom out, crop by overlap, as SSD's
    paper; ssdlite: crop by overlap. All of them flip."""
    longer_side: Side | None = None
    """Largest length of the longer side, in pixels; the shorter side shrinks with it. Default: what the
    architecture was made for, mostly 1333."""
    short_sides: tuple[Side, ...] = setting(
        (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800),
        needs=("augment", "multiscale"),
        evaluation="unused",
    )
    """--augment multiscale: lengths that the shorter side is drawn from, in pixels."""
    keep_empty: bool = setting(False, evaluation="unused")
    """Also train on images without a box."""
    weights_backbone: str | None = setting(None, evaluation="own", ranks="first")
    """Start the backbone from a state dict file of its classifier, or from torchvision's weights of that
    name."""
    trainable_layers: Annotated[int, Field(ge=0, le=6)] | None = setting(
        None, evaluation="own"
    )
    """Stages of the backbone that are trained, counted from its end. Default: torchvision's, with weights;
    else all."""
    evaluator: Literal["faster-coco-eval", "pycocotools"] = setting(
        "faster-coco-eval", changes_rate=False, evaluation="own"
    )
    """Library that computes AP. Both give the same figures; faster-coco-eval is faster."""
    score_threshold: Share = setting(
        0.5, changes_rate=False, resume="free", evaluation="own", recipe=False
    )
    """Least score of what is drawn into pictures. Files of detections have all that is found, whatever its
    score."""
