"""`saturate why` on a program that knows nothing of us (anybodys.py): figures by hand, starts, loops, ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from saturate.why import hooks, launch
from tests.end_to_end.runs import Process, Runner, free_port, importable, zygote_of

PROGRAM = Path(__file__).with_name("anybodys.py")
WHY = "-m", "saturate", "why"


@pytest.fixture(scope="session")
def zygote(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[subprocess.Popen[str]]:
    """The zygote forks programs under `saturate why`."""
    # a second thread of such small networks waits for a core
    variables = environment | {"PYTHONPATH": f"{launch.START}", "OMP_NUM_THREADS": "1"}
    asked = {"seconds": 1, "samples": None, "then": "stop", "launcher": 0}
    variables |= {hooks.ASKED: json.dumps(asked)}
    variables |= {hooks.FOLDER: str(tmp_path_factory.mktemp("zygote"))}
    with zygote_of(variables) as process:
        yield process


class Why:
    """Runs programs under `saturate why`, in the folder of a Runner."""

    def __init__(self, train: Runner) -> None:
        self.train = train
        self.json = train.cwd / "found.json"

    def __call__(
        self,
        *words: str,
        flags: tuple[str, ...] = ("--seconds", "0.4"),
        before: tuple[object, ...] = (),
        command: tuple[object, ...] = WHY,
        lines: str = "",
        forks: bool = True,
        **environment: str,
    ) -> Process:
        """Run PROGRAM, or a program of these lines, with these variables more. By default processes are forked."""
        file = self.train.cwd / "program.py" if lines else PROGRAM
        if lines:
            file.write_text(lines)
        train = self.train if forks else replace(self.train, zygote=None)
        all_words = (*command, *flags, "--json", self.json, "--", *before, file, *words)
        process = train.python(*all_words, env=importable(train.env | environment))
        process.wait()
        return process

    def found(self, *words: str, **how: Any) -> dict[str, Any]:
        """Return what --json holds."""
        ended = self(*words, **how)
        assert ended.returncode == 0, ended.err
        assert "Traceback" not in ended.err, ended.err
        found: dict[str, Any] = json.loads(self.json.read_text())
        return found


@pytest.fixture
def why(train: Runner) -> Why:
    return Why(train)


def is_about(by_hand: float, rate: float) -> bool:
    """Whether a rate can be the one by hand. Sleeps last longer on a busy machine, and never shorter."""
    return 0.55 * by_hand < rate < 1.02 * by_hand


def test_the_figures_are_those_by_hand(why: Why) -> None:
    """4 samples a batch: 20 ms a step are 200 samples/s, 4 reads of 10 ms by a worker 100, by two of them 200."""
    found = why.found("read_ms=10", "step_ms=20", "batch=4", TURNS="3")
    assert is_about(200, found["ceiling"]["compute"]["rate"])
    assert is_about(100, found["ceiling"]["loader"]["rate"])
    assert is_about(100, found["rate"]["steady"])
    assert found["bound"] == "loader"
    assert found["binds"]["stage"] == "read"
    assert found["batch_size"] == 4
    assert found["stages"]["read"]["ms"] == pytest.approx(10, rel=0.2)
    predicted = {one["what"]: one["rate"] for one in found["what_if"]}
    # what the step can, so that more of them give nothing
    assert is_about(200, predicted["num_workers=2"])
    assert "num_workers=4" not in predicted
    found = why.found("read_ms=2", "step_ms=25", "workers=2", "batch=4")
    # on a busy machine the step waits for a core
    assert found["bound"] in ("compute", "contention")
    assert is_about(4 / 0.025, found["rate"]["steady"])
    assert found["settings"]["num_workers"] == 2


def test_without_workers_loader_and_step_take_turns(why: Why) -> None:
    """20 ms and 10 ms a batch one behind another are 133 samples/s; beside each other they are 200.

    Only torch and NumPy are needed for it, and a sitecustomize of the environment's own runs as it did.
    """
    others = ["PIL", "yaml", "pydantic", "rich", "psutil", "torchvision", "nvidia.dali"]
    folder = why.train.cwd / "own"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        f"import sys\nfor name in {others}: sys.modules[name] = None\nsys.has_begun = True\n"
    )
    (folder / "says.py").write_text(
        "import sys, runpy\nassert sys.has_begun\nsys.argv[:] = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    words = "read_ms=5", "step_ms=10", "workers=0", "batch=4"
    how = {"before": (folder / "says.py",), "PYTHONPATH": f"{folder}"}
    found = why.found(*words, forks=False, **how)
    assert is_about(4 / 0.03, found["rate"]["steady"])
    assert len(found["ranks"][0]["windows"]["own"]) == 3
    predicted = {one["what"]: one["rate"] for one in found["what_if"]}
    assert is_about(200, predicted["num_workers=1"])


CAUSES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "dataset": (("spin_ms=5", "step_ms=5"), "loader", "dataset"),
    "step": (("step_ms=100",), "step", "forward"),
}
"""Cause -> words, side, stage."""


@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_is_named(cause: str, why: Why) -> None:
    words, side, stage = CAUSES[cause]
    found = why.found(*words)
    assert (found["binds"]["side"], found["binds"]["stage"]) == (side, stage)


OF_PAUSES = """
import sys
import time
import torch
from torch.utils.data import DataLoader

