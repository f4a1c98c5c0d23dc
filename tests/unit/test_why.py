"""What `saturate why` sees in a program: samples of a batch, and a batch that the loop has changed."""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ChainDataset, DataLoader

from saturate.why import batches, hooks, launch, phases, restore, step, undo, watch

t = torch.zeros
BATCHES: dict[str, tuple[Any, int]] = {
    "a tuple": ((t(8, 3, 4, 4), t(8)), 8),
    "labels first": ([t(9), t(9, 10)], 9),
    "a list of images": ([t(3, 4, 4)] * 5, 5),
    "torchvision's of detection": (([t(3, 4, 5)] * 5, [{"boxes": t(2, 4)}] * 5), 5),
    "Detectron2's": ([{"file": "a", "image": t(3, 4, 4)}] * 6, 6),
    "DALI's": ([{"data": t(7, 3, 5, 5), "label": t(7, 1)}], 7),
    "DALI's, grey": ([{"data": t(7, 5, 5), "mask": t(7, 5, 5)}], 7),
    "tokens": ({"input_ids": t(4, 9), "labels": t(4)}, 4),
    "names beside": ((["a", "b"], t(2, 3)), 2),
    "no tensor": ("x", 0),
    "numbers": ([1, 2, 3], 0),
}


@pytest.mark.parametrize("batch", BATCHES)
def test_samples_of_a_batch(batch: str) -> None:
    content, count = BATCHES[batch]
    assert batches.samples_of(content) == count


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        ((t(8, 3, 4, 4), t(8)), 8),
        # something of all samples comes first, samples of several lengths, a list of crops
        ((torch.tensor([16, 16]), t(8, 3, 4, 4), t(8)), 8),
        (([t(300), t(120)] * 4, t(8)), 8),
        ([t(8, 3, 4, 4), t(8, 3, 2, 2)], 8),
        # an epoch's last one
        ((torch.tensor([16, 16]), t(5, 3, 4, 4), t(5)), 5),
        ([t(5, 9)], 5),
        (([t(3, 4, 5)] * 5, [{"boxes": t(2, 4)}] * 5), 5),
        (([t(5, 3, 4, 4), t(5, 3, 2, 2)], t(5)), 5),
        ([{"file": "a", "image": t(3, 4, 4)}] * 8, 8),
        ((tuple([t(3, 4, 5)] * 5), tuple([{"boxes": t(2, 4)}] * 5)), 5),
        ([(t(3, 4, 5), 1)] * 5, 5),
        # graphs, whose nodes lie behind each other
        ({"x": t(97, 4), "edges": t(300, 2)}, 8),
        (object(), 8),
    ],
)
def test_samples_of_a_batch_whose_loader_has_a_size(batch: Any, count: int) -> None:
    assert batches.samples_of(batch, 8) == count


