"""Settings -> policies and plans: the only place where the plans' rooms meet the command line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from saturate.contracts import Array, Columns, LabelColumns, Split, UserError
from saturate.dataset.model_classes import ModelClasses
from saturate.dataset.open import Console, Content, open_splits
from saturate.dataset.val_split import Trained
from saturate.loaders.images.transforms import Transform
from saturate.models import Native
from saturate.plan import order
from saturate.plan.augment import AUGMENTATIONS, Augment, Look
from saturate.plan.balance import Balance
from saturate.plan.boxes import DetectionPolicy
from saturate.plan.clips import ClipPolicy
from saturate.plan.epoch import EpochPlan
from saturate.plan.images import Growth, ImagePolicy
from saturate.plan.mixing import Mixing
from saturate.settings.augmentation import AugmentationSettings
from saturate.settings.clips import Clips
from saturate.settings.config import Config
from saturate.settings.detection import Detection

P = TypeVar("P", bound=EpochPlan)
C = TypeVar("C", bound=Columns)
F = TypeVar("F")


def opened(
    config: Config,
    loader: str,
    content: Content,
    console: Console,
    model: ModelClasses | None = None,
    trained: Trained | None = None,
) -> dict[str, Split[Any]]:
    """Open {"train": ..., "val": ...}. Raises UserError."""
    return open_splits(
        config.data,
        content=content,
        loader=loader,
        read_delay_s=config.loading.read_delay_ms / 1e3,
        read_threads=config.loading.read_threads,
        evaluate=config.run.evaluate,
        validates=config.run.val_every > 0,
        model=model,
        trained=trained,
        console=console,
    )


def pair(
    of: Callable[..., P],
    config: Config,
    splits: Mapping[str, Split[C]],
    training: F,
    validation: F,
    balance: Balance | None = None,
    /,
    **ranks: int,
) -> tuple[P, P]:
    """Make the plans of training and of validation. `of(columns, policy, ...)` makes one.

    A set of few steps gets a smaller batch of training, with which no sample is left out, unless
    --global-batch-size is given. Raises UserError when not even one step can be trained.
    """
    load = config.loading
    train = of(
        splits["train"].columns,
        training,
        batch_size=load.batch_size,
        accumulate=config.optimisation.accumulate,
        shuffled=config.data.order == "shuffled",
        repeats=config.augmentation.repeats,
        balance=balance,
        **ranks,
    )
    if not config.run.uses:
        fits = config.optimisation.global_batch_size is None
        shares = train.world_size * train.accumulate
        batch_size, keeps_tail = order.fitted(train.samples, train.batch_size, shares)
        if keeps_tail and fits:
            train = replace(train, batch_size=batch_size, keeps_tail=True)
        train.require_a_step()
    of_val = partial(of, splits["val"].columns, validation, training=False, **ranks)
    val = of_val(batch_size=load.val_batch_size or train.batch_size)
    # a larger batch would be padding; that of training is there anyway
    most = max(
        -(-val.samples * val.views // val.world_size),
        1 if config.run.uses else train.batch_size,
    )
    return train, of_val(batch_size=most) if val.batch_size > most else val


def balance(config: Config, columns: LabelColumns) -> Balance | None:
    """Return how classes come alike in training with --balance sampler, else None. Raises UserError."""
    if config.optimisation.balance != "sampler" or config.run.uses:
        return None
    if config.data.order != "shuffled" or config.augmentation.repeats > 1:
        raise UserError(
            "--balance sampler has an order of its own; leave --order and --repeats out"
        )
    return Balance.of(np.asarray(columns.label))


def augment(
    settings: AugmentationSettings, native: Native, *, pixelwise: bool = False
) -> Augment:
    """Return what is done to the pixels of training images. Raises UserError.

    `pixelwise`: a pixel's new colour depends on that pixel alone.
    """
    mean, std = (
        (255 * of[0], 255 * of[1], 255 * of[2]) for of in (native.mean, native.std)
    )
    look = Look(mean=mean, std=std, pixelwise=pixelwise)
    parts = []
    for augmentation in AUGMENTATIONS:
        names = (field.name for field in fields(augmentation) if field.name != "look")
        parts.append(
            augmentation(**{name: getattr(settings, name) for name in names}, look=look)
        )
    return Augment(tuple(part for part in parts if part.on))


def transforms(
    settings: AugmentationSettings,
) -> dict[str, Callable[[Array, int], Array]]:
    """Return the user's own function by what it is of. Raises UserError where there is none of its name."""
    name = settings.transforms
    return {} if name is None else {settings.transforms_on: Transform(name)}


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
