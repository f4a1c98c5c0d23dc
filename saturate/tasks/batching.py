"""How samples become the batches of a run, whatever the task: the plans of training and of validation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from saturate.contracts import LabelColumns, Split, UserError
from saturate.plan import order
from saturate.plan.balance import Balance
from saturate.plan.epoch import EpochPlan
from saturate.settings.config import Config, micro_batches

P = TypeVar("P", bound=EpochPlan)


@dataclass(frozen=True, kw_only=True)
class Batching:
    """The batches of one rank, and the order of their samples."""

    size: int  # samples of a micro-batch
    accumulate: int = 1  # micro-batches of a step
    val_size: int | None = None  # of a validation; None: `size`
    # the samples of a step are given (--global-batch-size), also where an epoch has few steps
    is_fixed: bool = False
    shuffled: bool = True
    repeats: int = 1
    is_balanced: bool = False  # --balance sampler
    trains: bool = True
    seed: int = 0
    world_size: int = 1
    rank: int = 0

    @classmethod
    def from_config(
        cls, config: Config, *, world_size: int = 1, rank: int = 0
    ) -> Batching:
        """Return the batches that these settings ask for. Raises UserError where the ranks cannot make them."""
        size, accumulate = micro_batches(config, world_size)
        trains = not config.run.uses
        return cls(
            size=size,
            accumulate=accumulate,
            val_size=config.loading.val_batch_size,
            is_fixed=config.optimisation.global_batch_size is not None,
            shuffled=config.data.order == "shuffled",
            repeats=config.augmentation.repeats,
            is_balanced=trains and config.optimisation.balance == "sampler",
            trains=trains,
            seed=config.run.seed,
            world_size=world_size,
            rank=rank,
        )

    def pair(
        self,
        make_plan: Callable[..., P],
        splits: Mapping[str, Split[Any]],
        training: object,
        validation: object,
    ) -> tuple[P, P]:
        """Make the plans of training and of validation. `of(columns, policy, ...)` makes one.

        A set of few steps gets a smaller batch of training, with which no sample is left out, unless
        --global-batch-size is given. Raises UserError when not even one step can be trained.
        """
        ranks = {"seed": self.seed, "world_size": self.world_size, "rank": self.rank}
        train = make_plan(
            splits["train"].columns,
            training,
            batch_size=self.size,
            accumulate=self.accumulate,
            shuffled=self.shuffled,
            repeats=self.repeats,
            balance=self._balance(splits["train"].columns),
            **ranks,
        )
        if self.trains:
            shares = train.world_size * train.accumulate
            size, keeps_tail = order.fitted(train.samples, train.batch_size, shares)
            if keeps_tail and not self.is_fixed:
                train = replace(train, batch_size=size, keeps_tail=True)
            train.require_a_step()
        columns = splits["val"].columns
        of_val = partial(make_plan, columns, validation, training=False, **ranks)
        val = of_val(batch_size=self.val_size or train.batch_size)
        # a larger batch would be padding; that of training is there anyway
        most = max(
            -(-val.samples * val.views // val.world_size),
            train.batch_size if self.trains else 1,
        )
        return train, of_val(batch_size=most) if val.batch_size > most else val

    def _balance(self, columns: LabelColumns) -> Balance | None:
        """Return how classes come alike in training with --balance sampler, else None. Raises UserError."""
        if not self.is_balanced:
            return None
        if not self.shuffled or self.repeats > 1:
            raise UserError(
                "--balance sampler has an order of its own; leave --order and --repeats out"
            )
        return Balance.from_labels(np.asarray(columns.label))
