"""DALI as one writes it by hand. Uses nothing of ours on purpose.

Images, for `train` and `loader`: DALI's own reader of files, decoder and random crop. For `slow-storage`:
DALI decodes, resizes and normalises what Python reads, by three ways to bring it there. Clips of videos, for
`loader`: DALI's own reader of videos.

    DataLoader  -> fn.external_source   without workers each read is in the thread that asks for a batch, one
                                        after the other; workers read ahead, side by side
    DataLoader <-> DALI's proxy         workers read ahead and ask a thread of DALI's for the images
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

NORMAL: dict[str, Any] = {
    "mean": [0.485 * 255, 0.456 * 255, 0.406 * 255],
    "std": [0.229 * 255, 0.224 * 255, 0.225 * 255],
}
PADDING = {"device_memory_padding": 211025920, "host_memory_padding": 140544512}
"""Bytes that DALI's own training script sets aside for a decoder on a GPU, so that no larger image makes it
allocate again: each thread."""


def images(
    *,
    window: str,
    size: int,
    batch_size: int,
    threads: int,
    device: torch.device,
    flip: bool = False,
    shuffle: bool = True,
    decode_on_cpu: bool = False,
    augment: str = "",
    world_size: int = 1,
    rank: int = 0,
    **files: Any,
) -> Any:
    """Return an iterator over epochs of [{"images": [B, 3, size, size], "labels": int32 [B, 1]}], fp16 on a
    GPU and fp32 on a CPU. With `decode_on_cpu` a GPU crops, flips and normalises alone.

    `window` is stretch, random-resized or center (of a shorter side of 256 / 224 times `size`); `files` are
    `fn.readers.file`'s: file_root, or files and labels. The last batch of a shard is filled up. Raises
    KeyError for another window.
    """
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

    gpu = device.type == "cuda"
    side: dict[str, Any] = {"resize_x": size, "resize_y": size}
    resized = {
        "stretch": side,
        "random-resized": side,
        "center": {"resize_shorter": round(size * 256 / 224)},
    }[window]
    mixed = gpu and not decode_on_cpu
    how: dict[str, Any] = {"device": "mixed", **PADDING} if mixed else {"device": "cpu"}

    @pipeline_def(
        batch_size=batch_size,
        num_threads=max(threads, 1),
        device_id=device.index or 0 if gpu else None,
        enable_conditionals=augment == "randaugment",
    )
    def pipeline() -> Any:
        jpegs, labels = fn.readers.file(
            name="files",
            random_shuffle=shuffle,
            shard_id=rank,
            num_shards=world_size,
            pad_last_batch=True,
            **files,
        )
        if window == "random-resized":
            pixels = fn.decoders.image_random_crop(
                jpegs, random_area=[0.08, 1.0], output_type=types.RGB, **how
            )
        else:
            pixels = fn.decoders.image(jpegs, output_type=types.RGB, **how)
        resize: Any = fn.resize(pixels, **resized)
        pixels = augmented(resize.gpu() if gpu else resize, augment)
        mirror = fn.random.coin_flip() if flip else 0
        dtype = types.FLOAT16 if gpu else types.FLOAT
        pixels = fn.crop_mirror_normalize(
            pixels, dtype=dtype, crop=(size, size), mirror=mirror, **NORMAL
        )
        return pixels, labels.gpu() if gpu else labels

    return DALIGenericIterator(
        pipeline(),
        ["images", "labels"],
        reader_name="files",
        auto_reset=True,
        last_batch_policy=LastBatchPolicy.FILL,
    )


def augmented(pixels: Any, augment: str) -> Any:
    """Return images with DALI's own RandAugment or its own jitter of colours, as `loader --augment` has
    them; contrast is about grey there.
    """
    from nvidia.dali import fn
    from nvidia.dali.auto_aug.rand_augment import rand_augment

    if augment == "randaugment":
        return rand_augment(pixels, n=2, m=9)
    if augment == "jitter":
        kinds = ("brightness", "contrast", "saturation")
        drawn: Any = {kind: fn.random.uniform(range=(0.6, 1.4)) for kind in kinds}
        return fn.color_twist(pixels, **drawn)
    return pixels


def content(file: str) -> Any:
    """Return a file's bytes, uint8 [n]."""
    return np.fromfile(file, np.uint8)


