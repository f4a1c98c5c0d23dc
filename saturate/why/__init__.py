"""Says why anybody's training loop is slow: its rate, two ceilings and the stage that binds. Needs torch and NumPy
alone.

    saturate why -- their_train.py --their flags

    their process                                                         this one
    start/sitecustomize.py  as Python begins, by PYTHONPATH                launch.py  starts it, tells the verdict
      hooks.py              wraps loaders, optimisers, decoders, transforms
      phases.py             its own rate | the step alone | the loader alone, in turns -> one file a rank
                                                                          verdict.py  file -> table

Nothing of theirs is changed but what `hooks.py` lists, and no file of theirs is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def watch(loader: Iterable[T]) -> Iterable[T]:
    """Return what iterates `loader`, and is measured under `saturate why` as a DataLoader is: one line for a loader
    that is neither a DataLoader nor of DALI. Elsewhere it is `loader` itself.
    """
    from saturate.why import phases

    return loader if phases.run is None else _Watched(loader)


class _Watched(Iterable[T]):
    def __init__(self, loader: Iterable[T]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[T]:
        from saturate.why import phases

        assert phases.run is not None
        batches = iter(self.loader)
        while True:
            try:
                batch: T = phases.run.take(batches, self.loader, batches.__next__)
            except StopIteration:
                return
            yield batch
