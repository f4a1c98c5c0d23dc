"""The run's loop with a validation whose figures come later."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from torch import nn

from contracts import Batch, Counts, Figure, NotFinite, RateWindow, UserError
from engine.checkpoint import Checkpoints, Progress, Resume
from engine.distributed import ProcessWorld
from engine.emergency_save import EmergencySave
from engine.evaluate import Outcome
from engine.failures import Failures
from engine.loop import Training
from engine.validation import Validation
from settings.optimisation import Optimisation
from settings.run import Run

SAMPLES, BATCH, STEPS = 8, 2, 4  # steps an epoch


class Slow:
    """contracts.Pending whose figure is there from `arrived` on, or when it is waited for."""

    def __init__(self, figure: float) -> None:
        self.figure, self.arrived, self.dropped, self.waited = (
            figure,
            threading.Event(),
            False,
            0,
        )
        self.files: dict[str, bytes] = {}

    def done(self) -> bool:
        return self.arrived.is_set()

    def result(self) -> dict[str, Any]:
        self.waited += not self.done()
        return {"ap": self.figure, "seconds": 1.5, "extras": {"files": self.files}}

    def drop(self) -> None:
        self.dropped = True


class Toy:
    """What a run is made of; the weight of its module counts the steps. `at`: step -> what happens in it."""

    def __init__(
        self,
        folder: Path,
        *,
        epochs: int,
        figures: list[float],
        at: dict[int, Callable[[], None]] | None = None,
    ) -> None:
        self.folder, self.at, self.later = (
            folder,
            at or {},
            [Slow(figure) for figure in figures],
        )
        # of a step; samples of the validation that cannot be decoded
        self.outcome, self.failing = torch.zeros(4), range(0)
        self.module = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.module.weight)
        # steps done, step validated, figure
        self.report, self.told = MagicMock(), list[tuple[int, int, float]]()
        self.report.above_ceiling.return_value = False
        self.report.validated.side_effect = lambda result, step, **_: self.hear(
            step, result["ap"]
        )
        outstanding = iter(self.later)
        metric = SimpleNamespace(
            update=lambda outputs, batch: None, result=lambda world: next(outstanding)
        )
        loader = MagicMock(notes=(), counts=Counts(), reader="")
        loader.batches = self.batches
        loader.__enter__.return_value = loader
        validating = MagicMock(notes=(), counts=Counts(), reader="")
        validating.batches = lambda *_: self.batches(
            0, SAMPLES - BATCH, failed=list(self.failing)
        )
        validating.__enter__.return_value = validating
        meter = MagicMock(**{"due.return_value": False, "pause.return_value": None})
        plan: Any = SimpleNamespace(
            samples=SAMPLES,
            global_batch_size=BATCH,
            batch_size=BATCH,
            views=1,
            ordering="one",
            first_epochs=(0,),
            steps=lambda done: (SAMPLES - done) // BATCH,
        )
        step: Any = MagicMock(
            side_effect=self.step,
            loss_terms=(),
            masters=None,
            ema=None,
            **{
                "optimizer.state_dict.return_value": {},
                "scaler.state_dict.return_value": {},
            },
        )
        world = ProcessWorld(torch.device("cpu"))
        task: Any = SimpleNamespace(
            metric=lambda device: metric, inputs=lambda batch: (batch.images,)
        )
        checkpoints = Checkpoints(
            folder=folder, world=world, module=self.module, step=step, about={}
        )

        def failures(split: str) -> Failures:
            return Failures(
                split=split,
                samples=SAMPLES,
                name_of=lambda sample: "",
                report=self.report,
            )

        self.training = Training(
            world=world,
            plan=plan,
            step=step,
            loader=loader,
            validation=Validation(
                world=world,
                task=task,
                best=Figure(name="ap"),
                precision="fp32",
                plan=plan,
                open_loader=lambda: validating,
                checkpoints=checkpoints,
                failures=failures("val"),
                report=self.report,
            ),
            checkpoints=checkpoints,
            failures=failures("train"),
            report=self.report,
            meter=meter,
            profile=MagicMock(),
            measure_ceilings=MagicMock(),
            run=Run(ceilings=False, log_every=100, save_every_minutes=0.0),
            optimisation=Optimisation(epochs=epochs),
            bytes_of=lambda ids: 0,
        )

    def set(self, **settings: Any) -> None:
        self.training.run = self.training.run.model_copy(update=settings)

    def hear(self, validated: int, figure: float) -> None:
        self.told.append((self.training.progress.step, validated, figure))

    def batches(
        self, epoch: int, consumed: int, failed: Sequence[int] = ()
    ) -> Iterator[Any]:
        for first in range(consumed, SAMPLES, BATCH):
            images, none = torch.full((BATCH, 1), float(epoch)), torch.zeros(0)
            ids = np.arange(first, first + BATCH)
            yield Batch(
                images=images,
                sizes=none,
                targets={},
                valid=none,
                ids=ids,
                failed=tuple(failed),
            )

    def step(self, batches: Iterator[Any], **_: Any) -> torch.Tensor:
        next(batches)
        with torch.no_grad():
            self.module.weight += 1
        self.at.get(self.training.progress.step + 1, lambda: None)()
        return self.outcome

    def kept(self, name: str) -> tuple[float, dict[str, Any]]:
        """The weight in a checkpoint, and where it goes on."""
        content = torch.load(self.folder / name, weights_only=True)
        return float(content["model"]["weight"]), content["progress"]


def test_training_goes_on_until_the_figures_come(tmp_path: Path) -> None:
    def arrive() -> None:
        weight, progress = toy.kept("last.pt")
        assert (weight, progress["epoch"], progress["consumed"]) == (STEPS, 0, SAMPLES)
        assert not (tmp_path / "best.pt").exists()
        toy.later[0].arrived.set()

    def look() -> None:
        weight, progress = toy.kept("last.pt")
        assert STEPS + 2 <= weight == progress["step"] < 2 * STEPS
        assert (progress["epoch"], progress["best"]) == (1, 0.25)

    toy = Toy(
        tmp_path,
        epochs=2,
        figures=[0.25, 0.125],
        at={STEPS + 2: arrive, 2 * STEPS: look},
    )
    assert toy.training.fit()
    (done, validated, figure), second = toy.told
    assert STEPS + 2 <= done < 2 * STEPS
    assert (validated, figure, second) == (STEPS, 0.25, (2 * STEPS, 2 * STEPS, 0.125))
    weight, progress = toy.kept("best.pt")
    assert (weight, progress["step"], progress["best"]) == (STEPS, STEPS, 0.25)
    assert (progress["epoch"], progress["consumed"]) == (1, 0)
    weight, progress = toy.kept("last.pt")
    assert (weight, progress["epoch"], progress["consumed"]) == (2 * STEPS, 2, 0)
    assert [later.waited for later in toy.later] == [0, 1]


def test_pictures_are_what_the_network_is_given(tmp_path: Path) -> None:
    """Mixed images too: the task makes them of the first step's batch."""
    toy = Toy(tmp_path, epochs=1, figures=[0.25])
    assert toy.training.fit()
    (told,) = toy.report.images.call_args_list
    step: Any = toy.training.step
    assert told.args[0].images is step.task.shown.return_value


