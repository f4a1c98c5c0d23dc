"""torchvision's classification registry by name: builds, fits the head to the classes, loads weights. Imports nothing of ours."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn

AUXILIARY_WEIGHTS = {"googlenet": 0.3, "inception_v3": 0.4}
"""Weight of each auxiliary head's loss: Szegedy et al. 2014 (GoogLeNet) and the value in common use for Inception v3."""


class Unusable(ValueError):
    """An architecture or weights that cannot be used as asked, in one line."""


def names() -> list[str]:
    """Every classification architecture that torchvision registers."""
    return torchvision.models.list_models(module=torchvision.models)


def native_size(arch: str) -> int:
    """Side in pixels of the images the architecture was published for (torchvision's first ImageNet-1k weights)."""
    weights = torchvision.models.get_model_weights(arch)
    for entry in weights:
        if entry.name == "IMAGENET1K_V1":
            size = entry.transforms.keywords["crop_size"]
            return int(size)
    return 224


def build(arch: str, *, classes: int, image_size: int, batch_size: int = 2, weights: str | None = None) -> tuple[nn.Module, list[str]]:
    """(module, parameters left at their initial values because the weights are for other classes).

    `weights` is a checkpoint file of ours, a state dict file, or the name of torchvision weights. Raises Unusable, also when
    the architecture cannot train on batches of this shape.
    """
    options: dict[str, Any] = {"num_classes": classes}
    if arch.startswith("vit_"):
        options["image_size"] = image_size
    if arch.startswith("maxvit"):
        options["input_size"] = (image_size, image_size)
    if arch in AUXILIARY_WEIGHTS:
        options["init_weights"] = True
        options["transform_input"] = weights is not None and not Path(weights).is_file()
    try:
        module = torchvision.models.get_model(arch, weights=None, **options)
        _dry_run(module, torch.empty(batch_size, 3, image_size, image_size, device="meta"))
    except (RuntimeError, ValueError, AssertionError) as error:
        said = str(error).splitlines()[0]
        got = f"--image-size {image_size} with --batch-size {batch_size}"
        raise Unusable(f"{got} does not suit --arch {arch}, which was made for {native_size(arch)} pixels ({said})") from None
    return module, _load(module, arch, weights) if weights else []


def _dry_run(module: nn.Module, images: torch.Tensor) -> None:
    """A training pass of shapes alone, on the meta device: nothing is computed and the module stays as it is."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    with torch.no_grad():
        torch.func.functional_call(module, {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors}, (images,))


def auxiliary_weight(arch: str) -> float:
    """Weight of the losses of outputs after the first, 0 for architectures without auxiliary heads."""
    return AUXILIARY_WEIGHTS.get(arch, 0.0)


def _load(module: nn.Module, arch: str, weights: str) -> list[str]:
    state = _state_dict(arch, weights)
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
    """Parameters of layers whose output is the classes: the last linear or 1x1 convolution of the trunk and of each auxiliary head."""
    layers = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    last = {name for name, _ in layers[-1:]} | {
        name for name, _ in layers if "aux" in name.lower() and name.rsplit(".", 1)[-1] in ("fc", "fc2")
    }
    if hasattr(module, "fc"):
        last.add("fc")
    return [f"{name}.weight" for name in last]


def _state_dict(arch: str, weights: str) -> dict[str, torch.Tensor]:
    if Path(weights).is_file():
        try:
            content = torch.load(weights, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises whatever the bytes make it stumble over
            reason = str(error).partition("\n")[0].split(". ")[0] if _is_archive(weights) else "damaged, or another kind of file"
            raise Unusable(f"--weights {weights} is no checkpoint that can be read safely ({reason})") from None
        state = content.get("model", content) if isinstance(content, dict) else None
        if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
            raise Unusable(f"--weights {weights} holds no state dict (nor a checkpoint with one under 'model')")
        return state
    published = torchvision.models.get_model_weights(arch)
    if weights not in published.__members__:
        raise Unusable(
            f"--weights {weights}: no such file, and torchvision's weights of {arch} are {', '.join(published.__members__) or 'none'}"
        )
    try:
        return dict(published[weights].get_state_dict(progress=False, check_hash=True))
    except (OSError, RuntimeError) as error:  # no network, full disk; another digest
        raise Unusable(f"--weights {weights} cannot be downloaded from {published[weights].url} ({error}); or name a file") from None


def _is_archive(path: str) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except (OSError, zipfile.BadZipFile):  # an end record that is damaged too
        return False
