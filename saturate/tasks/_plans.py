"""Settings -> the policies of plans: how samples are framed and augmented."""

from __future__ import annotations

import math
from dataclasses import fields

from saturate.contracts import UserError
from saturate.models import Native
from saturate.plan.augment import AUGMENTATIONS, Augment, Look
from saturate.plan.boxes import DetectionPolicy
from saturate.plan.clips import ClipPolicy
from saturate.plan.images import Growth, ImagePolicy
from saturate.plan.mixing import Mixing
from saturate.settings.augmentation import AugmentationSettings
from saturate.settings.clips import Clips
from saturate.settings.detection import Detection


def augment(
    settings: AugmentationSettings, native: Native, *, pixelwise: bool = False
) -> Augment:
    """Return what is done to the pixels of training images. Raises UserError.

    `pixelwise`: a pixel's new colour depends on that pixel alone.
    """
    mean, std = (
        (255 * levels[0], 255 * levels[1], 255 * levels[2])
        for levels in (native.mean, native.std)
    )
    look = Look(mean=mean, std=std, pixelwise=pixelwise)
    parts = []
    for augmentation in AUGMENTATIONS:
        names = (field.name for field in fields(augmentation) if field.name != "look")
        parts.append(
            augmentation(**{name: getattr(settings, name) for name in names}, look=look)
        )
    return Augment(tuple(part for part in parts if part.on))


def mixing(settings: AugmentationSettings) -> Mixing:
    """Return how micro-batches of training are mixed."""
    return Mixing(
        mixup=settings.mixup,
        cutmix=settings.cutmix,
        probability=settings.mix_prob,
        switch=settings.mix_switch_prob,
    )


def growth(settings: AugmentationSettings, full: int) -> Growth | None:
    """Return how training images grow to `full` pixels; None where they do not. Raises UserError."""
    start = settings.image_size_start
    ramp = settings.image_size_ramp
    if start is None and ramp is None:
        return None
    if start is None or ramp is None:
        raise UserError(
            "--image-size-start and --image-size-ramp need each other: give both, or neither"
        )
    if start >= full or ramp[0] >= ramp[1]:
        raise UserError(
            f"--image-size-start {start} must be smaller than --image-size {full}, and the epochs of "
            "--image-size-ramp in their order"
        )
    begin, end = ramp
    return Growth(start=start, begin=begin, end=end)


def image_policies(
    settings: AugmentationSettings, native: Native
) -> tuple[ImagePolicy, ImagePolicy]:
    """Return how images are framed in training, and in validation, where nothing is random.

    Raises UserError.
    """
    size = settings.val_image_size or native.size
    resize = validation_resize(settings, native, size)
    training = ImagePolicy(
        window=settings.train_window,
        image_size=native.size,
        growth=growth(settings, native.size),
        resize=round(resize * native.size / size),  # the same share of the image
        scale=settings.crop_scale,
        ratio=settings.crop_ratio,
        flip=settings.flip,
        vflip=settings.vflip,
        interpolation=native.interpolation,
        augment=augment(settings, native),
    )
    return training, ImagePolicy(
        window="stretch"
        if (settings.val_window or native.window) == "stretch"
        else "center",
        image_size=size,
        resize=resize,
        interpolation=native.interpolation,
    )


def validation_resize(settings: AugmentationSettings, native: Native, size: int) -> int:
    """Return the shorter side before a validation's crop of `size`, pixels. Raises UserError."""
    if settings.val_resize is None:
        # as timm computes it, to the last bit: 117 / 0.936 is less than 125
        return math.floor(size / (settings.val_crop_share or native.crop_share))
    if settings.val_crop_share is not None:
        raise UserError("--val-resize and --val-crop-share say the same; leave one out")
    return settings.val_resize


def clip_policy(
    settings: AugmentationSettings, clips: Clips, native: Native
) -> ClipPolicy:
    """Return how clips are taken from videos; one policy says both, of training and of validation."""
    size = native.size
    return ClipPolicy(
        frames=clips.clip_frames,
        stride=clips.clip_stride,
        fps=clips.clip_fps,
        image_size=size,
        shorter=clips.short_side or (round(size * 256 / 224), round(size * 320 / 224)),
        flip=settings.flip,
        vflip=settings.vflip,
        augment=augment(settings, native),
        clips=clips.val_clips,
        crops=clips.val_crops,
        resize=settings.val_resize
        or (size if clips.val_crops == 3 else round(size * 256 / 224)),
    )


def detection_policies(
    settings: AugmentationSettings, detection: Detection, native: Native
) -> tuple[DetectionPolicy, DetectionPolicy]:
    """Return how a detector's images are framed in training and in validation. Raises UserError.

    Nothing is random in validation.
    """
    if native.longer is None and detection.longer_side is not None:
        raise UserError(
            f"--longer-side {detection.longer_side}: this architecture takes square images, "
            f"of --image-size {native.size}; leave it out"
        )
    longer = native.longer if detection.longer_side is None else detection.longer_side
    training = DetectionPolicy(
        augment=detection.augment,
        size=native.size,
        longer=longer,
        short_sides=detection.short_sides if detection.augment == "multiscale" else (),
        flip=settings.flip,
        vflip=settings.vflip,
        colours=augment(settings, native, pixelwise=True),
    )
    if native.longer is None and settings.val_image_size not in (None, native.size):
        raise UserError(
            f"--val-image-size {settings.val_image_size}: this architecture's anchors are for one size, "
            f"--image-size {native.size}; leave it out"
        )
    size = settings.val_image_size or native.size
    return training, DetectionPolicy(augment="flip", size=size, longer=longer)
