"""The two plans of a run: what is alike for all tasks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from config import Config
from dataset.splits import Split
from plan.epoch import EpochPlan

P = TypeVar("P", bound=EpochPlan)


def pair(of: Callable[..., P], config: Config, splits: dict[str, Split], training: Any, validation: Any, **ranks: Any) -> tuple[P, P]:
    """Of training and of validation. `of(columns, policy, ...)` makes one. Raises UserError when not even one step can be trained."""
    load, steps = config.loading, config.optimisation
    train = of(splits["train"].columns, training, batch_size=load.batch_size, accumulate=steps.accumulate, **ranks)
    if not config.run.evaluate:
        train.require_a_step()
    of_val = partial(of, splits["val"].columns, validation, training=False, **ranks)
    val = of_val(batch_size=load.val_batch_size or load.batch_size)
    most = max(-(-val.samples * val.views // val.world_size), load.batch_size)  # a larger batch would be padding
    return train, of_val(batch_size=most) if val.batch_size > most else val
