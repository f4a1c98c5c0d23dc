"""The run's loop with a validation whose figures come later."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from saturate.contracts import Batch, Counts, Figure, NotFinite, RateWindow, UserError
from saturate.engine import checkpoint, loop, unkillable
from saturate.engine.checkpoint import Checkpoints, Progress, Resume
from saturate.engine.distributed import ProcessWorld, Vote
from saturate.engine.evaluate import evaluate
from saturate.engine.failures import Failures
from saturate.engine.loop import Training
from saturate.engine.validation import Target, Validation
from saturate.settings.optimisation import Optimisation
from saturate.settings.run import Run
from tests.unit.test_report_reporter import Told

SAMPLES, BATCH, STEPS = 8, 2, 4  # steps an epoch


class Slow:
    """contracts.Pending whose figure is there from `arrived` on, or when it is waited for."""

    def __init__(self, figure: float) -> None:
        self.figure, self.waited = figure, 0
        self.arrived, self.dropped = threading.Event(), threading.Event()
        self.done, self.drop = self.arrived.is_set, self.dropped.set
        self.files: dict[str, bytes] = {}
        self.images: dict[str, Any] = {}
        self.more: dict[str, int] = {}

    def result(self) -> dict[str, Any]:
        self.waited += not self.done()
        extras = {"files": self.files, "images": self.images}
        return {"ap": self.figure, "seconds": 1.5, "extras": extras, **self.more}


def loader_of(batches: Callable[[int, int], Iterator[Any]]) -> Any:
    loader = MagicMock(notes=(), counts=Counts(), reader="", batches=batches)
    loader.__enter__.return_value = loader
    return loader


class Toy:
    """What a run is made of; the weight of its module counts the steps. `at`: step -> what happens in it."""

    def __init__(self, folder: Path, epochs: int, *figures: float, **run: Any) -> None:
        self.folder = folder
        self.at: dict[int, Callable[[], object]] = {}
        self.later = [Slow(figure) for figure in figures]
        # of a step; samples of the validation that cannot be decoded
        self.outcome, self.failing = torch.zeros(4), range(0)
        self.module = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.module.weight)
        # as of an attention's window: it is saved as it is
        self.module.register_buffer("mask", torch.tensor([0.0, -np.inf]))
        # steps done, step validated, figure
        self.report, self.told = MagicMock(), list[tuple[int, int, float]]()
        self.report.above_ceiling.return_value = False
        self.report.validated.side_effect = self.hear
        pending = iter(self.later)
        metric = MagicMock(result=lambda world: next(pending))
        plan = MagicMock(
            samples=SAMPLES,
            global_batch_size=BATCH,
            batch_size=BATCH,
            views=1,
            ordering="one",
            first_epochs=(0,),
            pixels=lambda epoch: 1,
            steps=lambda done: (SAMPLES - done) // BATCH,
        )
        step = MagicMock(side_effect=self.step, loss_terms=(), ema=None)
        step.optimizer.state_dict.return_value = {}
        step.scaler.state_dict.return_value = {}
        world = ProcessWorld(torch.device("cpu"))
        checkpoints = Checkpoints(
            folder=folder, world=world, module=self.module, step=step, about={}
        )
        train, val = (
            Failures(split=split, samples=SAMPLES, name_of=str, report=self.report)
            for split in ("train", "val")
        )
        validation = Validation(
            world=world,
            task=MagicMock(
                metric=lambda device: metric, inputs=lambda batch: (batch.images,)
            ),
            best=Figure(name="ap"),
            precision="fp32",
            plan=plan,
            open_loader=lambda: loader_of(self.validated),
            checkpoints=checkpoints,
            failures=val,
            report=self.report,
        )
        meter = MagicMock()
        meter.due.return_value = False
        meter.pause.return_value = None
        meter.point.return_value = None
        settings = {"ceilings": False, "log_every": 100, "save_every_minutes": 0.0}
        self.training = Training(
            world=world,
            plan=plan,
            step=step,
            loader=loader_of(lambda *at: self.batches(*at)),
            validation=validation,
            checkpoints=checkpoints,
            failures=train,
            report=self.report,
            meter=meter,
            profiler_step=MagicMock(),
            measure_ceilings=MagicMock(),
            run=Run(**settings | run),
            optimisation=Optimisation(epochs=epochs),
            bytes_of=lambda ids: 0,
        )

    def hear(self, result: dict[str, Any], *, step: int, **_: Any) -> None:
        self.told.append((self.training.progress.step, step, result["ap"]))

    def validated(self, epoch: int, first: int) -> Iterator[Any]:
        for batch in Toy.batches(self, 0, SAMPLES - BATCH):
            batch.failed = tuple(self.failing)
            yield batch

    def batches(self, epoch: int, consumed: int) -> Iterator[Any]:
        none = torch.zeros(0)
        for first in range(consumed, SAMPLES, BATCH):
            yield Batch(
                images=torch.full((BATCH, 1), float(epoch)),
                sizes=none,
                targets={},
                valid=none,
                ids=np.arange(first, first + BATCH),
            )

    def step(self, batches: Iterator[Any], **_: Any) -> torch.Tensor:
        next(batches)
        with torch.no_grad():
            self.module.weight += 1
        self.at.get(self.training.progress.step + 1, lambda: None)()
        return self.outcome

    def kept(self, name: str) -> tuple[float, dict[str, Any]]:
        """The weight in a checkpoint, and where it goes on."""
        self.training.checkpoints.wait()
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

    toy = Toy(tmp_path, 2, 0.25, 0.125)
    toy.at = {STEPS + 2: arrive, 2 * STEPS: look}
    assert toy.training.fit()
    (done, *first), second = toy.told
    assert STEPS + 2 <= done < 2 * STEPS and first == [STEPS, 0.25]
    assert second == (2 * STEPS, 2 * STEPS, 0.125)
    weight, progress = toy.kept("best.pt")
    assert (weight, progress["step"], progress["best"]) == (STEPS, STEPS, 0.25)
    assert (progress["epoch"], progress["consumed"]) == (1, 0)
    weight, progress = toy.kept("last.pt")
    assert (weight, progress["epoch"], progress["consumed"]) == (2 * STEPS, 2, 0)
    assert [later.waited for later in toy.later] == [0, 1]


def test_figures_that_come_with_the_last_step_are_told_soon(tmp_path: Path) -> None:
    """Also after an epoch that neither validates nor saves."""
    toy = Toy(tmp_path, 4, 0.5, 0.75, val_every=2)
    toy.at = {3 * STEPS: toy.later[0].arrived.set}
    assert toy.training.fit()
    assert toy.told[0] == (3 * STEPS + 2, 2 * STEPS, 0.5)


def test_training_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the weights of its step, and the end of the run waits for the last one."""
    goes_on = threading.Event()
    write = checkpoint.write

    def slowly(path: Path, content: dict[str, Any]) -> None:
        assert goes_on.wait(60)
        time.sleep(0.2)
        write(path, content)

    monkeypatch.setattr(checkpoint, "write", slowly)
    toy = Toy(tmp_path, 1, val_every=0, save_every_steps=2)
    toy.training.checkpoints.keep = 2
    toy.at = {3: goes_on.set}
    assert toy.training.fit()
    # without waiting here
    last = torch.load(tmp_path / "last.pt", weights_only=True)
    assert last["progress"]["step"] == 4
    for step in (2, 4):
        weight, progress = toy.kept(f"step-00000000{step}.pt")
        assert weight == progress["step"] == step


