"""Code that the registries of architectures share: a pass of shapes alone, and weights from a file or by
name. Imports nothing of ours."""

from __future__ import annotations

import re
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import torch
import torchvision
from torch import nn

from models import Unusable

OLD_DENSE = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.([12]\.)")
"""Old names of DenseNet's parameters, as torchvision's densenet._load_state_dict finds them."""


def dry_run(module: nn.Module, images: torch.Tensor) -> None:
    """A training pass of shapes alone, on the meta device: nothing is computed and the module stays as it
    is."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    with torch.no_grad():
        torch.func.functional_call(
            module, {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors}, (images,)
        )


def load(module: nn.Module, arch: str, weights: str) -> list[str]:
    """Load a checkpoint file of ours, a state dict file, or torchvision's weights of that name. Raises
    Unusable.

    Returns the parameters of heads that are for other classes; they stay as they are.
    """
    heads = {name.rsplit(".", 1)[0] for name in _last_linear_names(module)}
    return fill(
        module,
        arch,
        weights,
        renamed(read(arch, weights)),
        may_differ=lambda name: name.rsplit(".", 1)[0] in heads,
    )


def renamed(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Give the published DenseNets' weights today's names: those of an older torchvision have 'norm.1'."""
    if not any(OLD_DENSE.search(name) for name in state):
        return state
    return {OLD_DENSE.sub(r"\1\2", name): value for name, value in state.items()}


def fill(
    module: nn.Module,
    arch: str,
    weights: str,
    state: dict[str, torch.Tensor],
    may_differ: Callable[[str], bool],
) -> list[str]:
    """Load all of `state` but what has another shape, which is returned. As torch does it: it also takes what
    older modules have written.

    Raises Unusable when something is missing, is too much, or has another shape and `may_differ(name)` is
    False.
    """
    own = module.state_dict()
    other_shape = [name for name, value in state.items() if name in own and value.shape != own[name].shape]
    if wrong := [name for name in other_shape if not may_differ(name)]:
        got = tuple(state[wrong[0]].shape)
        wanted = tuple(own[wrong[0]].shape)
        raise Unusable(
            f"--weights {weights} does not fit --arch {arch}: '{wrong[0]}' is {got} there, {wanted} here"
        )
    fitting = OrderedDict((name, value) for name, value in state.items() if name not in other_shape)
    written_by = getattr(state, "_metadata", None)
    ours = own._metadata  # type: ignore[attr-defined]
    why = ""
    for versions in (written_by, ours):  # of the modules; a plain dict has none, which MNASNet does not take
        if versions is not None:
            fitting._metadata = versions  # type: ignore[attr-defined]
        try:
            result = module.load_state_dict(fitting, strict=False)
        except (RuntimeError, ValueError) as error:
            why = str(error).splitlines()[-1].strip()
            continue
        missing = sorted(set(result.missing_keys) - set(other_shape))
        if not missing and not result.unexpected_keys:
            return other_shape
        why = why or (
            f"it has no '{missing[0]}'"
            if missing
            else f"it has an extra '{sorted(result.unexpected_keys)[0]}'"
        )
    raise Unusable(f"--weights {weights} does not fit --arch {arch}: {why}")


def _last_linear_names(module: nn.Module) -> list[str]:
    """Parameters of layers whose output is the classes: the last linear layer or convolution of the trunk and
    of each auxiliary head."""
    layers = [
        (name, layer)
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.Conv3d)
    ]
    last = {name for name, _ in layers[-1:]} | {
        name for name, _ in layers if "aux" in name.lower() and name.rsplit(".", 1)[-1] in ("fc", "fc2")
    }
    if hasattr(module, "fc"):
        last.add("fc")
    return [f"{name}.weight" for name in last]


def read(arch: str, weights: str, *, flag: str = "--weights") -> dict[str, torch.Tensor]:
    """The state dict of a checkpoint file of ours, of a state dict file, or of torchvision's weights of that
    name. Raises Unusable."""
    if Path(weights).is_file():
        try:
            content = torch.load(weights, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises whatever the bytes make it stumble over
            reason = (
                str(error).partition("\n")[0].split(". ")[0]
                if _is_archive(weights)
                else "damaged, or another kind of file"
            )
            raise Unusable(f"{flag} {weights} is no checkpoint that can be read safely ({reason})") from None
        state = content.get("model", content) if isinstance(content, dict) else None
        if not isinstance(state, dict) or not all(
            isinstance(value, torch.Tensor) for value in state.values()
        ):
            raise Unusable(f"{flag} {weights} holds no state dict (nor a checkpoint with one under 'model')")
        return state
    published = torchvision.models.get_model_weights(arch)
    if weights not in published.__members__:
        known = ", ".join(published.__members__) or "none"
        raise Unusable(f"{flag} {weights}: no such file, and torchvision's weights of {arch} are {known}")
    try:
        found: dict[str, torch.Tensor] = published[weights].get_state_dict(progress=False, check_hash=True)
        return found
    except (OSError, RuntimeError) as error:  # no network, full disk; another digest
        raise Unusable(
            f"{flag} {weights} cannot be downloaded from {published[weights].url} ({error}); or name a file"
        ) from None


def is_published(arch: str, weights: str, name: str) -> bool:
    """Whether they are torchvision's of that name, by it or by the name of the file that torchvision
    offers."""
    published = torchvision.models.get_model_weights(arch).__members__
    return name in published and (weights == name or Path(weights).name == Path(published[name].url).name)


def _is_archive(path: str) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except (OSError, zipfile.BadZipFile):  # an end record that is damaged too
        return False
