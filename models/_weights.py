"""Code that the registries of architectures share: a pass of shapes alone, and weights into a network."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn

from models import Loaded, Unusable
from models._state_files import Weights, first_names, under_own_names
from models._state_files import read as read_file

OLD_DENSE = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.([12]\.)")
"""Old names of DenseNet's parameters, as torchvision's densenet._load_state_dict finds them."""

COUNTER = "num_batches_tracked"
"""Buffer of batch norms that older files do not have, and frozen norms do not take."""


def dry_run(module: nn.Module, shape: tuple[int, ...]) -> None:
    """Run a training pass of shapes alone, on the meta device: nothing is computed and the module stays as it
    is."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    with torch.no_grad():
        torch.func.functional_call(
            module,
            {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors},
            (torch.empty(shape, device="meta"),),
        )


@contextmanager
def suiting(arch: str, got: str, made_for: str) -> Iterator[None]:
    """Name the settings `got` and what `arch` was `made_for` where torch refuses what is built or run inside.

    Raises Unusable.
    """
    try:
        yield
    except (RuntimeError, ValueError, AssertionError) as error:
        raise Unusable(
            f"{got} does not suit --arch {arch}, which was made for {made_for} ({first_line(error)})"
        ) from None


def batches(shape: tuple[int, ...]) -> str:
    """Return the settings that gave images their `shape` [B, 3, H, W], in words."""
    return f"--image-size {min(shape[-2:])} with --batch-size {shape[0]}"


def first_line(error: BaseException) -> str:
    """Return what an error says first, or its type where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def set_depth(module: nn.Module, arch: str, largest: float) -> None:
    """Set stochastic depth: torchvision's probabilities of the blocks, in proportion, up to `largest`.

    Raises Unusable where the network has none.
    """
    depths = [
        one
        for one in module.modules()
        if isinstance(one, torchvision.ops.StochasticDepth)
    ]
    most = max((one.p for one in depths), default=0.0)
    if not most:
        raise Unusable(
            f"--stochastic-depth {largest:g} is not for --arch {arch}, which has none; leave it out"
        )
    for one in depths:
        one.p *= largest / most


def load(module: nn.Module, arch: str, name: str) -> Loaded:
    """Load weights from a file, or torchvision's of that name. `name` is --weights. Raises Unusable."""
    return fill(module, arch, name, read(arch, name), may_differ=may_differ(module))


def may_differ(module: nn.Module) -> Callable[[str], bool]:
    """Return whether a parameter, by name, is of a classifier's heads, whose shapes follow the classes."""
    heads = {name.rsplit(".", 1)[0] for name in _last_linear_names(module)}
    return lambda name: name.rsplit(".", 1)[0] in heads