@pytest.mark.parametrize(
    ("second", "steps", "best", "best_of", "files"),
    [
        ((0.375, 0.25), STEPS, 0.5, "average", [b"1", None]),
        ((0.75, 0.25), 2 * STEPS, 0.75, "network", [b"1", b"2"]),
    ],
)
def test_best_is_of_the_network_or_of_its_average(
    second: tuple[float, float],
    steps: int,
    best: float,
    best_of: str,
    files: list[bytes | None],
    tmp_path: Path,
) -> None:
    """Each validation has two figures, the average's last: it leads the first epoch. Files are of best.pt."""
    toy = Toy(tmp_path, 2, 0.25, 0.5, *second)
    for number, later in enumerate(toy.later):
        later.files = {"answers": str(number).encode()}
    toy.training.step.ema = MagicMock(**{"state_dict.return_value": {}})
    toy.training.validation.target = Target("ap=0.5", Figure(name="ap"))
    assert toy.training.fit()
    assert toy.report.reached.call_args_list[0].args == ("ap=0.5", 0)
    content = torch.load(tmp_path / "best.pt", weights_only=True)
    assert (content["progress"]["step"], content["progress"]["best"]) == (steps, best)
    assert content["best_of"] == content["progress"]["best_of"] == best_of
    told = [call.kwargs["files"] for call in toy.report.validated.call_args_list]
    assert [each.get("answers") for each in told] == files