@pytest.mark.parametrize(
    ("second", "steps", "best", "best_of"),
    [
        ((0.375, 0.25), STEPS, 0.5, "average"),
        ((0.75, 0.25), 2 * STEPS, 0.75, "network"),
    ],
)
def test_best_is_of_the_network_or_of_its_average(
    second: tuple[float, float], steps: int, best: float, best_of: str, tmp_path: Path
) -> None:
    """Each validation has two figures, the average's last: it leads the first epoch."""
    toy = Toy(tmp_path, epochs=2, figures=[0.25, 0.5, *second])
    average: Any = MagicMock(**{"state_dict.return_value": {}})
    toy.training.step.ema = average
    assert toy.training.fit() and average.in_network.call_count == 2
    content = torch.load(tmp_path / "best.pt", weights_only=True)
    assert (content["progress"]["step"], content["progress"]["best"]) == (steps, best)
    assert content["best_of"] == best_of


def test_figures_that_take_longer_than_an_epoch_are_waited_for(tmp_path: Path) -> None:
    toy = Toy(tmp_path, epochs=3, figures=[0.1, 0.3, 0.2])
    assert toy.training.fit() and [later.waited for later in toy.later] == [1, 1, 1]
    assert toy.told == [
        (2 * STEPS, STEPS, 0.1),
        (3 * STEPS, 2 * STEPS, 0.3),
        (3 * STEPS, 3 * STEPS, 0.2),
    ]
    assert toy.kept("best.pt")[0] == 2 * STEPS
    (warned,) = toy.report.warn.call_args_list
    assert "the warm-up of 5 epochs fills the run of 3" in warned.args[0]


