"""Gradient checkpointing: blocks forget what they have computed, and compute it again in the backward pass.
Imports none of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from saturate.models import Unusable

LISTS = (nn.Sequential, nn.ModuleList)
NORM = nn.modules.batchnorm._BatchNorm


def recompute_blocks(module: nn.Module, arch: str) -> int:
    """Have each block of the network computed again in the backward pass. Returns how many there are.

    A block is what has modules within and lies in a list of modules: ResNet's bottlenecks, a transformer's
    layers. Losses and gradients are those of before, also of dropout, and running statistics move once a
    step. Raises Unusable where the network has no block.
    """
    blocks = list(_blocks(module))
    if not blocks:
        why = "which has no blocks in a list of modules"
        raise Unusable(
            f"--grad-checkpointing is not for --arch {arch}, {why}; leave it out"
        )
    for block in blocks:
        block.forward = _recomputed(block, block.forward)
    return len(blocks)


def _blocks(module: nn.Module, listed: bool = False) -> Iterator[nn.Module]:
    """List the outermost blocks of a network."""
    is_list = isinstance(module, LISTS)
    if listed and not is_list and next(module.children(), None) is not None:
        yield module
        return
    for child in module.children():
        yield from _blocks(child, is_list)


def _recomputed(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward pass that keeps its inputs alone while gradients are wanted."""
    contexts = partial(_contexts, block)

    def forgetful(*args: object, **kwargs: Any) -> Any:
        if not (block.training and torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        return checkpoint(
            forward, *args, use_reentrant=False, context_fn=contexts, **kwargs
        )

    return forgetful


def _contexts(
    block: nn.Module,
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of the forward pass, and of that which is repeated."""
    return nullcontext(), _statistics_stay(block)


@contextmanager
def _statistics_stay(block: nn.Module) -> Iterator[None]:
    """Have batch norms move copies of their running statistics inside, and not these."""
    norms = [layer for layer in block.modules() if isinstance(layer, NORM)]
    held = [dict(norm._buffers) for norm in norms]
    for norm, buffers in zip(norms, held, strict=True):
        for name, buffer in buffers.items():
            norm._buffers[name] = buffer if buffer is None else buffer.clone()
    try:
        yield
    finally:
        for norm, buffers in zip(norms, held, strict=True):
            norm._buffers.update(buffers)