def renamed(state: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Give the published DenseNets' weights today's names: those of an older torchvision have 'norm.1'."""
    if not any(OLD_DENSE.search(name) for name in state):
        return state
    return {OLD_DENSE.sub(r"\1\2", name): value for name, value in state.items()}


def fill(
    module: nn.Module,
    arch: str,
    name: str,
    weights: Weights,
    may_differ: Callable[[str], bool],
) -> Loaded:
    """Load all of the weights but what has another shape, which stays as it is.

    As torch does it: it also takes what older modules have written. `name` is --weights. Raises Unusable when
    something is missing, is too much, or has another shape and `may_differ(name)` is False.
    """
    own = module.state_dict()
    weights = under_own_names(weights, own, f"--weights {name}")
    state = renamed(weights.state)
    other = [
        one
        for one, value in state.items()
        if one in own and not _suits(value, own[one])
    ]
    wrong = [
        one for one in other if not (may_differ(one) and state[one].is_floating_point())
    ]
    fitting = OrderedDict(
        (one, value) for one, value in state.items() if one not in other
    )
    missing = sorted(one for one in set(own) - set(state) if not one.endswith(COUNTER))
    extra = sorted(one for one in set(state) - set(own) if not one.endswith(COUNTER))
    written_by = getattr(state, "_metadata", None)
    ours = own._metadata  # type: ignore[attr-defined]
    said = ""
    for versions in (
        written_by,
        ours,
    ):  # of the modules; a plain dict has none, which MNASNet does not take
        if wrong:
            break
        if versions is not None:
            fitting._metadata = versions  # type: ignore[attr-defined]
        try:
            result = module.load_state_dict(fitting, strict=False)
        except (RuntimeError, ValueError) as error:
            said = str(error).splitlines()[-1].strip()
            continue
        missing = sorted(set(result.missing_keys) - set(other))
        extra = sorted(result.unexpected_keys)
        if not missing and not extra:
            anew = (
                [f"--weights are for other classes: {', '.join(other)} start anew"]
                if other
                else []
            )
            return Loaded(anew=other, notes=[*weights.notes, *anew])
    reasons = [said] if said else []
    if wrong:
        reasons.append(_both(wrong[0], state, own) + _and_more(wrong))
    if missing:
        reasons.append(f"it has no '{missing[0]}'{_and_more(missing)}")
    if extra:
        reasons.append(f"it has an extra '{extra[0]}'{_and_more(extra)}")
    sides = f"{len(state)} tensors there begin with {first_names(state)}; {len(own)} here with {first_names(own)}"
    of = (
        f", and is of '{weights.arch}'" if weights.arch and weights.arch != arch else ""
    )
    raise Unusable(
        f"--weights {name} does not fit --arch {arch}{of}: {'; '.join(reasons)}. {sides}"
    )


def _suits(value: torch.Tensor, own: torch.Tensor) -> bool:
    """Whether numbers can be copied as they are; what is whole or sparse is a code for something else."""
    whole = own.is_floating_point() and not value.is_floating_point()
    return value.shape == own.shape and value.layout == torch.strided and not whole


def _both(
    name: str, state: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]
) -> str:
    there = state[name]
    here = own[name]
    if there.shape != here.shape:
        return f"'{name}' is {tuple(there.shape)} there, {tuple(here.shape)} here"
    kinds = [
        str(one.dtype if one.layout == torch.strided else one.layout)
        for one in (there, here)
    ]
    return f"'{name}' is {kinds[0]} there, {kinds[1]} here".replace("torch.", "")


def _and_more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _last_linear_names(module: nn.Module) -> list[str]:
    """Name the parameters of layers whose output is the classes: the last linear layer or convolution of the
    trunk and of each auxiliary head."""
    layers = [
        (name, layer)
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.Conv3d)
    ]
    last = {name for name, _ in layers[-1:]} | {
        name
        for name, _ in layers
        if "aux" in name.lower() and name.rsplit(".", 1)[-1] in ("fc", "fc2")
    }
    if hasattr(module, "fc"):
        last.add("fc")
    return [f"{name}.weight" for name in last]


def read(arch: str, name: str, *, flag: str = "--weights") -> Weights:
    """Return the weights in a file, or torchvision's of that name. Raises Unusable."""
    said = f"{flag} {name}"
    if os.path.exists(name):
        return read_file(Path(name), said)
    published = torchvision.models.get_model_weights(arch)
    if name not in published.__members__:
        known = ", ".join(published.__members__) or "none"
        raise Unusable(
            f"{said}: no such file, and torchvision's weights of {arch} are {known}"
        )
    try:
        return Weights(
            state=published[name].get_state_dict(progress=False, check_hash=True)
        )
    except (OSError, RuntimeError) as error:  # no network, full disk; another digest
        url = published[name].url
        raise Unusable(
            f"{said} cannot be downloaded from {url} ({error}); or name a file"
        ) from None


def published(arch: str, weights: str) -> Any:
    """Return torchvision's weights of that name, or whose file has it; None for any other file."""
    known = torchvision.models.get_model_weights(arch).__members__
    if weights in known:
        return known[weights]
    return next(
        (one for one in known.values() if Path(one.url).name == Path(weights).name),
        None,
    )


def is_published(arch: str, weights: str, name: str) -> bool:
    """Whether they are torchvision's of that name, by it or by the name of torchvision's file."""
    found = published(arch, weights)
    return found is not None and found == torchvision.models.get_model_weights(
        arch
    ).__members__.get(name)


def categories(arch: str, weights: str) -> tuple[str, ...]:
    """Return the names of the outputs of torchvision's weights; () for any other file."""
    found = published(arch, weights)
    return () if found is None else tuple(found.meta["categories"])