def test_a_signal_meanwhile_loses_neither_steps_nor_figures(tmp_path: Path) -> None:
    toy = Toy(
        tmp_path,
        epochs=2,
        figures=[0.25],
        at={STEPS + 1: lambda: setattr(toy.training.stop, "signal", 15)},
    )
    assert not toy.training.fit()
    assert [told[1:] for told in toy.told] == [(STEPS, 0.25)] and toy.later[
        0
    ].waited == 1
    weight, progress = toy.kept("last.pt")
    assert (
        weight == progress["step"] > STEPS
        and progress["epoch"] == 1
        and progress["best"] == 0.25
    )
    assert toy.kept("best.pt")[0] == STEPS


def test_an_error_meanwhile_ends_the_scoring(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("out of memory")

    toy = Toy(tmp_path, epochs=2, figures=[0.25], at={STEPS + 2: fail})
    with pytest.raises(RuntimeError, match="out of memory"):
        toy.training.fit()
    assert toy.later[0].dropped and not toy.told
    weight, progress = toy.kept("last.pt")
    assert (weight, progress["epoch"], progress["consumed"]) == (STEPS, 0, SAMPLES), (
        "it resumes into the validation"
    )


def test_a_loss_that_is_not_finite_keeps_what_was_validated_before(
    tmp_path: Path,
) -> None:
    toy = Toy(tmp_path, epochs=2, figures=[0.25])
    toy.at[STEPS + 2] = lambda: setattr(toy, "outcome", torch.tensor([np.nan, 0, 0, 0]))
    with pytest.raises(NotFinite):
        toy.training.fit()
    assert [figure for _, _, figure in toy.told] == [0.25] and toy.kept("best.pt")[
        0
    ] == STEPS
    assert toy.kept("last.pt")[0] == STEPS


@pytest.mark.parametrize("evaluated", [False, True])
def test_a_validation_that_ends_the_run_ends_its_scoring(
    evaluated: bool, tmp_path: Path
) -> None:
    toy = Toy(tmp_path, epochs=1, figures=[0.25])
    toy.failing = range(12)
    with pytest.raises(UserError, match="samples of val cannot be decoded"):
        toy.training.validate() if evaluated else toy.training.fit()
    assert toy.later[0].dropped and not toy.told


def test_what_is_otherwise_than_in_the_checkpoint_is_said(tmp_path: Path) -> None:
    toy = Toy(tmp_path, epochs=1, figures=[])
    for before, said in (
        ({"lr": 0.1, "steps": 3}, ["lr 0.1 -> 0.2"]),
        ({"lr": 0.2, "steps": 3}, []),
    ):
        toy.report.info.reset_mock()
        resume = Resume(content={"progress": asdict(Progress()), "config": before})
        resume.tell(toy.report, config={"lr": 0.2, "steps": 5}, ordering="one")
        assert [
            call.args[0].rpartition(": ")[2] for call in toy.report.info.call_args_list
        ] == said


def test_seconds_of_a_validation_are_told_apart() -> None:
    class Slept(Slow):
        def result(self) -> dict[str, Any]:
            time.sleep(0.2)
            return super().result()

    told = Outcome(Slept(0.25), failed=[3], pass_s=7.0, score_s=0.5).result(
        ProcessWorld(torch.device("cpu"))
    )
    assert (
        told["ap"] == 0.25 and told["failed"] == [3] and told["extras"] == {"files": {}}
    )
    seconds = told["seconds"]
    assert (seconds["pass"], seconds["score"]) == (7.0, 1.5) and 0.7 <= seconds[
        "waited"
    ] < 5


def test_a_validation_that_does_not_fit_names_its_batch(tmp_path: Path) -> None:
    toy = Toy(tmp_path, epochs=1, figures=[])

    def validating() -> Any:
        raise MemoryError("Unable to allocate")

    toy.training.validation.open_loader = validating
    said = rf"a validation batch of {BATCH} does not fit \(.*memory\): a smaller --val-batch-size needs less"
    with pytest.raises(UserError, match=said):
        toy.training.fit()


def test_a_worker_that_dies_in_mid_step_leaves_no_hole(tmp_path: Path) -> None:
    """With --accumulate a step may be half done: it is undone, and the steps before it are told and saved."""

    def fail() -> None:
        seen.add_(1)  # in the first half of the step
        raise UserError("a worker was killed")

    toy = Toy(tmp_path, epochs=1, figures=[], at={3: fail})
    seen = torch.zeros(())
    toy.module.register_buffer("seen", seen)
    toy.training.plan.batch_size = BATCH // 2  # type: ignore[misc]
    toy.training.rescue = EmergencySave(
        toy.training.checkpoints, toy.training.world, accumulate=2
    )
    with pytest.raises(UserError, match="a worker was killed"):
        toy.training.fit()
    assert [
        point["step"]
        for told in toy.report.train.call_args_list
        for point in told.args[0]
    ] == [1, 2]
    content = torch.load(tmp_path / "last.pt", weights_only=True)
    assert (content["progress"]["step"], float(content["model"]["seen"])) == (2, 0.0)


def test_files_are_of_the_weights_of_best(tmp_path: Path) -> None:
    """The first epoch leaves the average's files, the second the network's; the third, a worse one, none."""
    toy = Toy(tmp_path, epochs=3, figures=[0.25, 0.5, 0.75, 0.25, 0.125, 0.125])
    for number, later in enumerate(toy.later):
        later.files = {"val_predictions.csv": str(number).encode()}
    toy.training.step.ema = MagicMock(**{"state_dict.return_value": {}})
    toy.training.fit()
    files = [told.kwargs["files"] for told in toy.report.validated.call_args_list]
    assert files == [{"val_predictions.csv": b"1"}, {"val_predictions.csv": b"2"}, {}]


@pytest.mark.parametrize("of_average", [False, True])
def test_an_evaluation_leaves_files_of_the_checkpoints_weights(
    of_average: bool, tmp_path: Path
) -> None:
    """Whichever of the two has the better figure on these data."""
    toy = Toy(tmp_path, epochs=1, figures=[0.25, 0.5])
    for number, later in enumerate(toy.later):
        later.files = {"val_predictions.csv": str(number).encode()}
    toy.training.step.ema = MagicMock(**{"state_dict.return_value": {}})
    toy.training.validation.of_average = of_average
    toy.training.validate()
    (told,) = toy.report.validated.call_args_list
    assert told.kwargs["files"] == {"val_predictions.csv": b"1" if of_average else b"0"}
    assert not (tmp_path / "best.pt").exists()


def test_a_checkpoint_is_asked_for_once(tmp_path: Path) -> None:
    toy = Toy(tmp_path, epochs=2, figures=[0.5, 0.5])
    for one in toy.later:
        one.arrived.set()
    toy.set(save_every_minutes=1e-9)
    toy.training._saved_at = 0.0
    saved = noted(toy)
    toy.training.fit()
    assert [step for step in saved if step % STEPS] == [2, STEPS + 2], (
        "asked for in the step before"
    )


def test_an_epoch_without_validation_or_ceilings_is_saved_once(tmp_path: Path) -> None:
    toy = Toy(tmp_path, epochs=3, figures=[0.5])
    toy.later[0].arrived.set()
    toy.set(val_every=3)
    saved = noted(toy)
    toy.training.fit()
    assert saved[:3] == [STEPS, 2 * STEPS, 3 * STEPS]


def noted(toy: Toy) -> list[int]:
    """Return a list that the steps of each last.pt will be added to."""
    saved = list[int]()

    class Noted(Checkpoints):
        def write(self, name: str, content: dict[str, Any] | None) -> None:
            saved.extend([toy.training.progress.step] if name == "last.pt" else [])
            super().write(name, content)

    toy.training.checkpoints = Noted(**vars(toy.training.checkpoints))
    return saved


def test_an_evaluation_takes_no_optimiser(tmp_path: Path) -> None:
    """A checkpoint is evaluated whatever trained it."""
    toy = Toy(tmp_path, epochs=1, figures=[])
    weights = {"weight": torch.full((1, 1), 3.0)}
    progress = asdict(Progress(step=7))
    resume = Resume(
        content={
            "model": weights,
            "progress": progress,
            "config": {"optimizer": "adamw"},
        }
    )
    with pytest.raises(UserError, match="--optimizer is adamw"):
        resume.into(toy.module, toy.training.step, optimizer="sgd")
    resume = replace(resume, evaluate=True)
    resume.into(toy.module, toy.training.step, optimizer="sgd")
    assert (toy.module.weight.item(), resume.progress.step) == (3.0, 7)


def test_an_evaluation_tells_its_figures_and_keeps_nothing(tmp_path: Path) -> None:
    toy = Toy(tmp_path, epochs=1, figures=[0.25])
    assert (
        toy.training.validate()
        and toy.told == [(0, 0, 0.25)]
        and not [*tmp_path.iterdir()]
    )
    assert toy.training.progress.best == float("-inf"), "of training"


def test_the_bar_counts_what_is_trained(tmp_path: Path) -> None:
    toy = Toy(tmp_path, epochs=1, figures=[1.0])
    toy.training.plan.samples = SAMPLES + 1  # type: ignore[misc]
    toy.training.fit()
    assert toy.report.epoch.call_args.args == (0, 1, SAMPLES, 0)


def test_nothing_is_saved_past_figures_that_are_waited_for(tmp_path: Path) -> None:
    """A signal may come in that wait, and where ranks cannot meet the watch saves what it may."""
    toy = Toy(tmp_path, epochs=1, figures=[0.5])
    pending = toy.later[0]
    unsettled: list[bool] = []
    result = pending.result

    def waited() -> dict[str, Any]:
        unsettled.append(toy.training.validation.unsettled)
        return result()

    pending.result = waited  # type: ignore[method-assign]
    assert toy.training.fit()
    assert unsettled == [True] and not toy.training.validation.unsettled


def test_a_window_has_the_bytes_of_its_samples(tmp_path: Path) -> None:
    """A window counts samples that are no padding, and the next window has none of them."""
    toy = Toy(tmp_path, epochs=2, figures=[0.5, 0.5])
    toy.training.bytes_of = lambda ids: 2**20 * int((ids + 1).sum())
    toy.training.meter.pause.side_effect = lambda: RateWindow(SAMPLES, SAMPLES, 2.0, 0)  # type: ignore[attr-defined]
    padded = toy.batches

    def batches(epoch: int, consumed: int) -> Iterator[Any]:
        for batch in padded(epoch, consumed):
            batch.ids[batch.ids == 7 - epoch] = -1
            yield batch

    toy.training.loader.batches = batches  # type: ignore[union-attr, method-assign]
    assert toy.training.fit()
    told = [call.kwargs["mib_per_s"] for call in toy.report.window.call_args_list]
    assert told == [(36 - 8) / 2, (36 - 7) / 2]


def test_bytes_of_smaller_images_are_in_no_window(tmp_path: Path) -> None:
    """The open window is dropped where images grow."""
    toy = Toy(tmp_path, epochs=2, figures=[0.5, 0.5])
    toy.training.plan.first_epochs = (0, 1)  # type: ignore[misc]
    toy.training.bytes_of = lambda ids: 2**20 * len(ids)
    windows = [RateWindow(SAMPLES, SAMPLES, 1.0, 1)]

    def in_the_second_epoch() -> RateWindow | None:
        return windows.pop() if windows and toy.training.progress.epoch == 1 else None

    toy.training.meter.pause.side_effect = in_the_second_epoch  # type: ignore[attr-defined]
    assert toy.training.fit()
    assert [call.kwargs["mib_per_s"] for call in toy.report.window.call_args_list] == [
        SAMPLES
    ]


@pytest.mark.parametrize(
    ("first_epochs", "settings", "measured", "anew"),
    [
        ((0,), {}, [(0, 1)], 0),
        ((0, 1, 2), {}, [(2, 3)], 2),
        ((0, 9), {}, [(3, 3)], 0),  # the run ends before: what it ends with
        ((0, 3), {}, [(3, 4)], 1),
        ((0, 2), {"steps": 2}, [(0, 0)], 0),
    ],
)
def test_ceilings_are_of_the_last_size(
    first_epochs: tuple[int, ...],
    settings: Any,
    measured: list[tuple[int, int]],
    anew: int,
    tmp_path: Path,
) -> None:
    """The step's with a batch of that size, the loader's in an epoch of that size, whose samples nobody has
    read where there is one; the rate is of no other size.
    """
    fake = Toy(tmp_path, epochs=4, figures=[0.0] * 4)
    fake.set(ceilings=True)
    fake.training.plan.first_epochs = first_epochs  # type: ignore[misc]
    fake.training.optimisation = fake.training.optimisation.model_copy(update=settings)
    fake.training.fit()
    calls: Any = fake.training.measure_ceilings
    assert [
        (int(call.args[0].images[0]), call.kwargs["epoch"])
        for call in calls.call_args_list
    ] == measured
    meter: Any = fake.training.meter
    assert meter.begin_anew.call_count == anew
