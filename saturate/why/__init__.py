"""Says why anybody's training loop is slow: its rate, two ceilings and the stage that binds. Needs torch and NumPy
alone.

    saturate why -- their_train.py --their flags

    their process                                                         this one
    start/sitecustomize.py  as Python begins, by PYTHONPATH                launch.py  starts it, tells the verdict
      hooks.py              wraps loaders, optimisers, decoders, transforms
      phases.py             its own rate | the step alone | the loader alone, in turns -> one file a rank
                                                                          verdict.py  file -> table

What is changed in their process is what `hooks.py` lists, and for some steps what `phases.py` times them by. What they
save meanwhile is undone (`undo.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def watch(loader: Iterable[T]) -> Iterable[T]:
    """Return what iterates `loader`, and is measured under `saturate why` as a DataLoader is: one line for a loader
    that is neither a DataLoader nor of DALI. Elsewhere it is `loader` itself.
    """
    from saturate.why import phases

    return loader if phases.run is None else _Watched(loader)


class _Watched(Iterable[T]):
    def __init__(self, loader: Iterable[T]) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        from saturate.why import phases

        batches = iter(self._loader)
        if hasattr(batches, "_saturate"):  # is watched as it is
            yield from batches
            return
        while True:
            try:
                if phases.run is None:
                    batch = next(batches)
                else:
                    batch = phases.run.take(batches, self._loader, batches.__next__)
            except StopIteration:
                return
            yield batch
