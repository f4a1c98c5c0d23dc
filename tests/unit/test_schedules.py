"""The learning rate as a function of the epoch."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    PolynomialLR,
    SequentialLR,
    StepLR,
)

from saturate.engine.schedules import (
    drop_warning,
    growth_warning,
    learning_rate,
    limits,
    searches_kernels,
    settled,
    warmup_warning,
)
from saturate.settings.config import parse
from saturate.settings.optimisation import Optimisation

EPOCHS = 90
PUBLISHED: dict[str, tuple[dict[str, Any], Callable[..., LRScheduler]]] = {
    "cosineannealinglr": (
        {"schedule": "cosine", "final_lr": 0.01},
        lambda optimizer, warmup: CosineAnnealingLR(
            optimizer, EPOCHS - warmup, eta_min=0.01
        ),
    ),
    "a line": (
        {"schedule": "linear"},
        lambda optimizer, warmup: PolynomialLR(optimizer, EPOCHS - warmup, power=1.0),
    ),
    "polynomiallr": (
        {"schedule": "poly", "lr_power": 2},
        lambda optimizer, warmup: PolynomialLR(optimizer, EPOCHS - warmup, power=2.0),
    ),
    "steplr": (
        {"schedule": "step", "lr_step_epochs": 30},
        lambda optimizer, warmup: StepLR(optimizer, 30, gamma=0.1),
    ),
    "multisteplr": (
        {"schedule": "step", "lr_milestones": (16, 22)},
        lambda optimizer, warmup: MultiStepLR(
            optimizer, [at - warmup for at in (16, 22)], gamma=0.1
        ),
    ),
    "constant": (
        {"schedule": "constant"},
        lambda optimizer, warmup: LambdaLR(optimizer, lambda _: 1.0),
    ),
}
"""Schedules of torchvision's references: ours, and torch's behind a warm-up of so many epochs."""


@pytest.mark.parametrize("warmup", [0, 5])
@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.filterwarnings(
    "ignore:.*lr_scheduler.step:UserWarning"
)  # no step is taken here
@pytest.mark.filterwarnings(
    "ignore:The epoch parameter in:UserWarning"
)  # SequentialLR's own call
def test_schedules_are_torchvisions(name: str, warmup: int) -> None:
    """Epoch by epoch: by torch's own schedulers, put together as in torchvision's references."""
    settings, theirs = PUBLISHED[name]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = theirs(optimizer, warmup)
    if warmup:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        rising = LinearLR(optimizer, start_factor=0.01, total_iters=warmup)
        scheduler = SequentialLR(
            optimizer, [rising, theirs(optimizer, warmup)], milestones=[warmup]
        )
    optimisation = Optimisation(lr=0.1, epochs=EPOCHS, warmup_epochs=warmup, **settings)
    for epoch in range(EPOCHS):
        wanted = optimizer.param_groups[0]["lr"]
        assert learning_rate(epoch, optimisation) == pytest.approx(wanted), epoch
        scheduler.step()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"epochs": 3},
            "the warm-up of 5 epochs fills the run of 3: the learning rate only rises, to 0.0604 of",
        ),
        (
            {"epochs": 5, "schedule": "step", "lr_milestones": (5,)},
            "only rises, to 0.1 of --lr 0.1",
        ),
        ({"epochs": 6}, None),
    ],
)
def test_a_warmup_longer_than_the_run_is_told(
    settings: dict[str, Any], said: str | None
) -> None:
    found = warmup_warning(Optimisation(**settings), epoch_steps=10)
    assert (said is None and found is None) or (
        said is not None and found is not None and said in found
    )


@pytest.mark.parametrize(
    ("settings", "late"),
    [
        # iterations, as other programs count them
        ({"lr_milestones": (8, 1_234_567)}, "1234567"),
        ({"lr_milestones": (8, 11.5)}, None),
        ({"lr_step_epochs": 7, "warmup_epochs": 5}, "12"),
        ({"lr_step_epochs": 6, "warmup_epochs": 5}, None),
        ({"lr_milestones": (12,), "schedule": "cosine"}, None),
    ],
)
def test_a_drop_behind_the_end_is_told(
    settings: dict[str, Any], late: str | None
) -> None:
    optimisation = Optimisation(**{"schedule": "step", "epochs": 12, **settings})
    found = drop_warning(optimisation)
    assert (found is None) == (late is None)
    assert late is None or f"no drop at epoch {late}, since" in str(found)


@pytest.mark.parametrize(("epochs", "told"), [(13, True), (14, False)])
def test_images_that_grow_behind_the_end_are_told(epochs: int, told: bool) -> None:
    """FFCV's ramp ends with epoch 13, the fourteenth."""
    plan: Any = SimpleNamespace(first_epochs=(0, 12, 13))
    found = growth_warning(Optimisation(epochs=epochs), plan)
    assert (found is not None) == told
    assert not told or "their last size from epoch 13 on" in str(found)


