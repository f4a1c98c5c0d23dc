"""Files of weights, as people own them -> state dicts under a network's own names."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from models import Unusable
from system import torch_files
from system.user_files import open_bytes

TRAINED = (
    *(
        "state_dict",
        "model",
        "model_state_dict",
        "model_state",
        "net",
        "network",
        "module",
        "state",
    ),
    *("params", "weights"),
)
"""Keys of the weights that were trained."""
REPLACED = "current_model_state"
"""Lightning's key of the trained weights, where "state_dict" is their average."""
WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""Parts that torch.compile, FSDP and activation checkpointing put into the names of parameters."""
COUNTER = "n_averaged"
"""Buffer of torch.optim.swa_utils.AveragedModel."""
AVERAGE = re.compile(
    r"(?:^|[._])(?:ema|swa|avg|averag\w*?|shadow\w*?|teacher)(?:[._]|$)"
)
"""The key, or the name, of a network that is the average of another one; averages are what was measured."""
DEPTH = 3
"""Mappings within each other in which a state dict is looked for."""

State = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Weights:
    """A state dict, and what must be said of where it comes from."""

    state: State
    notes: list[str] = field(default_factory=list)  # what was chosen, for the user
    arch: str = ""  # the architecture, where the file names it


def read(path: Path, said: str) -> Weights:
    """Return the weights in a file. `said` is the flag with its value. Raises Unusable."""
    content = _content(path, said)
    found = _found(content)
    # the rules of files of others are guesses; ours say what they are of
    key = torch_files.meant(content) if torch_files.is_ours(content) else _chosen(found)
    if key is None or key not in found:
        raise Unusable(f"{said} holds no state dict{_instead(content)}")
    state = found[key]
    if any(value.is_meta for value in state.values()):
        raise Unusable(
            f"{said} holds shapes without numbers (tensors of the meta device)"
        )
    others = [
        other for other in found if other != key and _names(state) & _ends(found[other])
    ]
    averaged = AVERAGE.search(key) is not None or REPLACED in found
    notes = []
    if averaged or others:
        what = "averaged weights" if averaged else "weights"
        left = f", not {', '.join(map(repr, others))}" if others else ""
        why = ", whose figure made it the best" if "best_of" in content else ""
        notes.append(f"{said}: took the {what} '{key}'{why}{left}")
    arch = content.get("arch", "") if isinstance(content, Mapping) else ""
    return Weights(state=state, notes=notes, arch=arch if isinstance(arch, str) else "")


def _content(path: Path, said: str) -> Any:
    try:
        if _is_safetensors(path):
            return _read_safetensors(path, said)
        return torch_files.load(path, foreign=True)
    except torch_files.Unreadable as error:
        raise Unusable(
            f"{said} is no checkpoint that can be read safely ({error})"
        ) from None
    except OSError as error:
        raise Unusable(f"{said} cannot be read: {error.strerror or error}") from None


def _is_safetensors(path: Path) -> bool:
    """Whether a JSON header follows 8 bytes of its length; a name says less than the bytes do."""
    if not path.is_file():
        return False
    with open_bytes(path) as file:
        return file.read(9)[8:] == b"{"


def _read_safetensors(path: Path, said: str) -> dict[str, torch.Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise Unusable(
            f"{said} is a safetensors file: pip install safetensors, which reads it"
        ) from None
    try:
        found: dict[str, torch.Tensor] = load_file(path)
    except (
        SafetensorError,
        KeyError,
    ) as error:  # KeyError: a type of numbers that this torch has not
        raise Unusable(
            f"{said} is no safetensors file that can be read ({error})"
        ) from None
    return found


def _found(content: Any, depth: int = DEPTH) -> dict[str, State]:
    """Return the state dicts in a content by the keys that lead to each, joined by dots; "" = itself."""
    if not isinstance(content, Mapping) or depth == 0:
        return {}
    if content and all(isinstance(value, torch.Tensor) for value in content.values()):
        return {"": content}
    return {
        f"{key}.{inner}" if inner else key: state
        for key, value in content.items()
        if isinstance(key, str)
        for inner, state in _found(value, depth - 1).items()
    }


def _is_of_weights(key: str) -> bool:
    """Whether each part of a key is of trained or of averaged weights."""
    return all(
        part in TRAINED or AVERAGE.search(part) for part in key.split(".") if part
    )


def _chosen(found: Mapping[str, State]) -> str | None:
    """Return the key of the weights to take, None where there are none: those of an average go first.

    An average that lacks names of the trained weights is none that could be in their place.
    """
    known = [key for key in found if _is_of_weights(key)]
    averaged = [key for key in known if AVERAGE.search(key)]
    trained = [key for key in known if key not in averaged]
    trained.sort(
        key=lambda key: [TRAINED.index(part) for part in key.split(".") if part]
    )
    whole = [
        key
        for key in averaged
        if not trained or not _names(found[trained[0]]) - _ends(found[key])
    ]
    return next(iter([*whole, *trained]), None)


def _names(state: State) -> set[str]:
    """Return the names of a state dict without what wrappers, or a holder of the network, put before all."""
    names = [_unwrapped(name).split(".") for name in state if name != COUNTER]
    while names and all(len(name) > 1 and name[0] == names[0][0] for name in names):
        names = [name[1:] for name in names]
    return {".".join(name) for name in names}


def _ends(state: State) -> set[str]:
    """Return the names of a state dict, and what is left of each behind its first parts."""
    names = [_unwrapped(name).split(".") for name in state]
    return {".".join(name[cut:]) for name in names for cut in range(len(name))}


def _instead(content: Any) -> str:
    """Say what there is in place of a state dict."""
    if not isinstance(content, Mapping):
        return (
            f", but an object of class {type(content).__name__}; save its state_dict()"
        )
    objects = [
        key for key, value in content.items() if isinstance(value, torch_files.Inert)
    ]
    modules = [key for key in objects if isinstance(key, str) and _is_of_weights(key)]
    modules.sort(key=lambda key: AVERAGE.search(key) is None)
    if modules:
        whole = type(content[modules[0]]).__name__
        return f": '{modules[0]}' is an object of class {whole}; save its state_dict()"
    known = ", ".join(TRAINED[:3])
    return f" (nor a checkpoint with one under {known}), but {first_names(content) or 'nothing'}"


def first_names(state: Mapping[Any, Any], count: int = 2) -> str:
    """Name the first tensors of a state dict with their shapes."""
    told = []
    for name, value in islice(state.items(), count):
        shape = f" {tuple(value.shape)}" if isinstance(value, torch.Tensor) else ""
        told.append(f"'{name}'{shape}")
    return ", ".join(told)


def under_own_names(weights: Weights, own: Collection[str], said: str) -> Weights:
    """Return the weights without the parts of names that wrappers have put before a network's `own` names.

    Where several networks of a file fit alike, such as a network and its average, the average is taken.
    """
    state = _renamed(weights.state, _unwrapped)
    fitting: Counter[str] = Counter()  # prefix -> names of the network that follow it
    for name in state:
        parts = name.split(".")
        for cut in range(len(parts)):
            if ".".join(parts[cut:]) in own:
                fitting["".join(f"{part}." for part in parts[:cut])] += 1
    most = max(fitting.values(), default=0)
    alike = [prefix for prefix in fitting if fitting[prefix] == most]
    alike.sort(key=lambda prefix: AVERAGE.search(prefix) is None)
    if not alike or "" in alike:
        return replace(weights, state=state)
    prefix = alike[0]
    inside = _renamed(
        state,
        lambda name: name.removeprefix(prefix) if name.startswith(prefix) else None,
    )
    outside = [
        name for name in state if not name.startswith(prefix) and name != COUNTER
    ]
    notes = list(weights.notes)
    if len(alike) > 1:
        notes.append(
            f"{said} holds several networks: took '{prefix}', not {', '.join(map(repr, alike[1:]))}"
        )
    elif outside:
        notes.append(
            f"{said}: took '{prefix}', left out {len(outside)} others, the first is '{outside[0]}'"
        )
    return replace(weights, state=inside, notes=notes)


def _unwrapped(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def _renamed(state: State, rename: Callable[[str], str | None]) -> State:
    """Rename tensors, and the modules whose versions torch keeps beside them; None leaves a name out."""
    new_names = ((rename(name), value) for name, value in state.items())
    renamed = OrderedDict(
        (name, value) for name, value in new_names if name is not None
    )
    versions = getattr(state, "_metadata", None)
    if isinstance(versions, Mapping):
        # a module's name is that of its parameters without the last part
        modules = {
            name: rename(f"{name}.x" if name else "x")
            for name in versions
            if isinstance(name, str)
        }
        kept = {
            name: new.rpartition(".")[0]
            for name, new in modules.items()
            if new is not None
        }
        # a wrapper gets the name of what it wraps, which comes later and stays
        new_versions = OrderedDict((new, versions[name]) for name, new in kept.items())
        renamed._metadata = new_versions  # type: ignore[attr-defined]
    return renamed
