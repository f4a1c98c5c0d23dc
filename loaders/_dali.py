"""What every loader with DALI needs: importing it, and telling from its words what went wrong."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from saturate.contracts import UserError
from saturate.system.processes import uninterrupted

NO_MEMORY = (
    "out of memory",
    "cudaErrorMemoryAllocation",
    "CUDA allocation failed",
    "bytes on device",
)
"""What DALI says, in different places, when the GPU has no memory left."""


def import_dali() -> Any:
    """Return nvidia.dali. Raises UserError, which says how to get it."""
    try:
        with uninterrupted():
            import nvidia.dali
    except ImportError as error:
        raise UserError(
            f"DALI is not installed ({error}): pip install nvidia-dali-cuda120, or choose another --loader"
        ) from None
    return nvidia.dali


held: list[Any] = []
"""The pipeline of `hold_decoder`, until a loader's own is built."""


def hold_decoder(device: int | None) -> None:
    """Build a pipeline that decodes an image, on that GPU if there is one, and hold it.

    nvJPEG sets its engines up with the first decoder of a process. A loader that opens beside this one has its
    pipeline after 0.5 s, and else after 1.7 (DALI 2.4 on an H200: docs/rates.md).
    """
    dali = import_dali()
    pipeline = dali.Pipeline(batch_size=1, num_threads=1, device_id=device)
    with pipeline:
        data = dali.fn.external_source(name="data", dtype=dali.types.UINT8, ndim=1)
        where = "cpu" if device is None else "mixed"
        pipeline.set_outputs(dali.fn.decoders.image(data, device=where))
    pipeline.build()
    held[:] = [pipeline]


def lacks_memory(error: Exception) -> bool:
    """Whether it is the GPU's memory that DALI lacks."""
    return any(sign.lower() in str(error).lower() for sign in NO_MEMORY)


@contextmanager
def memory_named() -> Iterator[None]:
    """Raise UserError where it is the GPU's memory that DALI lacks.

    An error leaves nothing of DALI's alive: the memory of a pipeline that failed is there for the next one.
    """
    try:
        yield
    except Exception as error:
        # they hold the pipeline, from Python 3.12 on for long
        traceback.clear_frames(error.__traceback__)
        if lacks_memory(error):
            raise UserError(
                "DALI ran out of the GPU's memory: "
                "a smaller --batch-size, or --loader dali-cpu, which needs none"
            ) from None
        raise


def release_memory() -> None:
    """Give back the device and pinned memory that DALI's pools keep after their pipelines are gone."""
    gc.collect()
    import_dali().backend.ReleaseUnusedMemory()


def first_line(error: Exception) -> str:
    """Return the line of DALI's page of text that says what happened."""
    lines = str(error).rpartition("encountered:")[2].split("\n")
    return next((line.strip() for line in lines if line.strip()), type(error).__name__)