@pytest.mark.parametrize("larger_is_better", [True, False])
def test_the_best_validations_are_kept(
    larger_is_better: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # of equals, the largest or the smallest, the earlier one is better
    figures = (0.5, 0.125, 0.75, 0.125, 0.75)
    toy = Toy(tmp_path, len(figures), *figures)
    toy.training.validation.best = Figure(name="ap", larger_is_better=larger_is_better)
    toy.training.checkpoints.keep_best = 2
    foreign = {"ap-best-step-7.pt", "ap-0.99000-step-000000099-mine.pt"}
    for name in foreign:
        (tmp_path / name).touch()
    assert toy.training.fit()
    toy.training.checkpoints.finish()
    sign = -1 if larger_is_better else 1
    best = sorted(enumerate(figures, 1), key=lambda one: (sign * one[1], one[0]))[:2]
    names = {f"ap-{figure:.5f}-step-{STEPS * epoch:09}.pt" for epoch, figure in best}
    assert {path.name for path in tmp_path.glob("ap-*")} == names | foreign
    for epoch, figure in best:
        name = f"ap-{figure:.5f}-step-{STEPS * epoch:09}.pt"
        assert toy.kept(name)[0] == STEPS * epoch, "the weights that were validated"
    # best in epoch 3 of 5, or in epoch 2
    best_epoch = 3 if larger_is_better else 2
    weight, progress = toy.kept("best.pt")
    assert (weight, progress["best_epoch"]) == (STEPS * best_epoch, best_epoch - 1)
    assert toy.training.progress.stale == len(figures) - best_epoch
    calls = toy.report.validated.call_args_list
    assert [call.kwargs["epoch"] for call in calls] == [0, 1, 2, 3, 4]
    assert "cannot keep" not in capfd.readouterr().err


def test_a_validation_before_an_epoch_is_of_the_one_before(tmp_path: Path) -> None:
    toy = Toy(tmp_path, 1, 0.25)
    toy.training.progress.epoch = 3
    assert toy.training.validate()
    assert toy.report.validated.call_args.kwargs["epoch"] == 2


def test_a_full_disk_takes_last_pt_before_the_best_validations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = checkpoint.write
    names = []

    def full(path: Path, content: dict[str, Any]) -> None:
        names.append(path.name)
        if path.name == ".ranked.pt":
            raise UserError("no space left; free some")
        if path.name == "best.pt":
            time.sleep(0.1)  # the run ranks the validation meanwhile
        write(path, content)

    monkeypatch.setattr(checkpoint, "write", full)
    toy = Toy(tmp_path, 3, 0.25, 0.5, 0.75)
    toy.training.checkpoints.keep_best = 2
    assert toy.training.fit()
    toy.training.checkpoints.finish()
    assert toy.kept("last.pt")[0] == 3 * STEPS
    assert not [*tmp_path.glob("ap-*")] and toy.training.checkpoints._ranked is None
    before = [names[at - 1] for at, name in enumerate(names) if name == ".ranked.pt"]
    assert before == ["last.pt"] * 3


def test_a_signal_meanwhile_loses_neither_steps_nor_figures(tmp_path: Path) -> None:
    toy = Toy(tmp_path, 2, 0.25)
    toy.at = {STEPS + 1: lambda: setattr(toy.training.stop, "signal", 15)}
    assert not toy.training.fit()
    assert [told[1:] for told in toy.told] == [(STEPS, 0.25)]
    assert toy.later[0].waited == 1
    weight, progress = toy.kept("last.pt")
    assert weight == progress["step"] > STEPS
    assert (progress["epoch"], progress["best"]) == (1, 0.25)
    assert toy.kept("best.pt")[0] == STEPS


def test_an_error_meanwhile_ends_the_scoring(tmp_path: Path) -> None:
    toy = Toy(tmp_path, 2, 0.25)
    toy.at = {STEPS + 2: MagicMock(side_effect=RuntimeError("out of memory"))}
    with pytest.raises(RuntimeError, match="out of memory"):
        toy.training.fit()
    assert toy.later[0].dropped.is_set() and not toy.told
    weight, progress = toy.kept("last.pt")
    # it resumes into the validation
    assert (weight, progress["epoch"], progress["consumed"]) == (STEPS, 0, SAMPLES)


def test_a_loss_that_is_not_finite_keeps_what_was_validated_before(
    tmp_path: Path,
) -> None:
    toy = Toy(tmp_path, 2, 0.25)
    nan = torch.tensor([np.nan, 0, 0, 0])
    toy.at[STEPS + 2] = lambda: setattr(toy, "outcome", nan)
    with pytest.raises(NotFinite):
        toy.training.fit()
    assert [figure for _, _, figure in toy.told] == [0.25]
    assert toy.kept("best.pt")[0] == toy.kept("last.pt")[0] == STEPS


def spoil(toy: Toy, what: str) -> None:
    """Make one number of what a checkpoint holds infinite, or none, as a step may behind a finite loss."""
    weight = toy.module.weight
    if what == "weight":
        weight.data.fill_(np.nan)
    elif what == "running_var":
        toy.module.register_buffer(what, torch.tensor([1.0, np.inf]))
    elif what == "module.weight (--ema)":
        averages = {"module.weight": torch.tensor([-np.inf]), "module.mask": weight}
        toy.training.step.ema = MagicMock(state_dict=lambda: averages)
    else:
        state = {"exp_avg_sq": torch.tensor([np.inf], dtype=torch.float16)}
        optimizer: Any = toy.training.step.optimizer
        optimizer.state = {weight: {"step": 6, **state}}


@pytest.mark.parametrize(
    ("what", "snapshots"),
    [
        ("weight", True),
        ("running_var", False),
        ("module.weight (--ema)", False),
        ("exp_avg_sq of weight", False),
    ],
)
def test_what_is_not_finite_behind_a_finite_loss_is_never_saved(
    what: str, snapshots: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = unkillable.Memory()
    write = checkpoint.write

    def write_slowly(path: Path, content: dict[str, Any]) -> None:
        time.sleep(0.2)  # last.pt is under way while the next steps are taken
        write(path, content)

    monkeypatch.setattr(checkpoint, "write", write_slowly)
    if snapshots:
        monkeypatch.setattr(unkillable, "memory", memory)
    # beside a validation that is not settled there are no snapshots
    run = {"unkillable": 2, "val_every": 0} if snapshots else {}
    toy = Toy(tmp_path, 3, 0.5, 0.75, **run)
    toy.at[STEPS + 2] = lambda: spoil(toy, what)
    with pytest.raises(NotFinite) as caught:
        toy.training.fit()
    found = STEPS + 2 if snapshots else 2 * STEPS
    said = f"{what} is not finite after step {found}; nothing was saved of it, last.pt has step {STEPS}."
    assert str(caught.value).startswith(said)
    for name in ["last.pt", *([] if snapshots else ["best.pt"])]:
        assert toy.kept(name)[0] == STEPS
    if snapshots:
        assert memory.path is not None
        snapshot = torch.load(memory.path, weights_only=True)
        assert float(snapshot["model"]["weight"]) == STEPS


@pytest.mark.parametrize("run", ["fit", "validate"])
def test_a_validation_that_ends_the_run_ends_its_scoring(
    run: str, tmp_path: Path
) -> None:
    toy = Toy(tmp_path, 1, 0.25)
    toy.failing = range(12)
    with pytest.raises(UserError, match="samples of val cannot be decoded"):
        getattr(toy.training, run)()
    assert toy.later[0].dropped.is_set() and not toy.told


@pytest.mark.parametrize("begun", [False, True])
def test_a_worker_that_dies_leaves_a_whole_step(tmp_path: Path, begun: bool) -> None:
    """The steps before are saved, but for a step of --accumulate that has moved running statistics."""

    def fail() -> None:
        if not begun:
            toy.training._batches.clear()
        raise UserError("a worker was killed")

    toy = Toy(tmp_path, 1)
    toy.at = {3: fail}
    with pytest.raises(UserError, match="a worker was killed"):
        toy.training.fit()
    told = [call.args[0] for call in toy.report.train.call_args_list]
    assert [point["step"] for points in told for point in points] == [1, 2]
    assert (tmp_path / "last.pt").exists() is not begun
    if not begun:
        content = torch.load(tmp_path / "last.pt", weights_only=True)
        assert content["progress"]["step"] == 2


def test_an_evaluation_takes_no_optimiser(tmp_path: Path) -> None:
    """A checkpoint is evaluated whatever trained it."""
    toy = Toy(tmp_path, 1)
    weights = toy.module.state_dict() | {"weight": torch.full((1, 1), 3.0)}
    content: dict[str, Any] = {"model": weights}
    content |= {"progress": asdict(Progress(step=7))}
    content |= {"optimizer": {"param_groups": []}, "config": {"optimizer": "adamw"}}
    resume = Resume(content=content, evaluate=True)
    resume.into(toy.module, toy.training.step, optimizer="sgd")
    assert (toy.module.weight.item(), resume.progress.step) == (3.0, 7)


def test_a_network_whose_output_is_no_number_is_not_the_best(tmp_path: Path) -> None:
    toy = Toy(tmp_path, 2, 0.25, 0.5)
    toy.later[1].more = {"outputs_not_finite": 3, "samples": SAMPLES}
    assert toy.training.fit()
    assert toy.kept("best.pt")[0] == STEPS and toy.training.progress.best == 0.25
    said = toy.report.warn.call_args.args[0]
    assert "no number for 3 of 8 samples" in said and "does not become best.pt" in said


@pytest.mark.parametrize("larger_is_better", [True, False])
def test_a_validation_without_a_figure_is_not_the_best(
    larger_is_better: bool, tmp_path: Path
) -> None:
    """Nor is it a reason to stop. The first one that has a figure is the best, whatever it is."""
    toy = Toy(tmp_path, 3, math.nan, math.nan, 0.0)
    toy.training.validation.best = Figure(name="ap", larger_is_better=larger_is_better)
    toy.training.checkpoints.keep_best = 1
    toy.at = {3 * STEPS: lambda: kept.append((tmp_path / "best.pt").exists())}
    kept: list[bool] = []
    assert toy.training.fit()
    assert kept == [False] and toy.kept("best.pt")[0] == 3 * STEPS
    said = [call.args[0] for call in toy.report.warn.call_args_list]
    assert sum(line.startswith("val: there is no ap") for line in said) == 1
    assert (toy.training.progress.best, toy.training.progress.stale) == (0.0, 0)


def test_a_window_has_the_bytes_of_its_samples(tmp_path: Path) -> None:
    """A window counts samples that are no padding, and the next window has none of them."""
    toy = Toy(tmp_path, 2, 0.5, 0.5)
    toy.training.bytes_of = lambda ids: 2**20 * int((ids + 1).sum())
    meter: Any = toy.training.meter
    meter.pause.side_effect = lambda: RateWindow(SAMPLES, SAMPLES, 2.0, 0)
    whole = toy.batches

    def batches(epoch: int, consumed: int) -> Iterator[Any]:
        for batch in whole(epoch, consumed):
            batch.ids[batch.ids == 7 - epoch] = -1
            yield batch

    toy.batches = batches  # type: ignore[method-assign]
    assert toy.training.fit()
    told = [call.kwargs["mib_per_s"] for call in toy.report.window.call_args_list]
    assert told == [(36 - 8) / 2, (36 - 7) / 2]


def test_a_validation_and_the_wait_for_its_figures_are_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = Toy(tmp_path, 1, 0.5)
    under_way: list[str] = []
    settled: list[str] = []

    @contextmanager
    def pause_for(what: str) -> Iterator[None]:
        under_way.append(what)
        yield
        under_way.remove(what)

    validates = toy.validated

    def validated(epoch: int, first: int) -> Iterator[Any]:
        settled.extend(under_way)
        return validates(epoch, first)

    toy.validated = validated  # type: ignore[method-assign]
    monkeypatch.setattr(toy.training.meter, "pause_for", pause_for)
    toy.report.validated.side_effect = lambda *_, **__: settled.extend(under_way)
    assert toy.training.fit()
    assert settled == ["validation"] * 2


@pytest.mark.parametrize(
    ("of_network", "of_average", "drawn"),
    [
        # the grey of the better one: also where it is no better than what best.pt has
        ((0.5, 0.4), (0.75, 0.7), [200, 200]),
        ((0.75, 0.7), (0.5, 0.4), [40, 40]),
        ((0.5, 0.7), (0.75, 0.6), [200, 40]),
    ],
)
def test_val_batch_is_of_the_weights_that_best_pt_is_chosen_by(
    of_network: Any, of_average: Any, drawn: list[int], tmp_path: Path
) -> None:
    both = [each for pair in zip(of_network, of_average, strict=True) for each in pair]
    toy = Toy(tmp_path, 2, *both)
    toy.training.step.ema = MagicMock(**{"state_dict.return_value": {}})
    for place, slow in enumerate(toy.later):
        slow.images["val/predictions"] = np.full(
            (1, 8, 8, 3), (40, 200)[place % 2], np.uint8
        )
    told = Told(tmp_path, task=MagicMock(figures=[Figure(name="ap")]))
    found = []

    def validated(*result: Any, **more: Any) -> None:
        told.reporter.validated(*result, **more)
        found.append(int(np.asarray(Image.open(tmp_path / "val_batch.jpg")).mean()))

    toy.report.validated.side_effect = validated
    assert toy.training.fit()
    told.reporter.close()
    assert found == drawn


@pytest.mark.parametrize(
    ("first_epochs", "settings", "measured", "anew"),
    [
        ((0,), {}, [(0, 1)], 0),
        ((0, 1, 2), {}, [(2, 3)], 2),
        ((0, 9), {}, [(3, 3)], 0),  # the run ends before: what it ends with
        ((0, 2), {"steps": 2}, [(0, 0)], 0),
    ],
)
def test_ceilings_are_of_the_last_size(
    first_epochs: Any, settings: Any, measured: Any, anew: int, tmp_path: Path
) -> None:
    """The step's with a batch of that size, the loader's in an epoch of that size, whose samples nobody has
    read where there is one; the rate is of no other size.
    """
    toy = Toy(tmp_path, 4, *[0.0] * 4, ceilings=True)
    training: Any = toy.training
    training.plan.first_epochs = first_epochs
    training.optimisation = training.optimisation.model_copy(update=settings)
    training.fit()
    calls = training.measure_ceilings.call_args_list
    found = [(int(call.args[0].images[0]), call.kwargs["epoch"]) for call in calls]
    assert found == measured and training.meter.begin_anew.call_count == anew


def test_ceilings_are_left_out_where_they_take_longer_than_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These steps take no time; where a ceiling takes none either, it is measured."""
    for number, seconds in enumerate((5.0, -1.0)):
        monkeypatch.setattr(loop, "CEILINGS_S", seconds)
        monkeypatch.setattr(loop, "CEILINGS_STEPS", 0)
        toy = Toy(tmp_path / f"{number}", 2, ceilings="auto", val_every=0)
        toy.training.fit()
        measure: Any = toy.training.measure_ceilings
        report: Any = toy.report
        said = [call.args[0] for call in report.info.call_args_list]
        assert measure.called == (seconds < 0)
        assert any("--ceilings true does" in line for line in said) == (seconds > 0)
    # what is only measured has them, however short
    monkeypatch.setattr(loop, "CEILINGS_S", 5.0)
    timed = Toy(tmp_path / "timed", 2, ceilings="auto", val_every=0).training
    timed.optimisation = timed.optimisation.model_copy(update={"seconds": 1.0})
    timed.meter.has_measured.return_value = False  # type: ignore[attr-defined]
    timed.fit()
    assert timed.measure_ceilings.called  # type: ignore[attr-defined]


CLOCKS = ("resume", "goes_on", "pause")


def test_the_next_epoch_is_begun_where_no_validation_comes_between(
    tmp_path: Path,
) -> None:
    """The clocks go on meanwhile: what is read then is in the rate with the time that it took."""
    toy = Toy(tmp_path, 4, 0.1, 0.2, val_every=2)
    trains, validates, saves = toy.batches, toy.validated, toy.training.save
    order = []

    def batches(epoch: int, first: int) -> Iterator[Any]:
        order.append(f"epoch {epoch} from {first}")
        return trains(epoch, first)

    def validated(epoch: int, first: int) -> Iterator[Any]:
        order.append("validation")
        return validates(epoch, first)

    def save(*, last: bool = False) -> None:
        order.append(f"save of epoch {toy.training.progress.epoch}")
        saves()

    toy.batches = batches  # type: ignore[assignment, method-assign]
    toy.validated = validated  # type: ignore[method-assign]
    toy.training.save = save  # type: ignore[method-assign]
    for later in toy.later:
        later.arrived.set()
    assert toy.training.fit()
    begun = [line for line in order if not line.startswith("save")]
    first, second = ["epoch 0 from 0", "epoch 1 from 0"], ["epoch 2 from 0"]
    second.append("epoch 3 from 0")
    assert begun == [*first, "validation", *second, "validation"]
    assert order.index("epoch 1 from 0") < order.index("save of epoch 1")
    meter: Any = toy.training.meter
    assert [call.args for call in meter.goes_on.call_args_list] == [(1,), (3,)]
    clocks = [name for name, *_ in meter.mock_calls if name in CLOCKS]
    assert clocks[:3] == ["resume", "goes_on", "pause"]


def test_the_ceilings_are_measured_before_the_next_epoch_is_begun(
    tmp_path: Path,
) -> None:
    """Its workers would read beside them."""
    toy = Toy(tmp_path, 3, ceilings=True, val_every=0)
    toy.training.fit()
    meter: Any = toy.training.meter
    assert [call.args for call in meter.goes_on.call_args_list] == [(2,)]


def test_what_an_epoch_leaves_out_is_counted(tmp_path: Path) -> None:
    toy = Toy(tmp_path, 3, val_every=0)
    plan: Any = toy.training.plan
    plan.samples = SAMPLES + 1  # and no step has the last one
    toy.training.fit()
    assert toy.training.progress.dropped == 3


def test_a_loader_that_cannot_begin_the_next_epoch_loses_no_checkpoint(
    tmp_path: Path,
) -> None:
    toy = Toy(tmp_path, 2, val_every=0)
    trains = toy.batches

    def batches(epoch: int, first: int) -> Iterator[Any]:
        if epoch:
            raise UserError("the data have gone")
        return trains(epoch, first)

    toy.batches = batches  # type: ignore[assignment, method-assign]
    with pytest.raises(UserError, match="have gone"):
        toy.training.fit()
    assert toy.kept("last.pt")[1]["epoch"] == 1


@pytest.mark.parametrize("tta", ["none", "flip"])
def test_a_validation_averages_what_is_said_of_two_views(tta: str) -> None:
    world = ProcessWorld(torch.device("cpu"))
    columns = nn.Linear(4, 2)
    module = nn.Sequential(nn.Flatten(), columns)
    images = torch.randn(3, 1, 1, 4)
    metric, task = MagicMock(), MagicMock(inputs=lambda batch: (batch.images,))
    task.metric.return_value = metric
    batch = MagicMock(images=images, ids=np.arange(3), failed=[])
    evaluate(
        module,
        [batch],
        task=task,
        precision="fp32",
        world=world,
        vote=Vote(world),
        stop=lambda: False,
        advance=lambda _: None,
        tta=tta,
    )
    (logits, _), _ = metric.update.call_args
    flat = images.flatten(1).double()
    views = [flat, flat.flip(1)] if tta == "flip" else [flat]
    weight, bias = columns.weight.double(), columns.bias.double()
    wanted = torch.stack([view @ weight.T + bias for view in views]).mean(0)
    torch.testing.assert_close(logits.double(), wanted, rtol=0, atol=1e-6)
    assert module.training
