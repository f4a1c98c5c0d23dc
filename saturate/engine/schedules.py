"""The learning rate as a pure function of the epoch, a float: steps taken over the steps of an epoch."""

from __future__ import annotations

import math

from saturate.contracts import Plan, counted
from saturate.settings.config import Config
from saturate.settings.optimisation import Optimisation

SEARCH_PAYS = 2000
"""Steps from which on cuDNN's search may pay: it takes 1.4 to 15 s on an H200, and gains 2 % of steps of some 40 ms
(docs/tuning.md).
"""


def settled(
    optimisation: Optimisation, samples: int, of_a_step: int
) -> tuple[Optimisation, list[str]]:
    """Return the settings with what depends on the data and on the ranks, and lines that say what it is.

    That is --lr for a step of `of_a_step` samples over all ranks, with --lr-per, and where in the epochs
    --warmup-steps are over. `samples` are those that an epoch trains on; only whole steps of them count.
    """
    changed: dict[str, float] = {}
    notes = []
    if optimisation.lr_per:
        changed["lr"] = lr = optimisation.lr * of_a_step / optimisation.lr_per
        scaled = f"--lr {optimisation.lr:g} x {of_a_step} samples a step / --lr-per {optimisation.lr_per}"
        notes.append(f"the learning rate is {scaled} = {lr:.4g}")
    if optimisation.warmup_steps:
        whole, rest = divmod(optimisation.warmup_steps, max(samples // of_a_step, 1))
        changed["warmup_epochs"] = epochs = whole + rest * of_a_step / max(samples, 1)
        notes.append(
            f"--warmup-steps {optimisation.warmup_steps} are a warm-up of {counted(float(epochs), 'epoch')}"
        )
    return optimisation.model_copy(update=changed), notes


def of_plan(optimisation: Optimisation, plan: Plan) -> tuple[Optimisation, list[str]]:
    """Return what `settled` does for the epochs of a plan."""
    a_step = plan.global_batch_size
    return settled(optimisation, plan.steps() * a_step, a_step)


def facts(plan: Plan) -> dict[str, int]:
    """Return what a summary says of the steps of a plan; `epoch_samples` are those that an epoch trains on."""
    steps = plan.steps()
    return {
        "batch_size": plan.batches.rows,
        "epoch_steps": steps,
        "epoch_samples": min(steps * plan.global_batch_size, plan.samples),
    }


def limits(
    plan: Plan, optimisation: Optimisation, *, asked: int, repeats: int, val_every: int
) -> dict[str, str]:
    """Return by their titles what a run says, before it begins, of samples that an epoch leaves out, of a
    batch that is another than was `asked` for, and of what may end it early. `repeats` is --repeats,
    `val_every` --val-every.
    """
    samples, steps = plan.samples, plan.steps()
    a_step = plan.global_batch_size
    # a sample that repeats may take the place of others
    what = "sample" if plan.views == 1 else "row"
    notes = {}
    if plan.batches.rows != asked:
        notes["batch size"] = (
            f"{plan.batches.rows} for --batch-size {asked}: an epoch of {counted(steps, 'step')} has all "
            f"{counted(samples, what)}"
        )
    dropped = samples - steps * a_step
    left_out = []
    if dropped > 0:
        left_out.append(
            f"{dropped:,} of {counted(samples, what)} ({dropped / samples:.2%}) an epoch, which is "
            f"{counted(steps, 'step')} of {a_step:,}"
        )
    if repeats > 1:
        others = samples - -(-samples // repeats)
        left_out.append(
            f"{others:,} of {counted(samples, 'sample')} an epoch, which shows the others {repeats} times (--repeats)"
        )
    if left_out:
        notes["left out"] = "; ".join(left_out)
    ends = []
    patience = optimisation.patience
    # the first one is the best so far, and the last one ends the run anyway
    if patience and 0 < (patience + 1) * val_every < optimisation.epochs:
        worse = counted(patience, "validation")
        ends.append(f"after {worse} no better than the best one (--patience)")
    if optimisation.until is not None:
        ends.append(f"with a validation of {optimisation.until} (--until)")
    if optimisation.steps is not None:
        ends.append(f"after {counted(optimisation.steps, 'step')} (--steps)")
    if optimisation.seconds is not None:
        ends.append(f"after {optimisation.seconds:g} s at a steady rate (--seconds)")
    if ends:
        notes["may end early"] = ", or ".join(ends)
    return notes


def learning_rate(epoch: float, optimisation: Optimisation) -> float:
    """Return the rate at `epoch`: a linear warm-up from a share of the peak (--lr), then the schedule.

    The schedule is a cosine, a line or a power of it to --final-lr, drops by --lr-gamma every --lr-step-epochs
    behind the warm-up or at --lr-milestones, or constant.
    """
    peak = optimisation.lr
    warmup = optimisation.warmup_epochs
    if epoch < warmup:
        start = optimisation.warmup_start
        return peak * (start + (1 - start) * epoch / warmup)
    if optimisation.schedule in ("cosine", "linear", "poly"):
        final = optimisation.final_lr
        share = min((epoch - warmup) / max(optimisation.epochs - warmup, 1e-9), 1.0)
        left = {
            "cosine": 0.5 * (1 + math.cos(math.pi * share)),
            "linear": 1 - share,
            "poly": (1 - share) ** optimisation.lr_power,
        }[optimisation.schedule]
        return final + (peak - final) * left
    if optimisation.schedule == "step":
        return peak * optimisation.lr_gamma ** _drops(epoch, optimisation)
    return peak


def run_steps(optimisation: Optimisation, epoch_steps: int) -> float:
    """Return how many steps a run of epochs with so many takes, if nothing ends it before; inf where --seconds does."""
    if optimisation.seconds is not None:
        return math.inf
    return min(optimisation.epochs * epoch_steps, optimisation.steps or math.inf)


def searches_kernels(config: Config, plan: Plan, *, restarts: bool) -> bool:
    """Return whether cuDNN is to search for the fastest kernels, which takes seconds for each shape in each process.

    The largest batch was measured without. A run that `restarts` after deaths would pay for each of them, and go on
    with other kernels than it had. A schedule of few steps, which --steps does not shorten, ends before it has paid:
    so a run that is stopped by --steps and resumed has the kernels of one that is not.
    """
    is_found = config.loading.batch_size == "auto"
    steps = config.optimisation.epochs * plan.steps(0)
    return not (is_found or plan.batches.varies or restarts) and steps >= SEARCH_PAYS


def warmup_warning(optimisation: Optimisation, epoch_steps: int) -> str | None:
    """Return a line where the run, of epochs with so many steps, ends before its warm-up does; else None."""
    length = run_steps(optimisation, epoch_steps) / max(epoch_steps, 1)
    length = min(optimisation.epochs, length)
    warmup = optimisation.warmup_epochs
    if not warmup or length > warmup:
        return None
    last = learning_rate(length, optimisation) if length < warmup else optimisation.lr
    return (
        f"the warm-up of {counted(float(warmup), 'epoch')} fills the run of {length:.3g}: the learning rate only "
        f"rises, to {last:.3g} of --lr {optimisation.lr:g}; a shorter --warmup-epochs leaves time to train"
    )


def drop_warning(optimisation: Optimisation) -> str | None:
    """Return a line where a step schedule drops behind the end of the run; else None."""
    if optimisation.schedule != "step":
        return None
    first = optimisation.warmup_epochs + optimisation.lr_step_epochs
    drops = (
        (first,) if optimisation.lr_milestones is None else optimisation.lr_milestones
    )
    late = [f"{epoch:.15g}" for epoch in drops if epoch >= optimisation.epochs]
    if not late:
        return None
    return (
        f"--schedule step: no drop at epoch {', '.join(late)}, since the run ends with --epochs {optimisation.epochs}; "
        "--lr-milestones and --lr-step-epochs are in epochs"
    )


def growth_warning(optimisation: Optimisation, plan: Plan) -> str | None:
    """Return a line where images have their last size behind the end of the run; else None."""
    last = plan.first_epochs[-1]
    if last < optimisation.epochs:
        return None
    return (
        f"--image-size-ramp: images have their last size from epoch {last} on, and the run ends with --epochs "
        f"{optimisation.epochs}: it validates at a size that it is not trained on"
    )


def _drops(epoch: float, optimisation: Optimisation) -> int:
    """Count the drops of a step schedule up to `epoch`, which is behind the warm-up."""
    if optimisation.lr_milestones is None:
        # torchvision's references count them from the end of the warm-up
        return math.floor(
            (epoch - optimisation.warmup_epochs) / optimisation.lr_step_epochs
        )
    return sum(at <= epoch for at in optimisation.lr_milestones)
