"""DALI as one writes it by hand for files of one's own: a Python source reads a batch, DALI decodes, resizes and normalises it.

Uses nothing of ours on purpose: `slow-storage` compares with it. DALI calls the source in the thread that asks for a batch, so
the reads are neither side by side nor hidden behind the step.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch


class Files:
    """Batches of (files' bytes, labels), `samples` of them an epoch, in an order drawn for each; each read begins `read_delay_s` late."""

    def __init__(self, files: Sequence[str], labels: Sequence[int], *, batch_size: int, samples: int, read_delay_s: float) -> None:
        self.files, self.labels, self.batch_size, self.samples, self.read_delay_s = files, labels, batch_size, samples, read_delay_s

    def __iter__(self) -> Iterator[tuple[list[Any], list[Any]]]:
        chosen = random.sample(range(len(self.files)), self.samples)
        for at in range(0, len(chosen), self.batch_size):
            batch = chosen[at : at + self.batch_size]
            yield [self.read(index) for index in batch], [np.array([self.labels[index]], np.int64) for index in batch]

    def read(self, index: int) -> Any:
        if self.read_delay_s:
            time.sleep(self.read_delay_s)
        return np.fromfile(self.files[index], np.uint8)


def loader(source: Files, *, size: int, threads: int, device: torch.device) -> Any:
    """An iterator over epochs of [{"images": fp32 [B, 3, H, W], "labels": int64 [B, 1]}], on the GPU where there is one."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    gpu = device.type == "cuda"

    @pipeline_def(batch_size=source.batch_size, num_threads=threads, device_id=device.index if gpu else None)
    def pipeline() -> Any:
        jpegs, labels = fn.external_source(source=source, num_outputs=2, cycle="raise", dtype=[types.UINT8, types.INT64])
        images = fn.decoders.image(jpegs, device="mixed" if gpu else "cpu", output_type=types.RGB)
        images = fn.resize(images, resize_x=size, resize_y=size)
        images = fn.crop_mirror_normalize(
            images, dtype=types.FLOAT, mean=[0.485 * 255, 0.456 * 255, 0.406 * 255], std=[0.229 * 255, 0.224 * 255, 0.225 * 255]
        )
        return images, labels

    return DALIGenericIterator(pipeline(), ["images", "labels"], auto_reset=True)
