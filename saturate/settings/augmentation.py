"""Settings of how the plan draws a training or validation image."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveInt

from saturate.settings.cli import Settings
from saturate.settings.types import (
    AUGMENTED,
    CLASSIFIERS,
    LABELLED_IMAGES,
    STILLS,
    Facts,
    NotNegative,
    Share,
    Side,
    setting,
)

Alpha = Annotated[FiniteFloat, Field(ge=0, le=4)]


class AugmentationSettings(Settings):
    """Augmentations that the plan draws for each sample, with the same numbers for every loader."""

    facts: ClassVar[Facts] = Facts(tasks=AUGMENTED, evaluation="unused")

    image_size: Side | None = setting(None, evaluation="checkpoint")
    """Height and width of the training and validation images, in pixels. For detectors it is the shorter
    side, for SSD both sides. Default: what the architecture was made for, mostly 224, or 800 for
    detectors."""
    val_image_size: Side | None = setting(
        None, tasks=STILLS, changes_rate=False, evaluation="checkpoint"
    )
    """Height and width of the validation images, in pixels, where they are others: torchvision trains
    ResNet-50 at 176 and validates at 224. For detectors it is the shorter side. Default: --image-size."""
    image_size_start: Side | None = setting(None, tasks=LABELLED_IMAGES)
    """Height and width of the training images in the first epochs, pixels: smaller than --image-size, to
    which they grow as --image-size-ramp says. Default: the same size in all epochs."""
    image_size_ramp: tuple[NonNegativeInt, NonNegativeInt] | None = setting(
        None, tasks=LABELLED_IMAGES
    )
    """Growing training images: the last epoch with --image-size-start, and the first with --image-size, from
    0 on; in between in proportion, rounded to multiples of 32. FFCV's 16 epochs: 11 13."""
    interpolation: (
        Literal["bilinear", "bicubic", "bilinear-no-antialias", "nearest"] | None
    ) = setting(None, tasks=LABELLED_IMAGES, evaluation="checkpoint")
    """How images are resized. bilinear and bicubic are antialiased, as Pillow does. Default: what the
    architecture's weights were made for, mostly bilinear."""
    train_window: Literal["random-resized", "center", "stretch"] = setting(
        "random-resized", tasks=LABELLED_IMAGES
    )
    """Training window: torchvision's RandomResizedCrop, the validation's centre crop, or the whole image
    stretched."""
    crop_scale: tuple[FiniteFloat, FiniteFloat] = setting(
        (0.08, 1.0), tasks=LABELLED_IMAGES, needs=("train_window", "random-resized")
    )
    """RandomResizedCrop: smallest and largest area, as a share of the image's."""
    crop_ratio: tuple[FiniteFloat, FiniteFloat] = setting(
        (3 / 4, 4 / 3), tasks=LABELLED_IMAGES, needs=("train_window", "random-resized")
    )
    """RandomResizedCrop: smallest and largest width / height."""
    flip: Share = 0.5
    """Probability of a left-right flip in training."""
    repeats: PositiveInt = setting(1, tasks=CLASSIFIERS)
    """Repeated augmentation: rows of a sample that follow one another in an epoch, each drawn anew. The epoch
    keeps its length, so that it shows as many samples fewer; DeiT's is 3."""
    vflip: Share = 0.0
    """Probability of a top-bottom flip in training."""
    auto_augment: str = setting("none", tasks=CLASSIFIERS)
    """Policy that chooses operations: randaugment (2 of 14, magnitude 9 of 30), trivialaugment, autoaugment
    (ImageNet's), 3augment (greyscale, solarize or blur), none, or timm's string, such as
    rand-m9-mstd0.5-inc1. Pixels are moved bilinearly."""
    color_jitter: NotNegative = 0.0
    """Brightness, contrast and saturation are scaled by up to 1 +- this, in an order that is drawn. For
    detectors contrast is about black, not about the image's mean: a second brightness, as in SSD."""
    hue_jitter: Annotated[FiniteFloat, Field(ge=0, le=0.5)] = 0.0
    """The hue is turned by up to this share of a circle, to either side."""
    grayscale: Share = 0.0
    """Probability that a training image becomes grey."""
    blur: Share = setting(0.0, tasks=CLASSIFIERS)
    """Probability of a Gaussian blur of 0.1 to 2 pixels."""
    transforms: str | None = setting(
        None, tasks=LABELLED_IMAGES, needs=("loader", "torchvision")
    )
    """A function of your own, package.module:function, that changes each training image in the worker:
    f(image, rng) takes and returns uint8 [height, width, 3]. For images with a label, by the torchvision
    loader."""
    transforms_on: Literal["output", "region"] = setting(
        "output", tasks=LABELLED_IMAGES, needs=("transforms",)
    )
    """Which pixels that function gets: output = those that the network will see, before they are flipped;
    region = those of the training window at the file's own size, before it is resized."""
    erase: Share = 0.0
    """Probability that a rectangle of 2 to 33 % of a training image is erased."""
    erase_mode: Literal["const", "rand", "pixel"] = setting("const", needs=("erase",))
    """What an erased rectangle becomes: --mean, one colour, or normal noise around --mean pixel by pixel."""
    mixup: Alpha = setting(0.0, tasks=CLASSIFIERS)
    """Mixup: alpha of Beta(alpha, alpha), which the share of the own image and label is drawn from, once a
    micro-batch. 0: none. Published: 0.1 to 0.8."""
    cutmix: Alpha = setting(0.0, tasks=CLASSIFIERS)
    """CutMix: the same for a rectangle of another image. 0: none. Published: 1. With both on,
    --mix-switch-prob says which."""
    mix_prob: Share = setting(1.0, tasks=CLASSIFIERS)
    """Probability that a micro-batch is mixed, where --mixup or --cutmix is on."""
    mix_switch_prob: Share = setting(0.5, tasks=CLASSIFIERS, needs=("cutmix",))
    """Probability of cutmix where both are on."""
    val_window: Literal["center", "stretch"] | None = setting(
        None, tasks=LABELLED_IMAGES, changes_rate=False, evaluation="checkpoint"
    )
    """Validation window: Resize(shorter side) + CenterCrop, or the whole image stretched. Default: what the
    architecture's weights were made for, mostly center."""
    val_resize: Side | None = setting(
        None,
        tasks=CLASSIFIERS,
        needs=("val_window", "center"),
        changes_rate=False,
        evaluation="checkpoint",
    )
    """Validation: length of the shorter side before the crop, pixels. Default: validation image size * 256 /
    224, rounded down, or what the --weights of that name were measured with; for --val-crops 3 the image
    size."""
    val_crop_share: Annotated[FiniteFloat, Field(gt=0, le=1)] | None = setting(
        None,
        tasks=LABELLED_IMAGES,
        needs=("val_window", "center"),
        changes_rate=False,
        evaluation="checkpoint",
    )
    """Validation: share of the shorter side that the crop takes, in place of --val-resize, which is then the
    crop's side over it, rounded down. It is timm's --crop-pct."""
    mean: tuple[FiniteFloat, FiniteFloat, FiniteFloat] | None = setting(
        None, evaluation="checkpoint"
    )
    """Mean that is subtracted from RGB in [0, 1]. Default: what the architecture's published weights take:
    ImageNet's mean, Kinetics', or SSD's own."""
    std: tuple[FiniteFloat, FiniteFloat, FiniteFloat] | None = setting(
        None, evaluation="checkpoint"
    )
    """Standard deviation that RGB is divided by after the mean is subtracted. Default: as for --mean."""