data = [(torch.ones(4), 1)] * 24
loader, validation = DataLoader(data, 4), DataLoader(data, 4, sampler=range(16))
network = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(network.parameters(), 0.1)
for epoch in range(5000):
    for number, (inputs, labels) in enumerate(loader):
        torch.nn.functional.cross_entropy(network(inputs), labels).backward()
        optimizer.step()
        if number == 1 and sys.argv[1] == "validation":
            for batch in validation:
                time.sleep(0.02)
    if sys.argv[1] == "epochs":
        time.sleep(0.08)
"""
"""A program that pauses for 80 ms in each epoch of six steps, or behind it."""


@pytest.mark.parametrize("pause", ["validation", "epochs"])
def test_a_pause_is_no_part_of_a_step(pause: str, why: Why) -> None:
    """And has its name where it takes most of the time."""
    found = why.found(pause, lines=OF_PAUSES, flags=("--seconds", "0.1"))
    binds = found["binds"]
    assert (binds["side"], binds["stage"]) == ("pause", pause)
    assert set(found["split_ms"]) == {"loop", "forward", "backward", "update"}
    # 13 ms or more with a pause among six steps; the others are slow where programs wait for cores
    assert found["split_ms"]["loop"] < 8, found["split_ms"]


OF_ALIKE = """
import sys
import time
import torch
from torch.utils.data import DataLoader, IterableDataset

