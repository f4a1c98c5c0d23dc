"""Validation beside training: its loader, its figures, which may come late, and best.pt."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from saturate.contracts import Figure, Loader, Plan, Reporter, Task, UserError, counted
from saturate.engine import memory
from saturate.engine.checkpoint import Checkpoints, Progress
from saturate.engine.distributed import ProcessWorld, Vote
from saturate.engine.evaluate import Outcome, evaluate
from saturate.engine.failures import Failures
from saturate.engine.stop import Asked
from saturate.engine.watch import Watch
from saturate.system import torch_files

KEPT = (
    "val: the network keeps a tensor that it made in a validation, over which a graph would write: steps are "
    "launched kernel by kernel from now on; --graphs false"
)
NO_FIGURE = (
    "val: there is no {}: no sample of the validation data has a label, or an object, that it counts; such a "
    "validation does not pick best.pt"
)
OF = tuple(torch_files.BEST_OF)
"""Names of a validation's passes, in their order: of the network, then of its average (--ema)."""


@dataclass(frozen=True)
class Target:
    """A figure that ends the run (--until)."""

    asked: str  # such as top1=0.759
    figure: Figure

    def is_reached(self, result: Mapping[str, Any]) -> bool:
        """Return whether a validation has this figure, or a better one."""
        own = float(result.get(self.figure.name, math.nan))
        wanted = float(self.asked.partition("=")[2])
        return own >= wanted if self.figure.larger_is_better else own <= wanted


@dataclass(kw_only=True)
class _Unsettled:
    """A pass whose figures nobody has heard of yet, and what must be known of it then."""

    outcomes: list[Outcome]  # of the network and, with --ema, of its average
    step: int  # the last one trained
    epoch: int | None  # the last one trained
    picks_best: bool  # whether best.pt may become `content`
    # content of a checkpoint when this pass began; None but on rank 0, and where it does not pick
    content: dict[str, Any] | None

    @property
    def in_background(self) -> bool:
        """Whether figures are made beside what comes next."""
        return any(outcome.in_background for outcome in self.outcomes)


