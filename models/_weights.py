"""Code that the registries of architectures share: a pass of shapes alone, and weights into a network."""

from __future__ import annotations

import os
import re
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torchvision
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from saturate.models import Loaded, Unusable
from saturate.system import torch_files
from saturate.system.user_files import open_bytes

TRAINED = ("state_dict", "model", "model_state_dict", "net", "state", "params")
"""Keys under which files have the weights that were trained; others are taken if there are none of these."""
AVERAGE = re.compile(
    r"(?:^|[._])(?:ema|swa|avg|averag\w*?|shadow\w*?|teacher)(?:[._]|$)"
)
"""The key, or the name, of a network that is the average of another one; averages are what was measured."""
WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""Parts that torch.compile, FSDP and activation checkpointing put into the names of parameters."""
OLD_DENSE = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.([12]\.)")
"""Names of an older torchvision, as densenet._load_state_dict finds them: 'norm.1' is 'norm1' today."""
COUNTER = "num_batches_tracked"
"""Buffer of batch norms that older files do not have, and frozen norms do not take."""
DEPTH = 3
"""Mappings within each other in which tensors are looked for."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The tensors of a file, by the keys that lead to each, joined by dots."""

    tensors: Mapping[str, torch.Tensor]
    arch: str = ""  # the architecture, where the file names it
    flag: str = ""  # the flag with its value, to begin messages
    meant: str = ""  # the key of the network that the file is of, where it says so
    classes: tuple[str, ...] = ()  # of its outputs, where the file names them
    # how its images were made, where the file says so: mean, std, interpolation
    used: Mapping[str, Any] = field(default_factory=dict)

    def tensors_for(
        self, own: Collection[str]
    ) -> tuple[dict[str, torch.Tensor], list[str]]:
        """Return the tensors of the network with these `own` names, and lines for the user.

        Where several networks of the file have as many of the names, an average goes before the network
        that was trained.
        """
        # prefix -> names of the network that follow it
        fitting: Counter[str] = Counter()
        for name in self.tensors:
            for cut in (0, *(match.end() for match in re.finditer(r"\.", name))):
                if name[cut:] in own:
                    fitting[name[:cut]] += 1
        most = max(fitting.values(), default=0)
        alike = [prefix for prefix in fitting if fitting[prefix] == most]
        alike.sort(
            key=lambda prefix: (
                not prefix.startswith(self.meant),
                AVERAGE.search(prefix) is None,
                prefix.partition(".")[0] not in TRAINED,
            )
        )
        prefix, *others = alike or [""]
        notes = []
        if others or AVERAGE.search(prefix):
            left = "".join(f", not '{other.rstrip('.')}'" for other in others)
            notes.append(f"{self.flag}: took the weights '{prefix.rstrip('.')}'{left}")
        state = {
            name.removeprefix(prefix): value
            for name, value in self.tensors.items()
            if name.startswith(prefix)
        }
        return state, notes


def dry_run(module: nn.Module, shape: tuple[int, ...]) -> Any:
    """Return the outputs of a training pass of shapes alone, on the meta device: nothing is computed and the module
    stays as it is."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    with torch.no_grad():
        return torch.func.functional_call(
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
    # networks check their input in their own ways
    except Exception as error:
        raise Unusable(
            f"{got} does not suit --arch {arch}, which was made for {made_for} ({first_line(error)}); leave it out"
        ) from None


def batches(shape: tuple[int, ...]) -> str:
    """Return the settings that gave images their `shape` [B, 3, H, W], in words."""
    return f"--image-size {min(shape[-2:])} with --batch-size {shape[0]}"


def first_line(error: BaseException) -> str:
    """Return what an error says first, or its type where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def set_depth(module: nn.Module, arch: str, largest: float) -> None:
    """Set stochastic depth: torchvision's probabilities of the blocks, in proportion, up to `largest`.

    Raises Unusable where the network has none, and `largest` is not 0.
    """
    depths = [
        one
        for one in module.modules()
        if isinstance(one, torchvision.ops.StochasticDepth)
    ]
    most = max((one.p for one in depths), default=0.0)
    if largest == most == 0:
        return  # what a preset asks for is undone by 0
    if not most:
        raise Unusable(
            f"--stochastic-depth {largest:g} is not for --arch {arch}, which has none; leave it out"
        )
    for one in depths:
        one.p *= largest / most


def read_file(path: Path, flag: str) -> Weights:
    """Return the weights in a file. `flag` is the flag with its value. Raises Unusable."""
    try:
        content = _content(path, flag)
    except torch_files.Unreadable as error:
        raise Unusable(
            f"{flag} is no checkpoint that can be read safely ({error})"
        ) from None
    except OSError as error:
        raise Unusable(f"{flag} cannot be read: {error.strerror or error}") from None
    arch = content.get("arch") if isinstance(content, Mapping) else None
    ours = torch_files.is_ours(content)
    meant = torch_files.meant(content) if ours else ""
    classes = tuple(map(str, content["classes"])) if ours else ()
    tensors = dict(_tensors(content))
    if not tensors:
        raise Unusable(
            f"{flag} holds no tensors by name; save the state_dict() of the network"
        )
    known = arch if isinstance(arch, str) else ""
    used = content.get("used", {}) if ours else {}
    return Weights(
        tensors=tensors, arch=known, flag=flag, meant=meant, classes=classes, used=used
    )


def _content(path: Path, flag: str) -> Any:
    """Return what a file holds: of a safetensors file its tensors."""
    is_safetensors = False
    if path.is_file():
        with open_bytes(path) as file:
            # a JSON header follows 8 bytes of its length; a name says less than the bytes do
            is_safetensors = file.read(9)[8:] == b"{"
    if not is_safetensors:
        return torch_files.load(path, foreign=True)
    try:
        return load_file(path)
    except (SafetensorError, KeyError) as error:  # KeyError: numbers of unknown types
        raise Unusable(f"{flag} is no safetensors file ({error})") from None


