"""A device's memory while a trial runs: limited, and its peak; and the machine's loads meanwhile."""

from __future__ import annotations

import ctypes
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from contracts import UserError
from engine.distributed import cores
from report import hardware

Loads = dict[str, float | None]
"""hardware.LOADS, read."""


def limit(device: torch.device, gib: float) -> float:
    """Leave so much memory free; return the GiB of the device that are held for it, which no figure counts.
    Raises UserError when there is less."""
    if (
        device.type == "cpu"
    ):  # not the address space: libraries map far more of it than they use
        resource.setrlimit(
            resource.RLIMIT_DATA,
            (int(gib * 2**30), resource.getrlimit(resource.RLIMIT_DATA)[1]),
        )
        return 0.0
    torch.zeros(1, device=device)  # starts CUDA
    held = torch.cuda.get_device_properties(device).total_memory - int(gib * 2**30)
    # by the driver: neither PyTorch's figures nor its cache see it
    code = (
        ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2(
            ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(held)
        )
        if held > 0
        else 1
    )
    if code:
        free = torch.cuda.mem_get_info(device)[0] / 2**30
        raise UserError(
            f"--memory-limit-gib {gib:g}: {held / 2**30:.1f} GiB cannot be held, {free:.1f} GiB are free"
        )
    return held / 2**30


@contextmanager
def loads(device: torch.device) -> Iterator[Callable[[], Loads]]:
    """Yield a function that returns the machine's loads since the start, which counts too, for a trial is
    short."""
    sampler = hardware.Sampler(device, cores=cores(), host=False).start()
    try:
        yield lambda: {
            name: read
            for name, read in sampler.read().items()
            if name in hardware.LOADS
        }
    finally:
        sampler.stop()


@contextmanager
def peak(device: Any, every_s: float = 0.05) -> Iterator[list[float]]:
    """Note GiB in use on the device whenever that was more than before, whoever uses it; nothing on a CPU.
    The validation is in it."""
    found: list[float] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(every_s):
            now = hardware.device_gib(device)
            if now is not None and now > max(found, default=0.0):
                found.append(now)

    thread = threading.Thread(target=watch, name="memory-peak", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