@pytest.mark.parametrize(
    ("samples", "a_step", "wanted"),
    [
        (500, 256, 10),
        (2000, 512, 20),
        (1_281_167, 1024, 1000),
    ],
)
def test_a_warmup_of_steps_lasts_as_many(
    samples: int, a_step: int, wanted: int
) -> None:
    """Also where epochs drop a tail, whether `samples` are those of the data or those that are trained on."""
    steps = samples // a_step
    asked = Optimisation(epochs=400, warmup_steps=wanted, lr=1.0, schedule="constant")
    epochs = range(wanted // steps + 2)
    for of_an_epoch in (samples, steps * a_step):
        found, _ = settled(asked, of_an_epoch, a_step)
        rates = [
            learning_rate(epoch + step * a_step / of_an_epoch, found)
            for epoch in epochs
            for step in range(steps)
        ]
        assert next(step for step, rate in enumerate(rates) if rate >= 1) == wanted
    ramp = [0.01 + 0.99 * step / wanted for step in range(wanted)]
    assert rates[:wanted] == pytest.approx(ramp), (
        "a line over the steps that are trained"
    )


def test_what_a_run_leaves_out_and_when_it_ends_early_is_told() -> None:
    smaller = "29 for --batch-size 32: an epoch of 2 steps has all 57 rows"
    repeated = "326 of 653 samples an epoch, which shows the others 2 times (--repeats)"
    dropped = "13 of 653 samples (1.99%) an epoch, which is 20 steps of 32"
    for samples, views, batch, repeats, told in (
        (57, 3, 29, 1, {"batch size": smaller}),
        (653, 1, 32, 2, {"left out": f"{dropped}; {repeated}"}),
        (640, 1, 32, 1, {}),
    ):
        steps = samples // batch + (batch != 32)
        plan: Any = SimpleNamespace(
            samples=samples, views=views, batches=SimpleNamespace(rows=batch)
        )
        plan.steps, plan.global_batch_size = lambda steps=steps: steps, batch
        asked = {"asked": 32, "repeats": repeats, "val_every": 1}
        assert limits(plan, Optimisation(), **asked) == told
    early = "after 1 validation no better than the best one (--patience), or "
    for val_every, said in ((1, early), (2, ""), (0, "")):
        ends = Optimisation(epochs=3, patience=1, steps=1, seconds=4)
        found = limits(plan, ends, asked=32, repeats=1, val_every=val_every)
        whole = "after 1 step (--steps), or after 4 s at a steady rate (--seconds)"
        assert found == {"may end early": said + whole}


@pytest.mark.parametrize(
    ("flags", "varies", "restarts", "searches"),
    [
        ("--epochs 20", False, False, True),
        ("--epochs 19", False, False, False),
        # it ends sooner, and may be resumed
        ("--epochs 20 --steps 10", False, False, True),
        ("--epochs 20", True, False, False),
        ("--epochs 20", False, True, False),
    ],
)
def test_who_searches_for_kernels(
    flags: str, varies: bool, restarts: bool, searches: bool
) -> None:
    plan: Any = SimpleNamespace(
        batches=SimpleNamespace(varies=varies), steps=lambda epoch: 100
    )
    config = parse(flags.split())
    assert searches_kernels(config, plan, restarts=restarts) == searches