def listed(rows: Sequence[tuple[Any, int]]) -> tuple[list[Any], list[Any]]:
    """Collate rows of (bytes, label) to lists, since DALI takes samples of many sizes."""
    contents, labels = zip(*rows, strict=True)
    return [*contents], [np.array([label], np.int64) for label in labels]


def of_bytes(
    source: Iterable[Any] | None,
    *,
    batch_size: int,
    size: int,
    threads: int,
    device: torch.device,
    augment: str = "",
    ahead: int = 2,
) -> Any:
    """Return the pipeline that makes fp32 [B, 3, size, size] of files' bytes, stretched, on the GPU where
    there is one; up to `ahead` batches are under way.

    Of a `source`, which gives an epoch's batches of (list of bytes, list of labels), labels come with them,
    int64 [B, 1]. Without one the bytes are fed to "jpegs".
    """
    from nvidia.dali import fn, pipeline_def, types

    gpu = device.type == "cuda"

    @pipeline_def(
        batch_size=batch_size,
        num_threads=threads,
        device_id=device.index or 0 if gpu else None,
        prefetch_queue_depth=ahead,
        enable_conditionals=augment == "randaugment",
    )
    def pipeline() -> Any:
        # DALI compiles this function, and refuses names with annotations
        labels = []
        if source is None:
            jpegs = fn.external_source(name="jpegs", no_copy=True)
        else:
            jpegs, label = fn.external_source(
                source=source,
                num_outputs=2,
                cycle="raise",
                dtype=[types.UINT8, types.INT64],
            )
            labels.append(label)
        where = "mixed" if gpu else "cpu"
        images = fn.decoders.image(jpegs, device=where, output_type=types.RGB)
        images = augmented(fn.resize(images, resize_x=size, resize_y=size), augment)
        mirror = fn.random.coin_flip() if augment else 0
        images = fn.crop_mirror_normalize(
            images, dtype=types.FLOAT, mirror=mirror, **NORMAL
        )
        return images, *labels

    return pipeline()


def clips(
    files: Sequence[str],
    labels: Sequence[int],
    *,
    frames: int,
    stride: int,
    size: int,
    shorter: int,
    batch_size: int,
    threads: int,
    device: torch.device,
    world_size: int = 1,
    rank: int = 0,
) -> Any:
    """Return an iterator over epochs of [{"clips": fp32 [B, 3, T, size, size], "labels": int32 [B, 1]}] on a
    GPU; the last of a shard is filled up.

    An epoch has, shuffled, sequences of a video that lie back to back. `fn.readers.video` takes videos of
    constant rate alone, and leaves out a sequence that runs over its video's end.
    """
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

    @pipeline_def(
        batch_size=batch_size,
        num_threads=max(threads, 1),
        device_id=device.index or 0,
    )
    def pipeline() -> Any:
        made: Any = fn.readers.video(
            device="gpu",
            name="videos",
            filenames=list(files),
            labels=[int(label) for label in labels],
            sequence_length=frames,
            stride=stride,
            step=frames * stride,
            random_shuffle=True,
            # decoded sequences that wait: the default fills a GPU's memory
            initial_fill=2 * batch_size,
            shard_id=rank,
            num_shards=world_size,
            pad_last_batch=True,
        )
        video, label = made
        video = fn.resize(video, resize_shorter=shorter)
        video = fn.crop_mirror_normalize(
            video,
            crop=(size, size),
            crop_pos_x=fn.random.uniform(range=(0.0, 1.0)),
            crop_pos_y=fn.random.uniform(range=(0.0, 1.0)),
            dtype=types.FLOAT,
            output_layout="CFHW",
            **NORMAL,
        )
        return video, label

    return DALIGenericIterator(
        pipeline(),
        ["clips", "labels"],
        reader_name="videos",
        auto_reset=True,
        last_batch_policy=LastBatchPolicy.FILL,
    )