def run_of(loader: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> phases.Run:
    """Return a run that measures a loader of batches of 64."""
    asked = {"seconds": 1, "samples": None, "then": "stop", "launcher": 0}
    monkeypatch.setenv(hooks.ASKED, json.dumps(asked))
    run = phases.Run(folder)
    run.facts |= {"loader": {"batch_size": 64}, "is_guess": False}
    run._loader = loader
    return run


@pytest.mark.parametrize(("given", "count"), [(0, 64), (8, 64), (9, 20)])
def test_an_epochs_last_batch_alone_may_be_shorter(
    given: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time comes first: 20 steps of 64 sequences, or 20 sequences of 64 features."""
    run = run_of(range(10), tmp_path, monkeypatch)
    assert run._samples_of(t(20, 63), given) == count


@pytest.mark.parametrize(
    ("of_epoch", "counts"),
    [
        ([t(64, 3), t(64, 3), t(20, 3)], [64, 64, 20]),
        # time comes first, or nodes of graphs lie behind each other: nobody sees a size
        ([t(20, 64), t(30, 64), t(9, 64)], [64, 64, 64]),
        ([{"x": t(97, 4)}, {"x": t(30, 4)}], [64, 64]),
    ],
)
def test_any_batch_of_a_loader_without_a_length_may_be_shorter(
    of_epoch: list[Any],
    counts: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = run_of(iter(range(10)), tmp_path, monkeypatch)
    found = [run._samples_of(batch, given) for given, batch in enumerate(of_epoch)]
    assert found == counts


def test_ranks_keep_batches_for_as_many_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second batch of rank 1 is a small one, which is not kept, and rank 0 waits for it in each step."""
    monkeypatch.setattr(undo, "Journal", lambda folder: folder)
    meets, steps = threading.Barrier(2, timeout=30), threading.Barrier(2, timeout=30)
    told = ["", ""]

    def gathered(rank: int, value: str) -> list[str]:
        told[rank] = value
        meets.wait()
        all_told = [*told]
        meets.wait()
        return all_told

    def batches_before_replay(rank: int) -> int:
        run = run_of(iter(range(10)), tmp_path, monkeypatch)
        run.window_s, run._workers = 1e-3, 1
        run._gathered = partial(gathered, rank)  # type: ignore[method-assign]
        sizes = itertools.cycle([64, 20 if rank else 64])
        for taken in itertools.count():
            run.take(iter(()), run._loader, lambda: t(next(sizes), 3))
            if run._journal is not None:
                return taken
            steps.wait()
        raise AssertionError

    with ThreadPoolExecutor(2) as ranks:
        one, other = ranks.map(batches_before_replay, range(2))
    assert one == other


def test_small_batches_are_kept_where_a_large_one_was_the_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undo, "Journal", lambda folder: folder)
    run = run_of(iter(range(10)), tmp_path, monkeypatch)
    run.window_s, run._workers = 1e-3, 1
    sizes = itertools.chain([64], itertools.repeat(20))
    while run._journal is None:
        run.take(iter(()), run._loader, lambda: t(next(sizes), 3))
        assert run._passed_over < 100
    assert [kept.samples for kept in run._saved_batches] == [20, 20]


def test_a_short_batch_that_comes_again_counts_its_own_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last batch of an epoch, 20 of 64, is given as the first one of another."""
    run = run_of(range(10), tmp_path, monkeypatch)
    run._decision = batches.KeptBatch(t(20, 3), run._samples_of(t(20, 3), 9))
    assert len(run._next_batch(lambda: None)) == run._counts["samples"] == 20


def test_a_program_keeps_its_hold_of_an_optimizer() -> None:
    network = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(network.parameters(), 0.5, momentum=0.9)
    (group,) = groups = optimizer.param_groups
    before = restore.State([optimizer])
    group["lr"] = 7.0
    network(t(4, 3)).sum().backward()
    optimizer.step()
    before.put_back()
    assert group["lr"] == 0.5 and not optimizer.state
    # as a schedule by hand does
    group["lr"] = 3.0
    assert optimizer.param_groups is groups and optimizer.param_groups[0]["lr"] == 3.0


class Around(torch.optim.Optimizer):
    """An optimiser that steps by another one, whose groups it shares, as SAM does."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"rho": 0.5})
        self.base = torch.optim.SGD(self.param_groups, 0.5)
        self.param_groups = self.base.param_groups

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        self.base.param_groups = self.param_groups


@pytest.mark.parametrize("first", [0, 1])
def test_optimizers_that_share_their_groups_go_on_sharing_them(first: int) -> None:
    around = Around([torch.nn.Parameter(t(3))])
    both = [around, around.base]
    before = restore.State([both[first], both[1 - first]])
    around.param_groups[0]["lr"] = 7.0
    before.put_back()
    assert around.param_groups[0] is around.base.param_groups[0]
    assert around.base.param_groups[0]["lr"] == 0.5


CHANGES: list[Callable[[Any], object]] = [
    lambda batch: batch["x"].mul_(2),
    lambda batch: batch.update(x=batch["x"] * 2),
    lambda batch: batch.pop("x"),
    lambda batch: batch.pop("names"),
    lambda batch: batch["array"].fill(2),
]


def test_a_batch_comes_again_as_it_was() -> None:
    content: dict[str, Any] = {"x": torch.ones(2, 3), "names": ["a", "b"]}
    kept = batches.KeptBatch(content | {"array": np.ones(2)})
    for change in CHANGES:
        batch = kept.again()
        assert float(batch["x"].sum()) == 6 and batch["names"] == ["a", "b"]
        assert batch["array"].tolist() == [1, 1]
        change(batch)
    assert [*kept.again()] == ["x", "names", "array"]


class Pinned:
    """A batch of a program's own, as PyTorch's page on pinned memory has it."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def pin_memory(self) -> Pinned:
        return self


@dataclass
class Pair:
    x: torch.Tensor
    y: int = 0


@pytest.mark.parametrize("kind", [Pinned, Pair])
@pytest.mark.parametrize("how", ["in place", "moved"])
def test_an_object_comes_again_as_it_was(kind: Any, how: str) -> None:
    kept = batches.KeptBatch([kind(torch.ones(5, 3)), 1])
    for _ in range(3):
        one, _ = kept.again()
        assert one.x.tolist() == [[1.0] * 3] * 5
        if how == "in place":
            one.x.mul_(2)
        else:  # as PyG's Data.to does
            one.x = one.x + 1
    assert batches.samples_of(one) == 5


class ByClosure(torch.optim.Optimizer):
    """Calls the closure three times a step, as LBFGS does, and works for 7 s before and behind each."""

    def __init__(self, weights: torch.Tensor, seconds: list[float]) -> None:
        super().__init__([weights], {})
        self.seconds = seconds

    def step(self, closure: Any) -> None:  # type: ignore[override]
        for _ in range(3):
            self.seconds[0] += 7
            closure()
            self.seconds[0] += 7


@pytest.mark.parametrize("named", [False, True])
def test_the_closure_of_an_optimiser_is_no_update(named: bool) -> None:
    """By a clock that is moved by hand: 2 s pass before a step, and in a closure 20, 10 and 1 s."""
    seconds = [0.0]
    weights = torch.ones(3, requires_grad=True)
    optimizer = ByClosure(weights, seconds)

    def closure() -> torch.Tensor:
        loss = weights.sum()
        seconds[0] += 20
        loss.backward()
        seconds[0] += 1
        return loss

    weights.register_hook(lambda _: seconds.__setitem__(0, seconds[0] + 10))
    kept = batches.KeptBatch(torch.ones(3))
    found: dict[str, Any] = {}

    def steps() -> Iterator[Any]:
        found.update(
            (yield from step.split(itertools.repeat(kept), lambda: seconds[0]))
        )

    for _ in steps():
        seconds[0] += 2
        optimizer.step(closure=closure) if named else optimizer.step(closure)
    ms = {"loop": 5e3, "forward": 60e3, "backward": 30e3, "update": 42e3}
    assert found["split_ms"] == pytest.approx(ms)


def of_an_object() -> Any:
    batch: Any = Pinned(torch.ones(5, 3))
    # thirty samples, each of which holds the batch and all of them
    batch.all = [Pinned(torch.tensor(1.0)) for _ in range(30)]
    for one in batch.all:
        one.batch, one.others = batch, batch.all
    return batch


def of_a_list() -> Any:
    batch: list[Any] = [torch.ones(5, 3)]
    batch.append(batch)
    return batch


def of_a_dictionary() -> Any:
    batch: dict[str, Any] = {"x": torch.ones(5, 3)}
    batch["whole"] = batch
    return batch


@pytest.mark.parametrize("make", [of_an_object, of_a_list, of_a_dictionary])
def test_a_batch_that_holds_itself(make: Any) -> None:
    batch = make()
    assert batches.samples_of(batch) == 5
    assert batches.is_seen(batch, 5) and not batches.is_seen(batch, 6)
    kept = batches.KeptBatch(batch)
    for _ in range(2):
        tensors = batches.tensors_of(kept.again())
        assert len(tensors) == (31 if make is of_an_object else 1)
        assert all(float(each.mean()) == 1 for each in tensors)
        tensors[-1].mul_(2)


def test_a_batch_that_cannot_be_copied_comes_again() -> None:
    import threading

    batch = {"x": torch.ones(2), "lock": threading.Lock()}
    assert batches.KeptBatch(batch).again() is batch


@pytest.mark.parametrize("has_trained", [False, True])
def test_what_cannot_be_measured_goes_on_only_if_it_is_as_it_was(
    has_trained: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that has trained on batches again would lose in the end all that it saves from then on."""
    asked = {"seconds": None, "samples": None, "then": "stop", "launcher": 1}
    monkeypatch.setenv(hooks.ASKED, json.dumps(asked))
    monkeypatch.setattr(sys, "addaudithook", lambda _: None)
    for owner, name in (
        (hooks, "run"),
        (phases, "_was_measured"),
        (sys, "excepthook"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))

    def refuses() -> Iterator[Any]:
        yield from ()
        raise phases.NotMeasured("one rank has no loader")

    run = phases.Run(tmp_path)
    loader = object()
    run._loader, run._phases = loader, refuses()
    if has_trained:
        run._journal = undo.Journal(tmp_path / "files-1")
        with pytest.raises(phases.Measured):
            run.take(iter("ab"), loader, lambda: "a")
    else:
        assert run.take(iter("ab"), loader, lambda: "a") == "a"
    told = (tmp_path / hooks.UNMEASURED).read_text()
    assert told == "one rank has no loader"


def test_arrays_can_be_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two epochs of a list of arrays, each with a mark of its own, by which an epoch that is left early is seen."""
    seen = []

    class Run:
        def take(self, given: Any, loader: Any, pull: Any) -> Any:
            seen.append((loader is content, given._saturate_epoch))
            return pull()

    content = [np.zeros(2), np.ones(2)]
    monkeypatch.setattr(hooks, "run", Run())
    loader = watch(content)
    epochs = [[batch.tolist() for batch in loader] for _ in range(2)]
    assert epochs == [[[0, 0], [1, 1]]] * 2
    # the third of each is asked for, and is not there
    assert [own for own, _ in seen] == [True] * 6
    marks = [mark for _, mark in seen]
    assert len({*marks[:3]}) == len({*marks[3:]}) == 1 and marks[0] is not marks[3]


def test_files_that_are_gone_are_told_of_a_program_that_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "ran", lambda *_: 7)
    for undone in (0, 3):
        monkeypatch.setattr(undo, "back", lambda _, count=undone: undo.Undone(count))
        assert launch.main(["--", "program.py"]) == 7
        said = capsys.readouterr().err
        assert ("not kept: 3 files that it saved" in said) == bool(undone)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--seconds nan", "--seconds nan: a window takes time"),
        ("--samples 0", "--samples 0: a batch has one or more"),
        ("--json .", "--json .: it is a folder"),
        ("--json nowhere/found.json", "--json nowhere/found.json: there is no such"),
    ],
)
def test_mistakes_are_told_before_a_program_begins(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        launch.main([*words.split(), "--", "program.py"])
    assert ended.value.code == 2 and said in capsys.readouterr().err


def test_a_stage_is_idle_where_no_core_works_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = hooks.Busy()
    busy.wall.update(dataset=10, decode=3)
    busy.cpu.update(dataset=4, decode=5)  # clocks of two kinds
    monkeypatch.setattr(hooks, "busy", busy)
    assert hooks._idle() == {"dataset": 6, "decode": 0}


def test_the_wait_for_a_core_is_that_of_linux() -> None:
    file = Path("/proc/thread-self/schedstat")
    if not file.exists():
        pytest.skip("Linux tells no thread's wait for a core here")
    before = int(file.read_text().split()[1])
    assert before <= hooks._delayed() <= int(file.read_text().split()[1])


@pytest.mark.parametrize("module", hooks.HOOKS)
def test_what_is_wrapped_is_there(module: str) -> None:
    """Another version of a library may have it by another name."""
    owner = pytest.importorskip(module)
    for place in hooks.HOOKS[module]:
        assert callable(attrgetter(place)(owner)), place


class Device:
    """Makes each step in 10 ms, behind its host, which may be far ahead."""

    def __init__(self) -> None:
        self.now = 0.0
        self.done_at = 0.0

    def launch(self) -> None:
        self.done_at = max(self.now, self.done_at) + 0.01

    def synchronised(self) -> float:
        self.now = max(self.now, self.done_at)
        return self.now

    def is_behind(self) -> bool:
        before = self.now
        return self.synchronised() > before


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(phases, "step", device)
    monkeypatch.setattr(phases.time, "perf_counter", lambda: device.now)
    return device


def test_what_a_device_still_trains_is_no_part_of_a_validation(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host launches ten steps in no time, and validates for 20 ms once the device has made them."""
    own, other = iter(range(10)), iter(range(10))
    run = run_of(own, tmp_path, monkeypatch)
    run._phases = itertools.repeat(phases.NEXT)
    run._trained_at = 0.0
    run._open()
    for _ in range(5):
        for _ in range(10):
            run.take(own, own, lambda: t(64, 3))
            device.launch()
            run.stepped("an optimiser")
        for _ in range(2):
            run.take(other, other, lambda: t(64, 3))
            device.now = device.synchronised() + 0.01
    run.take(own, own, lambda: t(64, 3))
    counts = run._close("own")
    assert counts["pause"] == pytest.approx(5 * 0.02)
    assert counts["seconds"] - counts["pause"] == pytest.approx(5 * 10 * 0.01)


def test_what_a_device_still_trains_is_no_gap_between_epochs_of_a_replay(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host launches an epoch of five steps in no time, and begins the next one for 30 ms."""
    run = run_of(range(5), tmp_path, monkeypatch)
    run._phases = itertools.repeat(batches.KeptBatch(t(64, 3), 64))
    run._trained_at = 0.0
    run._open()
    for _ in range(4):
        of_epoch = iter(())
        for _ in range(5):
            run.take(of_epoch, run._loader, lambda: None)
            device.launch()
            run.stepped("an optimiser")
        with pytest.raises(StopIteration):
            run.take(of_epoch, run._loader, lambda: None)
        device.now += 0.03
    run.take(iter(()), run._loader, lambda: None)
    counts = run._close("replay")
    assert counts["gap"] == pytest.approx(4 * 0.03)
    assert counts["seconds"] - counts["gap"] == pytest.approx(4 * 5 * 0.01)


def test_a_replay_that_begins_with_an_epochs_end_lets_it_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader has given all five batches of the epoch by itself."""
    run = run_of(range(5), tmp_path, monkeypatch)
    again = itertools.repeat(batches.KeptBatch(t(64, 3), 64))
    run._phases = itertools.chain([phases.NEXT] * 5, again)
    of_epoch = iter(())
    for _ in range(5):
        run.take(of_epoch, run._loader, lambda: t(64, 3))
    with pytest.raises(StopIteration):
        run.take(of_epoch, run._loader, lambda: None)


@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("validates", [False, True])
def test_a_loader_that_is_made_anew_goes_on_with_what_it_was(
    validates: bool,
    accumulated: int,
    device: Device,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Epochs have 6 batches of 8 in 10 ms each, begin in 30 ms, and are validated by a loader that is the same but for
    its data, 20 batches in 2 ms each.
    """

    def loader() -> DataLoader[Any]:
        return DataLoader(ChainDataset([]), 8)

    def batch(took_s: float) -> torch.Tensor:
        device.now += took_s
        return t(8, 3)

    def epoch_of(made: DataLoader[Any]) -> None:
        for number in range(6):
            # its workers begin while the first one is waited for
            run.take(object(), made, partial(batch, 0.0 if number else 0.03))
            device.now += 0.01
            if number % accumulated == accumulated - 1:
                run.stepped("an optimiser")

    def end(made: DataLoader[Any]) -> None:
        with pytest.raises(StopIteration):
            run.take(object(), made, partial(next, iter(())))

    first = loader()
    run = run_of(first, tmp_path, monkeypatch)
    run.samples = 8
    run._signature = phases.signature(first)
    run._phases = itertools.repeat(phases.NEXT)
    run._trained_at = 0.0
    run._open()
    made = first
    for _ in range(5):
        epoch_of(made)
        end(made)
        held_out = loader()
        for _ in range(20 * validates):
            run.take(object(), held_out, lambda: t(8, 3))
            device.now += 0.002
        made = loader()
    epoch_of(made)
    counts = run._close("own")
    assert counts["samples"] == 6 * 6 * 8
    assert counts["pause"] == pytest.approx(5 * 20 * 0.002 * validates)
    assert counts["gap"] == pytest.approx(5 * 0.03)
    # the others were decided on
    assert counts["batches"] == 5 * accumulated
    paused_s = counts["gap"] + counts["pause"]
    assert counts["seconds"] - paused_s == pytest.approx(6 * 6 * 0.01 + 0.03)


@pytest.mark.parametrize("optimisers", [1, 600])
def test_a_batch_may_lead_to_a_step_of_each_parameter(
    optimisers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """600 steps of one optimiser have batches that no loader gave; of 600 each has made one."""
    run = run_of(range(10), tmp_path, monkeypatch)
    run._phases = itertools.repeat(phases.NEXT)
    run.take(iter(()), run._loader, lambda: t(64, 3))
    made = [object() for _ in range(optimisers)]
    for optimizer in itertools.islice(itertools.cycle(made), 600):
        run.stepped(optimizer)
    assert bool(run.refused) is (optimisers == 1)