def _tensors(
    content: object, prefix: str = "", depth: int = DEPTH
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of nested mappings, by their names of today and without parts of wrappers."""
    for key, value in content.items() if isinstance(content, Mapping) else ():
        if not isinstance(key, str):
            continue
        parts = [part for part in key.split(".") if part not in WRAPPERS]
        name = prefix + OLD_DENSE.sub(r"\1\2", ".".join(parts))
        if isinstance(value, torch.Tensor):
            yield name, value
        elif depth > 1:
            yield from _tensors(value, f"{name}.", depth - 1)


def read(arch: str, name: str, *, flag: str = "--weights") -> Weights:
    """Return the weights in a file, or torchvision's of that name. Raises Unusable."""
    origin = f"{flag} {name}"
    if os.path.exists(name):
        return read_file(Path(name), origin)
    published = published_weights(arch)
    if name not in published:
        known = ", ".join(published) or "none"
        raise Unusable(
            f"{origin}: no such file, and torchvision's weights of {arch} are {known}; "
            "without the flag the network begins untrained"
        )
    try:
        state = published[name].get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:  # no network, full disk; another digest
        url = published[name].url
        raise Unusable(
            f"{origin} cannot be downloaded from {url} ({error}): "
            "fetch it where there is a network, and give its path as --weights"
        ) from None
    return Weights(tensors=dict(_tensors(state)), flag=origin)


def load(module: nn.Module, arch: str, name: str) -> Loaded:
    """Load weights from a file, or torchvision's of that name. `name` is --weights. Raises Unusable."""
    return fill(module, arch, read(arch, name), heads=heads_of(module))


def heads_of(module: nn.Module) -> tuple[str, ...]:
    """Return how names of a classifier's parameters begin whose shapes follow the classes.

    They are of the last linear layer or convolution of the trunk, and of each auxiliary head.
    """
    layers = [
        name
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.Conv3d)
    ]
    auxiliary = [name for name in layers if re.search(r"(?i)aux.*\.fc2?$", name)]
    trunk = ["fc"] if hasattr(module, "fc") else []
    return tuple(f"{name}." for name in (*layers[-1:], *auxiliary, *trunk))


def fill(
    module: nn.Module, arch: str, weights: Weights, heads: tuple[str, ...]
) -> Loaded:
    """Load all of the weights but those of `heads` with another shape, which stay as they are.

    As torch does it: it also takes what older modules have written. Raises Unusable when something is
    missing, is too much, or has another shape and its name does not begin as one of the heads'.
    """
    own = module.state_dict()
    state, notes = weights.tensors_for(own)
    other = [
        name
        for name, value in state.items()
        if name in own and not _suits(value, own[name])
    ]
    wrong = [
        name
        for name in other
        if not (name.startswith(heads) and state[name].is_floating_point())
    ]
    fitting = OrderedDict((name, state[name]) for name in state if name not in other)
    reason = ""
    if wrong:
        theirs, ours = _kind(state[wrong[0]]), _kind(own[wrong[0]])
        reason = f"'{wrong[0]}' is {theirs} there, {ours} here"
        if "pos" in wrong[0] and state[wrong[0]].ndim == own[wrong[0]].ndim:
            # of a ViT one for each patch
            reason += "; it follows the size of the images: --image-size N, that of their training"
    # as of the oldest version of each module, which renames what it finds; MNASNet takes today's alone
    for versions in () if wrong else (None, own._metadata):  # type: ignore[attr-defined]
        if versions is not None:
            fitting._metadata = versions  # type: ignore[attr-defined]
        try:
            result = module.load_state_dict(fitting, strict=False)
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[-1].strip()
            continue
        missing = {*result.missing_keys} - {*other}
        odd = [
            name
            for name in sorted(missing.union(result.unexpected_keys))
            if not name.endswith(COUNTER)
        ]
        if not odd:
            if other:
                anew = ", ".join(other)
                notes.append(f"--weights are for other classes: {anew} start anew")
            return Loaded(
                anew=other,
                notes=notes,
                classes=() if other else weights.classes,
                used=weights.used,
            )
        reason = f"of {len(odd)} tensors, as '{odd[0]}', one side has none"
    source = ""
    if weights.arch and weights.arch != arch:
        source = f", and is of '{weights.arch}'"
    raise Unusable(f"{weights.flag} does not fit --arch {arch}{source}: {reason}")


def _suits(value: torch.Tensor, own: torch.Tensor) -> bool:
    """Whether numbers can be copied as they are; whole ones are a code for something else."""
    whole = own.is_floating_point() and not value.is_floating_point()
    return value.shape == own.shape and not whole


def _kind(value: torch.Tensor) -> str:
    return f"{tuple(value.shape)} {value.dtype}".replace("torch.", "")


def published_weights(arch: str) -> Mapping[str, Any]:
    """Return torchvision's weights of an architecture by name; {} of one that is not torchvision's."""
    try:
        return torchvision.models.get_model_weights(arch).__members__
    except ValueError:
        return {}


def published(arch: str, weights: str) -> Any:
    """Return torchvision's weights of that name, or whose file has it; None for any other file."""
    known = published_weights(arch)
    if weights in known:
        return known[weights]
    return next(
        (one for one in known.values() if Path(one.url).name == Path(weights).name),
        None,
    )


def categories(arch: str, weights: str) -> tuple[str, ...]:
    """Return the names of the outputs of torchvision's weights; () for any other file."""
    entry = published(arch, weights)
    return () if entry is None else tuple(entry.meta["categories"])