@dataclass(kw_only=True)
class Validation:
    """The validation of a run. Every rank calls it.

    `start` passes over the validation set. Its figures are there at once, or made in the background while
    training goes on: then `unsettled` holds until `settle` has waited for them. What becomes best.pt are the
    weights that were validated, not those trained meanwhile.
    """

    world: ProcessWorld
    task: Task
    best: Figure  # picks best.pt
    precision: str
    plan: Plan
    open_loader: Callable[[], Loader] | None  # None: there is no data to validate on
    checkpoints: Checkpoints
    failures: Failures
    report: Reporter
    # where there is no best.pt, the files are of the average's pass (True) or the network's
    of_average: bool = False
    tta: str = "none"  # --tta
    target: Target | None = None  # --until

    # samples of the last pass whose output was no number
    not_finite: int = field(default=0, init=False)
    _unsettled: _Unsettled | None = field(default=None, init=False)
    _notes_are_reported: bool = field(default=False, init=False)
    _lack_is_reported: bool = field(default=False, init=False)

    @property
    def possible(self) -> bool:
        """Whether there is data to validate on."""
        return self.open_loader is not None

    @property
    def unsettled(self) -> bool:
        """Whether a pass is over whose figures nobody has heard of."""
        return self._unsettled is not None

    def figures_are_there(self) -> bool:
        """Whether `settle` would not have to wait on rank 0."""
        return self._unsettled is None or all(
            outcome.done() for outcome in self._unsettled.outcomes
        )

    def start(
        self,
        progress: Progress,
        *,
        best_resumes_at: Progress | None,
        vote: Vote,
        stop: Callable[[], bool],
        watch: Watch,
    ) -> bool:
        """Pass over the validation set once; settle, unless the figures are made in the background.

        `best_resumes_at`: where a run goes on that starts from best.pt, if this becomes it; None where
        nothing is kept. Returns False when a signal came. Raises UserError when there is no data or too much
        of it cannot be decoded.
        """
        if self.open_loader is None:
            raise UserError("--evaluate needs --data: there is nothing to validate on")
        average = self.checkpoints.step.ema
        outcomes: list[Outcome] = []
        networks: list[AbstractContextManager[None]] = [nullcontext()]
        if average is not None:
            networks.append(average.in_network())
        for network in networks:
            with network:
                outcome = self._pass(vote, stop, watch)
            if outcome is None:
                for before in outcomes:
                    before.cancel()
                return False
            outcomes.append(outcome)
        content = None
        if best_resumes_at is not None:
            content = self.checkpoints.content(best_resumes_at)
        # at the start of an epoch it is the one before that was trained
        epoch = progress.epoch if progress.consumed else progress.epoch - 1
        self._unsettled = _Unsettled(
            outcomes=outcomes,
            step=progress.step,
            epoch=epoch if epoch >= 0 else None,
            picks_best=best_resumes_at is not None,
            content=content,
        )
        self.failures.check(set(outcomes[0].failed))
        if not self._unsettled.in_background:
            self.settle(progress)
        return True

    def _pass(
        self, vote: Vote, stop: Callable[[], bool], watch: Watch
    ) -> Outcome | None:
        """Pass over the validation set with the network as it is now; None when a signal came."""
        assert self.open_loader is not None
        began_s = time.perf_counter()
        with (
            memory.validating(self.plan.batches.rows),
            # images and tensors of a forward pass would otherwise lie beside a graph's memory
            self.checkpoints.step.memory_lent(),
            self.open_loader() as loader,  # for the pass alone: it holds no memory while training runs
            self.report.validation(self.plan.samples * self.plan.views) as advance,
        ):

            def beat(samples: int) -> None:
                watch.beat()
                advance(samples)

            outcome = None
            with watch.steps(), suppress(Asked):
                outcome = evaluate(
                    self.checkpoints.module,
                    watch.batches(loader, loader.batches(0, 0)),
                    task=self.task,
                    precision=self.precision,
                    tta=self.tta,
                    world=self.world,
                    vote=vote,
                    stop=stop,
                    advance=beat,
                )
            if outcome is not None:
                outcome.reader = loader.reader
                outcome.counts = loader.counts
            notes = loader.notes
        del loader  # and with it all that it still holds
        if not self.checkpoints.step.memory_is_back():
            self.report.warn(KEPT)
        if not self._notes_are_reported:
            for line in notes:
                self.report.info(f"val: {line}")
        self._notes_are_reported = True
        if self.world.device.type == "cuda":
            torch.cuda.empty_cache()  # what validation alone had needed goes back to the device
        if outcome is not None:
            of_pass = outcome.pass_s + outcome.score_s
            outcome.loader_s = time.perf_counter() - began_s - of_pass
        return outcome

    def settle(self, progress: Progress) -> None:
        """Wait for a pass's figures, tell them, and write best.pt if they are the best.

        Of the network and, with --ema, its average the better one counts. Its figure goes to `progress.best`.
        A network with an output that is no number is not the best. Files, such as the answers to each sample,
        are of the weights of best.pt; pictures are of the better one of this pass.
        """
        settled = self._unsettled
        if settled is None:
            return
        results = [outcome.result(self.world) for outcome in settled.outcomes]
        best = self._best(results, progress.best) if settled.picks_best else None
        of_epoch = self._best(results, -np.inf)
        leaves = best
        # -inf is where a run begins: there is no best.pt whose files these would replace
        if not settled.picks_best or (best is None and np.isneginf(progress.best)):
            leaves = len(results) - 1 if self.of_average else 0
        shown = next((one for one in (leaves, of_epoch) if one is not None), 0)
        # each pass has kept training waiting
        seconds = {
            name: sum(result["seconds"][name] for result in results)
            for name in results[0]["seconds"]
        }
        self.report.validated(
            results[0] | {"seconds": seconds},
            averaged=results[1] if len(results) > 1 else None,
            files=results[leaves].get("extras", {}).get("files", {})
            if leaves is not None
            else {},
            images=results[shown].get("extras", {}).get("images", {}),
            step=settled.step,
            epoch=settled.epoch,
            reader=settled.outcomes[0].reader,
            counts=settled.outcomes[0].counts,
            best=OF[best] if best is not None and len(results) > 1 else "",
        )
        self.not_finite = max(self._warned_of(result) for result in results)
        target = self.target
        if target and any(target.is_reached(result) for result in results):
            progress.reached = target.asked
            self.report.reached(target.asked, settled.epoch)
        if best is not None:
            progress.best = self._figure(results[best])
            progress.best_epoch = -1 if settled.epoch is None else settled.epoch
            progress.best_of = OF[best] if len(results) > 1 else ""
            progress.stale = 0
            if settled.content is not None:
                names = ("best", "best_epoch", "best_of", "stale")
                own = {name: getattr(progress, name) for name in names}
                settled.content["progress"] |= own
                settled.content["best_of"] = OF[best]
            self.checkpoints.write("best.pt", settled.content)
        elif np.isnan(self._figure(results[0])):
            if not self._lack_is_reported:
                self.report.warn(NO_FIGURE.format(self.best.title or self.best.name))
            self._lack_is_reported = True
        elif settled.picks_best:
            progress.stale += 1
        if (
            self.checkpoints.keep_best
            and of_epoch is not None
            and settled.content is not None
        ):
            settled.content["best_of"] = OF[of_epoch]
            self.checkpoints.rank(
                settled.content, self.best, self._figure(results[of_epoch])
            )
        # not before: a run that ends in here resumes into the validation
        self._unsettled = None

    def _best(self, results: Sequence[dict[str, Any]], figure: float) -> int | None:
        """Return the place of the best result that is better than `figure`, where there is one.

        A `figure` of -inf is none so far, whichever way is better.
        """
        best = None
        for place, result in enumerate(results):
            own = self._figure(result)
            is_better = own > figure if self.best.larger_is_better else own < figure
            is_first = math.isinf(figure) and not math.isnan(own)
            if not _not_finite(result) and (is_better or is_first):
                best = place
                figure = own
        return best

    def _warned_of(self, result: dict[str, Any]) -> int:
        """Return how many outputs of a pass were no numbers, and warn of them."""
        count = _not_finite(result)
        if count:
            of_all = f"{count:,} of {counted(result['samples'], 'sample')}"
            mend = (
                "" if self.precision == "fp32" else "; does --precision fp32 mend it?"
            )
            no_best = (
                f"they count as wrong, and such a network does not become best.pt{mend}"
            )
            self.report.warn(f"val: the output is no number for {of_all}: {no_best}")
        return count

    def _figure(self, result: dict[str, Any]) -> float:
        """Return the figure that picks best.pt; nan is none, as an AP where there is nothing to find."""
        return float(result[self.best.name])

    @contextmanager
    def cancelled_on_error(self) -> Iterator[None]:
        """Cancel a validation in the background when the body raises."""
        try:
            yield
        finally:
            for outcome in self._unsettled.outcomes if self._unsettled else ():
                outcome.cancel()


def _not_finite(result: dict[str, Any]) -> int:
    """Return how many outputs of a pass were no numbers."""
    return int(result.get("outputs_not_finite", 0))
