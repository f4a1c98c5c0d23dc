"""What registries of architectures share: a pass of shapes alone, and weights from a file or by name. Imports nothing of ours."""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch
import torchvision
from torch import nn

from models import Unusable


def dry_run(module: nn.Module, images: torch.Tensor) -> None:
    """A training pass of shapes alone, on the meta device: nothing is computed and the module stays as it is."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    with torch.no_grad():
        torch.func.functional_call(module, {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors}, (images,))


def load(module: nn.Module, arch: str, weights: str) -> list[str]:
    """Load a checkpoint file of ours, a state dict file, or torchvision's weights of that name. Raises Unusable.

    Returns the parameters of heads that are for other classes; they stay as they are.
    """
    state = read(arch, weights)
    own = module.state_dict()
    unknown = sorted(set(state) - set(own))
    missing = sorted(set(own) - set(state))
    if unknown or missing:
        which = f"has no '{missing[0]}'" if missing else f"has an extra '{unknown[0]}'"
        raise Unusable(f"--weights {weights} does not fit --arch {arch}: it {which}")
    other_shape = [name for name, value in state.items() if value.shape != own[name].shape]
    heads = {name.rsplit(".", 1)[0] for name in _last_linear_names(module)}
    wrong = [name for name in other_shape if name.rsplit(".", 1)[0] not in heads]
    if wrong:
        raise Unusable(
            f"--weights {weights} does not fit --arch {arch}: '{wrong[0]}' is {tuple(state[wrong[0]].shape)} there, "
            f"{tuple(own[wrong[0]].shape)} here"
        )
    module.load_state_dict({name: value for name, value in state.items() if name not in other_shape}, strict=False)
    return other_shape


def _last_linear_names(module: nn.Module) -> list[str]:
    """Parameters of layers whose output is the classes: the last linear layer or convolution of the trunk and of each auxiliary head."""
    layers = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d | nn.Conv3d)]
    last = {name for name, _ in layers[-1:]} | {
        name for name, _ in layers if "aux" in name.lower() and name.rsplit(".", 1)[-1] in ("fc", "fc2")
    }
    if hasattr(module, "fc"):
        last.add("fc")
    return [f"{name}.weight" for name in last]


def read(arch: str, weights: str, *, flag: str = "--weights") -> dict[str, torch.Tensor]:
    """The state dict of a checkpoint file of ours, of a state dict file, or of torchvision's weights of that name. Raises Unusable."""
    if Path(weights).is_file():
        try:
            content = torch.load(weights, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises whatever the bytes make it stumble over
            reason = str(error).partition("\n")[0].split(". ")[0] if _is_archive(weights) else "damaged, or another kind of file"
            raise Unusable(f"{flag} {weights} is no checkpoint that can be read safely ({reason})") from None
        state = content.get("model", content) if isinstance(content, dict) else None
        if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
            raise Unusable(f"{flag} {weights} holds no state dict (nor a checkpoint with one under 'model')")
        return state
    published = torchvision.models.get_model_weights(arch)
    if weights not in published.__members__:
        known = ", ".join(published.__members__) or "none"
        raise Unusable(f"{flag} {weights}: no such file, and torchvision's weights of {arch} are {known}")
    try:
        return dict(published[weights].get_state_dict(progress=False, check_hash=True))
    except (OSError, RuntimeError) as error:  # no network, full disk; another digest
        raise Unusable(f"{flag} {weights} cannot be downloaded from {published[weights].url} ({error}); or name a file") from None


def is_published(arch: str, weights: str) -> bool:
    """Whether they are torchvision's, by their name or by the name of the file that torchvision offers."""
    published = torchvision.models.get_model_weights(arch)
    return weights in published.__members__ or Path(weights).name in {Path(one.url).name for one in published}


def _is_archive(path: str) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except (OSError, zipfile.BadZipFile):  # an end record that is damaged too
        return False
