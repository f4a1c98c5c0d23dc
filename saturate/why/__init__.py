"""Says why anybody's training loop is slow: its rate, two ceilings and the stage that binds. Needs torch and NumPy
alone.

    saturate why -- their_train.py --their flags

    their process                                                         this one
    start/sitecustomize.py  as Python begins, by PYTHONPATH                launch.py  starts it, tells the verdict
      hooks.py              wraps loaders, decoders, transforms
      phases.py             its own rate | the step alone | the loader alone, in turns -> one file a rank
        batches.py          what is seen of batches and loaders
        step.py             what the time of a step goes to
        trials.py           changes of it that are made for a while
                                                                          verdict.py  file -> table

What is changed in their process is what `hooks.py` lists, and for some steps what `step.py` times them by. What they
save meanwhile is undone (`undo.py`), and where they go on, what they have learnt (`restore.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from saturate.why import hooks

T = TypeVar("T")


def watch(loader: Iterable[T]) -> Iterable[T]:
    """Return what iterates `loader`, and is measured under `saturate why` as a DataLoader is: one line for a loader
    that is neither a DataLoader nor of DALI. Elsewhere it is `loader` itself.
    """
    return loader if hooks.run is None else _Watched(loader)


class _Watched(Iterable[T]):
    def __init__(self, loader: Iterable[T]) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        batches = iter(self._loader)
        # a DataLoader's is watched as it is
        return batches if hasattr(batches, "_saturate") else _Batches(self, batches)


class _Batches(Iterator[T]):
    def __init__(self, watched: _Watched[T], batches: Iterator[T]) -> None:
        self._watched = watched
        self._batches = batches
        self._saturate_epoch = object()

    def __next__(self) -> T:
        batch: T = hooks.taken(_Batches._following, self, self._watched._loader)
        return batch

    def _following(self) -> T:
        return next(self._batches)
