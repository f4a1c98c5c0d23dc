"""timm's networks by name, `timm/NAME`: builds, fits the head to the classes, loads weights. Imports none of
ours.

timm is optional: nothing of it is imported before such a name is given.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from saturate.models import Loaded, Native, Unusable
from saturate.models._weights import (
    Weights,
    batches,
    dry_run,
    fill,
    first_line,
    read_file,
    suiting,
)

PREFIX = "timm/"
"""What a name of --arch begins with to be one of timm's."""


def names() -> list[str]:
    """List every network that timm registers, also with the tags of its published weights behind a dot."""
    timm = _timm()
    return [PREFIX + name for name in (*timm.list_models(), *timm.list_pretrained())]


def native(arch: str, weights: str | None = None) -> Native:
    """Return side, mean, deviation, crop, interpolation and window of timm's configuration of the network.

    Where published weights have several, it is that of the tag behind the name's dot, or that `weights`
    names.
    """
    published = _config(arch, weights)
    from timm.data import resolve_data_config

    config, tested = (
        resolve_data_config(pretrained_cfg=published, use_test_size=use_test_size)
        for use_test_size in (False, True)
    )
    # a file may have been trained at any size: it is evaluated as it would be validated
    own = weights is not None and os.path.exists(weights)
    window = config["crop_mode"]
    if window == "squash":
        window = (
            "stretch"
            if config["crop_pct"] == 1
            else f"squash at {config['crop_pct']:g}"
        )
    return Native(
        int(config["input_size"][-1]),
        tuple(config["mean"]),
        tuple(config["std"]),
        crop_share=config["crop_pct"],
        interpolation=config["interpolation"],
        window=window,
        tested=None if own else (int(tested["input_size"][-1]), tested["crop_pct"]),
    )


def build(
    arch: str,
    *,
    classes: int,
    shape: tuple[int, ...],
    weights: str | None = None,
    stochastic_depth: float | None = None,
) -> tuple[nn.Module, Loaded]:
    """Return the module for batches of `shape` [B, 3, H, W], and what it began with.

    `weights` is a file, a tag of timm's published weights, or DEFAULT. Raises Unusable, also when the network
    cannot train on batches of this shape.
    """
    config = _config(arch, weights)
    options: dict[str, Any] = {"num_classes": classes}
    if stochastic_depth is not None:
        options["drop_path_rate"] = stochastic_depth
    sized = {"img_size": shape[-1]} if config.get("fixed_input_size") else {}
    options |= sized
    name = arch.removeprefix(PREFIX).partition(".")[0]
    asked = ", ".join(f"{option}={value}" for option, value in options.items())
    try:
        module: nn.Module = _timm().create_model(name, pretrained=False, **options)
    except (TypeError, RuntimeError, ValueError, AssertionError) as error:
        raise Unusable(
            f"--arch {arch} cannot be built with {asked}: {first_line(error)}"
        ) from None
    with suiting(arch, batches(shape), f"{native(arch).size} pixels"):
        dry_run(module, shape)
    if not weights:
        return module, Loaded()
    heads = config.get("classifier") or ()
    heads = (heads,) if isinstance(heads, str) else heads
    return module, fill(
        module,
        arch,
        _read(arch, weights, sized),
        heads=tuple(f"{head}." for head in heads),
    )


def classes(arch: str, weights: str) -> tuple[str, ...]:
    """Return the names of the outputs of timm's published weights: ImageNet's folders; () for a file."""
    if os.path.exists(weights):
        return ()
    _timm()
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset(_config(arch, weights))
    return tuple(ImageNetInfo(subset).label_names()) if subset else ()


def _timm() -> ModuleType:
    """Return the package. Raises Unusable where it is not installed."""
    try:
        import timm
    except ImportError as error:
        why = f"which cannot be imported ({error}): pip install timm"
        raise Unusable(f"--arch timm/NAME is of timm, {why}") from None
    return timm


def _tags(arch: str) -> list[str]:
    """List the tags of the published weights, the default one first."""
    from timm.models import get_pretrained_cfg

    name = arch.removeprefix(PREFIX).partition(".")[0]
    default = getattr(get_pretrained_cfg(name), "tag", "")
    published = (one.partition(".") for one in _timm().list_pretrained(f"{name}.*"))
    return sorted((tag for _, _, tag in published), key=lambda tag: tag != default)


def _tagged(arch: str, weights: str | None) -> str:
    """Return timm's name with the tag that `weights` or the name asks for; without one it is the default."""
    name, _, tag = arch.removeprefix(PREFIX).partition(".")
    if weights and weights in _tags(arch):
        tag = weights
    return f"{name}.{tag}" if tag else name


def _config(arch: str, weights: str | None) -> dict[str, Any]:
    """Return timm's configuration of a network and its weights; {} where it has none."""
    _timm()
    from timm.models import get_pretrained_cfg

    config = get_pretrained_cfg(_tagged(arch, weights))
    return dict(config.to_dict()) if config else {}


def _read(arch: str, weights: str, sized: dict[str, int]) -> Weights:
    """Return the weights in a file, or timm's published ones of that tag, which timm resizes. Raises Unusable."""
    origin = f"--weights {weights}"
    if os.path.exists(weights):
        return read_file(Path(weights), origin)
    known = _tags(arch)
    if weights not in (*known, "DEFAULT") or not known:
        listed = ", ".join(known) or "none"
        raise Unusable(
            f"{origin}: no such file, and timm's weights of {arch} are {listed}"
        )
    try:
        published = _timm().create_model(
            _tagged(arch, weights), pretrained=True, **sized
        )
    except Exception as error:  # whatever its hub, its mirror or the disk raise
        raise Unusable(
            f"{origin} cannot be downloaded by timm ({first_line(error)}); or name a file"
        ) from None
    return Weights(tensors=published.state_dict(), flag=origin)