class Numbers(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return (torch.full((4,), float(number)) for number in range(self.count))

def validate():
    for batch in validation:
        with torch.no_grad():
            network(batch)
        time.sleep(0.002)

epoch = int(sys.argv[1])
training, validation = DataLoader(Numbers(8 * epoch), 8), DataLoader(Numbers(320), 8)
network = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(network.parameters(), 1e-3)
while True:
    for number, batch in enumerate(training):
        network(batch).sum().backward()
        optimizer.step()
        time.sleep(0.01)
        if epoch > 100 and number % 25 == 24:
            validate()
    validate()
"""
"""A program that validates on a stream of the same kind as it trains on, within its epochs or behind each."""


@pytest.mark.parametrize("epoch", [30, 100_000])
def test_a_validation_like_the_training_is_no_part_of_it(epoch: int, why: Why) -> None:
    """8 samples in 10 ms are 800 a second; of the 2 ms of a batch of the validation it were 4,000."""
    found = why.found(str(epoch), lines=OF_ALIKE, flags=("--seconds", "0.2"))
    assert is_about(800, found["rate"]["steady"])
    assert is_about(800, found["ceiling"]["compute"]["rate"])
    assert not found["counts_batches"]


SHORT = "samples=160", "begin_ms=300"
"""Epochs of 20 batches, which begin with 0.3 s in which nothing is trained, unless workers live on."""


def test_workers_that_start_anew_each_epoch(why: Why) -> None:
    ended = why(*SHORT, "step_ms=3")
    assert "between epochs" in ended.out
    found = json.loads(why.json.read_text())
    assert found["idle_epochs"] > 0.5
    assert found["binds"]["stage"] == "epochs"
    assert any("persistent_workers=True" in one["what"] for one in found["what_if"])


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_workers_however_they_start_tell_their_stages(start: str, why: Why) -> None:
    words = ("read_ms=5", f"start={start}", "persistent=1", "batch=4")
    found = why.found(*SHORT, *words)
    assert found["stages"]["read"]["ms"] == pytest.approx(5, rel=0.2)
    # far below what it is where they start anew, also on a busy machine
    assert found["idle_epochs"] < 0.35


TORCHRUN = (
    Path(sys.executable).with_name("torchrun"),
    "--standalone",
    "--nproc-per-node=2",
)
MEASURED_TORCHRUN = "-m", "torch.distributed.run", *TORCHRUN[1:], "-m", "saturate.why"
STARTS: dict[str, dict[str, Any]] = {
    "torchrun in it": {"before": TORCHRUN},
    "it in torchrun": {"command": MEASURED_TORCHRUN},
    "by sys.argv again": {},
    "spawned": {},
}
WORDS = {"by sys.argv again": ["ranks=again"], "spawned": ["ranks=spawn"]}


@pytest.mark.parametrize("start", STARTS)
def test_two_ranks_however_they_start(start: str, why: Why) -> None:
    """Rank 1 reads 2 ms longer a sample, and both wait for it: 4 samples of each rank in 20 ms are 400 a second."""
    words = ["read_ms=3", "slow_rank_ms=2", "batch=4", *WORDS.get(start, [])]
    how = STARTS[start] | {"MASTER_PORT": f"{free_port()}"}
    found = why.found(*words, forks=False, **how)
    assert found["world_size"] == 2
    assert is_about(400, found["rate"]["steady"])
    assert is_about(400, found["ceiling"]["loader"]["rate"])
    assert found["slowest_rank"]["rank"] == 1


LOOPS = ("held", "ahead", "accumulate", "scaler", "two optimizers", "watch")


# steps before the replay: 4 by which the loader is known, 16 of a warm-up, 8 + 4 + 16 of a window, two that are kept
OWN_STEPS = 4 + 16 + 8 + 4 + 16 + 2


@pytest.mark.parametrize("loop", LOOPS)
def test_loops(loop: str, why: Why) -> None:
    """Each is measured by batches of 8 that take 24 ms to read, and nothing is saved once batches came again."""
    saved = why.train.cwd / "saved.pt"
    words = (f"loop={loop}", "read_ms=3", "step_ms=3", f"save={saved}")
    found = why.found(*words, flags=("--seconds", "0.1"))
    assert is_about(8 / 0.024, found["rate"]["steady"])
    assert found["pauses"]["validation"] == 0
    assert not found["counts_batches"]
    if loop == "held":
        assert torch.load(saved) == OWN_STEPS
    assert found["undone"] > 0


def test_a_loop_without_an_optimizer_is_counted_by_batches(why: Why) -> None:
    ended = why("loop=by hand", flags=("--seconds", "0.05"))
    assert ended.returncode == 0
    assert "no step of an optimiser was seen" in ended.out


OF_GENERATORS = """
import torch
from saturate.why import watch

network = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(network.parameters(), 0.1)
for epoch in range(10):
    for batch in watch(torch.ones(8, 4) for _ in range(30)):
        network(batch).sum().backward()
        optimizer.step()
"""


def test_a_loader_that_is_another_object_each_epoch_is_told(why: Why) -> None:
    ended = why(lines=OF_GENERATORS)
    assert ended.returncode == 2
    assert "its last 270 steps had batches of another loader" in ended.err


def test_a_program_that_cannot_be_measured(why: Why) -> None:
    ended = why("steps=30")
    assert ended.returncode == 2 and "came to its end" in ended.out
    assert ended.err.splitlines()[1:] == [
        "saturate why: not measured: it took 30 batches and made 30 steps, too few: more data or epochs"
    ]
    ended = why(lines="print('nothing')\n")
    assert ended.returncode == 2 and ended.out == "nothing\n"
    assert "no loader was seen" in ended.err
    ended = why("fail=7")
    assert ended.returncode == 7
    assert ended.err.splitlines()[1:] == ["my own words"]
    ended = why(before=("no-such-program",))
    assert ended.returncode == 2 and len(ended.err.splitlines()) == 1


def test_it_goes_on_as_if_nothing_had_been(why: Why) -> None:
    """The program does, from the first step behind the last window on, what it did from the first replay on.

    Batches are all alike, so that weights, learning rates and random numbers repeat; momentum must be back, too.
    """
    log = why.train.cwd / "log"
    words = (f"log={log}", "steps=400", "read_ms=1", "step_ms=1", "alike=1")
    flags = ("--seconds", "0.05", "--then", "go-on")
    ended = why(*words, flags=flags)
    assert ended.returncode == 0 and "came to its end" in ended.out
    steps = log.read_text().splitlines()
    assert len(steps) == 400
    first = OWN_STEPS
    assert steps.count(steps[first - 1]) == 1 and steps.count(steps[first]) == 2
    again = steps.index(steps[first], first + 1)
    count = min(again - first, 400 - again)
    assert count > 50
    assert steps[again : again + count] == steps[first : first + count]


OF_EPOCHS = """
import sys
import torch
from torch.utils.data import DataLoader

workers, persistent, leaves = map(int, sys.argv[1:])
data = [(torch.ones(4), 1)] * 320
loader = DataLoader(data, 8, num_workers=workers, persistent_workers=bool(persistent))
network = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(network.parameters(), 0.1)
for epoch in range(2000):
    taken = 0
    for inputs, labels in loader:
        torch.nn.functional.cross_entropy(network(inputs), labels).backward()
        optimizer.step()
        taken += 1
        if taken == leaves:
            break
    print("batches", taken, flush=True)
"""
"""A program of 40 batches an epoch, which it leaves after so many."""


@pytest.mark.parametrize(
    ("workers", "persistent", "leaves"), [(0, 0, 30), (1, 1, 30), (1, 0, 0)]
)
def test_an_epoch_is_as_long_as_the_programs_own(
    workers: int, persistent: int, leaves: int, why: Why
) -> None:
    words = map(str, (workers, persistent, leaves))
    ended = why(*words, lines=OF_EPOCHS, flags=("--seconds", "0.2"))
    assert ended.returncode == 0, ended.err
    lines = [line for line in ended.out.splitlines() if line.startswith("batches ")]
    assert len(lines) > 3 and {*lines} == {f"batches {leaves or 40}"}
    # docs/why.md: a step takes a fraction of a millisecond, and would have a thousand of them
    (rank,) = json.loads(why.json.read_text())["ranks"]
    assert all(window["batches"] <= 256 for window in rank["windows"]["replay"])


OF_A_STREAM = """
import sys
import time
import torch
from torch.utils.data import DataLoader, IterableDataset

workers, persistent = map(int, sys.argv[1:])
class Stream(IterableDataset):
    def __iter__(self):
        for number in range(20):
            time.sleep(0.001)
            yield torch.ones(4), 1
loader = DataLoader(Stream(), 8, num_workers=workers, persistent_workers=bool(persistent))
network = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(network.parameters(), 0.1)
for epoch in range(2000):
    for inputs, labels in loader:
        torch.nn.functional.cross_entropy(network(inputs), labels).backward()
        optimizer.step()
"""
"""A program whose loader has no length; each worker's batches are of 8, 8 and 4 samples."""


@pytest.mark.parametrize(("workers", "persistent"), [(0, 0), (1, 0), (1, 1)])
def test_a_stream_ends_in_a_smaller_batch(
    workers: int, persistent: int, why: Why
) -> None:
    words = map(str, (workers, persistent))
    flags = ("--seconds", "0.2")
    found = why.found(*words, lines=OF_A_STREAM, flags=flags)
    windows = found["ranks"][0]["windows"]
    assert all(one["samples"] == 8 * one["batches"] for one in windows["replay"])
    for window in windows["own"]:
        # 16 batches or more have between a quarter and 7 of 18 small ones
        assert window["samples"] / window["batches"] == pytest.approx(20 / 3, rel=0.06)


OF_STREAMS = """
import os
import time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

rank = "0" if os.fork() else "1"
os.environ |= {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
dist.init_process_group("gloo")
torch.set_num_threads(1)
class Stream(IterableDataset):
    def __iter__(self):
        print("a stream begins", flush=True)
        for number in range(8 * 60):
            time.sleep(0.0002 * (1 + dist.get_rank()))
            yield torch.ones(4), 1
loader = DataLoader(Stream(), 8)
network = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(network.parameters(), 0.1)
for epoch in range(2000):
    for inputs, labels in loader:
        torch.nn.functional.cross_entropy(network(inputs), labels).backward()
        optimizer.step()
    print("an epoch ends", flush=True)
    dist.all_reduce(torch.ones(100))
if rank == "0":
    os.wait()
"""
"""Two ranks, of which one reads half as fast; the end of an epoch on one of them alone meets a step of the other."""


def of_two_ranks(why: Why, lines: str, *flags: str) -> Process:
    """Run a program like OF_STREAMS."""
    ended = why(lines=lines, flags=flags, MASTER_PORT=f"{free_port()}")
    assert ended.returncode == 0, ended.err
    return ended


def test_streams_of_two_ranks_end_together(why: Why) -> None:
    ended = of_two_ranks(why, OF_STREAMS, "--seconds", "0.3")
    assert ended.out.count("an epoch ends") % 2 == 0
    ranks = json.loads(why.json.read_text())["ranks"]
    windows = [
        [window["batches"] for window in rank["windows"]["own"]] for rank in ranks
    ]
    assert len(windows) == 2 and windows[0] == windows[1]
    begun = ended.out.count("a stream begins")
    assert begun > 2 + ended.out.count("an epoch ends"), ended.out


ROWS = """class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8 * 400
    def __getitem__(self, number):
        time.sleep(0.0002 * (1 + dist.get_rank()))
        return torch.ones(4), 1
loader = DataLoader(Rows(), 8)
"""


def test_ranks_that_go_on_end_their_epochs_together(why: Why) -> None:
    # two epochs, of a loader with a length
    lines = OF_STREAMS.replace("loader = DataLoader(Stream(), 8)\n", ROWS)
    lines = lines.replace("range(2000)", "range(2)")
    ended = of_two_ranks(why, lines, "--seconds", "0.1", "--then", "go-on")
    assert "bound by" in ended.out
    assert ended.out.count("an epoch ends") == 4


OF_TWO_LOADERS = """
import sys

import torch
from torch.utils.data import DataLoader

import saturate.why

images = [torch.full((4,), float(number)) for number in range(320)]
class Both:
    def __iter__(self):
        return zip(DataLoader(images, 8), DataLoader(images, 8))
loader = saturate.why.watch(Both()) if sys.argv[1] == "watched" else Both()
network = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(network.parameters(), 1e-3)
for epoch in range(400 if sys.argv[1] == "watched" else 3):
    taken = 0
    for one, other in loader:
        network(one + other).sum().backward()
        optimizer.step()
        taken += 1
    print("batches", taken, flush=True)
"""
"""A program whose steps take a batch of each of two loaders, which are watched as one or not."""


@pytest.mark.parametrize("way", ["watched", "apart"])
def test_steps_that_take_batches_of_two_loaders(way: str, why: Why) -> None:
    """One of them would be held, and the other read in a step that should have no loader."""
    ended = why(way, lines=OF_TWO_LOADERS, flags=("--seconds", "0.1"))
    first, *others = ended.err.splitlines()
    if way == "watched":
        assert ended.returncode == 0, ended.err
        # no time of a batch counts as that of a validation
        assert "\nvalidation" not in ended.out
        assert first == "saturate why: measuring, in 6 windows of about 0.1 s"
    else:
        assert ended.returncode == 2 and ended.out == "batches 40\n" * 3
        said = "saturate why: not measured: each step takes batches of several loaders"
        # at once, and where the program has ended
        assert first.startswith(said) and "goes on" in first
        assert others[0].startswith(said)


OF_TWO_TRAININGS = """
import sys
import time
import torch
from torch.utils.data import DataLoader

for batch, steps in ((8, int(sys.argv[1])), (4, 3000)):
    loader = DataLoader([(torch.ones(4), 1)] * 80, batch)
    network = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    made = 0
    while made < steps:
        for inputs, labels in loader:
            torch.nn.functional.cross_entropy(network(inputs), labels).backward()
            optimizer.step()
            made += 1
            time.sleep(0.003)
            if made == 45 == steps:
                break
print("came to its end")
"""
"""A program that trains a network so many steps, and then another one by another loader."""


@pytest.mark.parametrize("steps", [40, 45, 100])
def test_a_training_that_follows_a_short_one(steps: int, why: Why) -> None:
    """The first one has ended before its step is given batches again, there within an epoch too, or after that."""
    ended = why(str(steps), lines=OF_TWO_TRAININGS, flags=("--seconds", "0.1"))
    assert "came to its end" not in ended.out
    if steps < 100:
        assert ended.returncode == 0, ended.err
        assert json.loads(why.json.read_text())["batch_size"] == 4
    else:
        assert ended.returncode == 2
        assert "measured: its training went on with another loader" in ended.err


OF_A_CYCLE = """
import itertools
import sys
import time
import torch
from torch.utils.data import DataLoader

loader = DataLoader([torch.ones(4)] * int(sys.argv[1]), 8)
network = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(network.parameters(), 1e-3)
for batch in itertools.islice(itertools.cycle(loader), 1000):
    network(batch).sum().backward()
    optimizer.step()
    time.sleep(0.001)
print("came to its end")
"""
"""A program whose loader is asked for one epoch alone."""


@pytest.mark.parametrize("samples", [320, 2400])
def test_batches_that_no_loader_gives_any_more(samples: int, why: Why) -> None:
    """The epoch ends before its step is given batches again, or after that."""
    ended = why(str(samples), lines=OF_A_CYCLE, flags=("--seconds", "0.1"))
    assert ended.returncode == 2
    assert "512 steps without another batch of the loader" in ended.err
    assert ("came to its end" in ended.out) is (samples == 320)


OF_A_TRIAL = """
import contextlib
import torch
from torch.utils.data import DataLoader
from saturate.why import trials

step_fails = False

@contextlib.contextmanager
def made(optimizers):
    global step_fails
    step_fails = True
    yield

trials.that_apply = lambda facts: {"a layout": trials.Trial(None, made)}
loader = DataLoader([torch.full((4,), float(number)) for number in range(800)], 8)
network = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(network.parameters(), 1e-3)
for epoch in range(400):
    for batch in loader:
        if step_fails:
            raise RuntimeError("view size is not compatible")
        network(batch).sum().backward()
        optimizer.step()
"""
"""A program whose step fails with what is tried, as those with a view() do in channels_last."""


def test_a_step_that_refuses_what_is_tried_has_its_table(why: Why) -> None:
    ended = why(lines=OF_A_TRIAL, flags=("--seconds", "0.1"))
    assert ended.returncode == 0, ended.err
    assert "compute ceiling" in ended.out and "a layout" not in ended.out
    tried, _, failed = ended.err.partition("trying a layout; ")
    assert "Traceback" not in tried and "view size is not compatible" in failed


STATISTICS = """
import torch
from torch.utils.data import DataLoader

loader = DataLoader([torch.full((4,), float(number)) for number in range(800)], 8)
print("mean", sum(float(batch.mean()) for batch in loader) / len(loader))
"""


def test_a_pass_without_gradients_is_no_training(why: Why) -> None:
    """The mean of 0 to 799, over 100 batches: more than as many as are counted where no optimiser steps."""
    ended = why(lines=STATISTICS, flags=("--seconds", "0.2"))
    assert "mean 399.5" in ended.out and ended.returncode == 2
