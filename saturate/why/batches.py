"""Batches of a program that is not ours, and the loaders that give them: what can be seen of them from outside."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch

SETTINGS = (
    "num_workers",
    "batch_size",
    "pin_memory",
    "persistent_workers",
    "prefetch_factor",
)
"""Settings of a DataLoader that are told."""
Seen = dict[int, Any]
"""Lists and objects of a batch that were looked at, by their ids, which they keep for as long as they are here."""


def samples_of(batch: Any, size: int | None = None) -> int:
    """Return how many samples a batch holds; 0 where nobody can see that.

    `size` is what its loader takes together, of which an epoch's last batch may have less: its samples are the
    length that most of its tensors and lists have. Without a size it is the length of the first tensor, array or list
    of images.
    """
    if size is None:
        return _first_length(batch)
    lengths = Counter(length for length in _lengths(batch, {}) if 0 < length <= size)
    if not lengths or is_seen(batch, size):
        return size
    return lengths.most_common(1)[0][0]


def is_seen(batch: Any, size: int) -> bool:
    """Return whether a tensor, array or list of a batch has so many rows."""
    return size in (*_lengths(batch, {}), _first_length(batch))


def _lengths(batch: Any, seen: Seen) -> Iterator[int]:
    """Yield the lengths of the tensors, arrays and lists that a batch consists of, but not those of single samples."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        yield from shape[:1]
    parts = parts_of(batch, seen)
    if isinstance(batch, list) and len(parts) > 1 and all(map(_is_sample, parts)):
        yield len(parts)
        return
    for part in parts:
        if isinstance(part, (list, tuple)):
            yield len(part)
            if all(map(_is_sample, part)):
                continue
        yield from _lengths(part, seen)


def _is_sample(part: Any) -> bool:
    return _is_image(part) or isinstance(part, tuple) or hasattr(part, "keys")


def _first_length(batch: Any) -> int:
    """Return the length of the first tensor or array found in a batch, or of its first list of images; 0 where there
    is none.
    """
    for one in _all_in(batch):
        shape = getattr(one, "shape", None)
        if shape is None:
            parts = parts_of(one, {}) if isinstance(one, (list, tuple)) else []
            firsts = [next(iter(tensors_of(part)), None) for part in parts]
            # tensors of three dimensions and one or three channels, or dictionaries with such
            shape = [len(parts)] if all(map(_is_image, firsts)) else []
        if any(shape[:1]):
            return int(shape[0])
    return 0


def _is_image(tensor: Any) -> bool:
    shape: Any = getattr(tensor, "shape", ())
    return len(shape) == 3 and shape[0] in (1, 3)


def parts_of(batch: Any, seen: Seen) -> list[Any]:
    """Return what a batch holds: a list, a tuple, whatever has values, as dictionaries and BatchEncodings do, or an
    object of the program's own that is a dataclass, or is moved or pinned as a whole. Nothing of one that was seen: it
    may hold itself.
    """
    if id(batch) in seen:
        return []
    seen[id(batch)] = batch
    if hasattr(batch, "keys") and hasattr(batch, "values"):
        return list(batch.values())
    if isinstance(batch, (list, tuple)):
        return list(batch)
    if is_dataclass(batch):
        return [getattr(batch, field.name, None) for field in fields(batch)]
    is_moved = any(hasattr(batch, name) for name in ("to", "cuda", "pin_memory"))
    if is_moved and not hasattr(batch, "shape"):
        return list(getattr(batch, "__dict__", {}).values())
    return []


def _all_in(batch: Any) -> list[Any]:
    """Return a batch and all that it holds, in their order."""
    seen = Seen()
    found = [batch]
    for place, one in enumerate(found, 1):
        if not hasattr(one, "is_pinned"):
            found[place:place] = parts_of(one, seen)
    return found


def tensors_of(batch: Any) -> list[Any]:
    """Return all tensors of a batch."""
    return [one for one in _all_in(batch) if hasattr(one, "is_pinned")]


class KeptBatch:
    """A batch of so many samples to be given again and again, as the loader has given it.

    It is copied anew only where the loop has changed it: a copy of 128 images (77 MB) took 0.37 s on a busy core, and
    to see that they are unchanged 4 us.
    """

    def __init__(self, batch: Any, samples: int = 0) -> None:
        self.samples = samples
        self._batch, self._whole = batch, _copied(batch)
        self._before = _state_of(batch)

    def again(self) -> Any:
        """Return the batch as the loader has given it."""
        if _state_of(self._batch) != self._before:
            self._batch = _copied(self._whole)
            self._before = _state_of(self._batch)
        return self._batch


def _state_of(batch: Any) -> list[Any]:
    """Return what is another list once a batch was changed; of arrays, which do not tell, always another one."""
    return [
        # those of inference mode have no version, and cannot be changed elsewhere
        (id(one), -1 if one.is_inference() else one._version)
        if hasattr(one, "is_pinned")
        else object()
        if hasattr(one, "shape")
        else id(one)
        for one in _all_in(batch)
    ]


def _copied(batch: Any) -> Any:
    """Return a copy of a batch, pinned where that is."""
    copies = {}
    for one in tensors_of(batch):
        copied = one.clone()
        copies[id(one)] = copied.pin_memory() if one.is_pinned() else copied
    try:
        return copy.deepcopy(batch, copies)
    except TypeError:  # it holds a lock, or a file
        return batch


def length_of(loader: Any) -> int:
    """Return how many batches an epoch has; 0 where that is not known."""
    # PyTorch warns of those that were asked and have another length
    if isinstance(getattr(loader, "dataset", None), torch.utils.data.IterableDataset):
        return 0
    try:
        return len(loader)
    except Exception:  # whatever a sampler says
        return 0


def settings_of(loader: Any) -> dict[str, Any]:
    """Return those of SETTINGS that a loader has."""
    values = {name: getattr(loader, name, None) for name in SETTINGS}
    return {
        name: value for name, value in values.items() if isinstance(value, (int, str))
    }


def signature(loader: Any) -> tuple[Any, ...]:
    """Return what is the same of a DataLoader that a program makes anew for each epoch; of others what no two share."""
    if not hasattr(loader, "sampler"):
        return (id(loader),)
    kinds = map(type, (loader, loader.dataset, loader.sampler))
    return (*kinds, length_of(loader), *settings_of(loader).items())


def is_endless(loader: Any, iterator: Any) -> bool:
    """Return whether a loader holds an iterator that never ends, and counts by itself, as those of Ultralytics do."""
    attributes = getattr(loader, "__dict__", {})
    return any(
        one is iterator for name, one in attributes.items() if name != "_iterator"
    )
