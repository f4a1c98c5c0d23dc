"""What to say when a batch does not fit into memory: which one would."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from contracts import Mistake, World
from engine import precision as precisions
from engine.step import Step


@contextmanager
def explained(step: Step, batch_size: int, image_size: int, world: World) -> Iterator[None]:
    """Turns running out of memory into a Mistake that names a batch size which was tried and fits."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        reason, failed = str(error).split(".")[0], error.__traceback__
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        reason, failed = "the machine has not enough memory", error.__traceback__
    else:
        return
    traceback.clear_frames(failed)  # which hold what the step had made
    fits = largest_fit(step, batch_size, image_size, world.device)
    advice = f"--batch-size {fits} fits" if fits else "not even one sample fits: a smaller --arch or --image-size"
    raise Mistake(f"--batch-size {batch_size} does not fit ({reason}); {advice}, with --accumulate to keep the step's size")


def largest_fit(step: Step, batch_size: int, image_size: int, device: torch.device) -> int:
    """The largest of batch_size * 3/4, 1/2, 3/8, 1/4, ... whose forward and backward pass run; 0 when none does."""
    sizes = sorted({batch_size * 3 // 4 >> k for k in range(24)} | {batch_size // 2 >> k for k in range(24)}, reverse=True)
    module = getattr(step.module, "module", step.module)  # without DDP: other ranks do not take part
    for size in sizes:
        if size > 0 and _runs(module, size, image_size, device, step.precision):
            return size
    return 0


def _runs(module: torch.nn.Module, batch_size: int, image_size: int, device: torch.device, precision: str) -> bool:
    try:
        images = torch.zeros(batch_size, 3, image_size, image_size, device=device).to(memory_format=torch.channels_last)
        with precisions.autocast(precision, device):
            outputs = module(images)
        (outputs if isinstance(outputs, torch.Tensor) else outputs[0]).float().sum().backward()
        return True
    except (torch.OutOfMemoryError, RuntimeError):
        return False
    finally:
        module.zero_grad(set_to_none=True)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
