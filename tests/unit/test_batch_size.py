"""--batch-size auto: the search lives on running out of memory, and the recipe is kept."""

from __future__ import annotations

import io
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from saturate.contracts import Split, UserError
from saturate.dataset.synthetic import NoBytes, SyntheticImages
from saturate.engine.batch_size import CLOSE, largest
from saturate.engine.distributed import ProcessWorld
from saturate.report.console import Console
from saturate.run import batch_size
from saturate.run.build import resolve
from saturate.settings.config import parse
from saturate.tasks.initial_state import Start
from tests.unit.steps import composed

MIB = 2**20
GIB = 2**30
SAMPLES = 100_000


class Device:
    """A GPU whose memory runs out behind the batch `holds`: `base` bytes, and `each` a sample."""

    def __init__(self, room: int, base: float, each: float, curve: float = 0.0) -> None:
        self.room, self.tried = room, list[int]()
        self.need = lambda rows: int(base + each * rows * (1 + curve * rows / 1000))
        self.holds = max(
            (rows for rows in range(1, SAMPLES) if self.need(rows) <= room), default=0
        )

    def taken(self, rows: int) -> int | None:
        self.tried.append(rows)
        return self.need(rows) if rows <= self.holds else None


@pytest.mark.parametrize("seed", range(8))
def test_the_batch_is_close_to_the_largest_and_found_in_few_trials(seed: int) -> None:
    draw = random.Random(seed)
    device = Device(
        room=draw.choice([8, 24, 80, 141]) * GIB,
        base=draw.uniform(0.2, 6) * GIB,
        each=draw.uniform(2, 400) * MIB,
        curve=draw.choice([0, 0, 0.05]),
    )
    found = largest(device.taken, room=device.room, most=SAMPLES)
    assert CLOSE * device.holds <= found <= device.holds
    assert found in device.tried
    # 64, what surely fits, what is predicted, and one more where batches of many samples are multiples of 8
    assert len(device.tried) <= (4 if device.holds >= 64 else 8)
    assert len(device.tried) == len({*device.tried})


@pytest.mark.parametrize(
    ("lost", "trials"), [(0.02, 3), (0.03, 4), (0.05, 6), (0.1, 8)]
)
def test_a_loader_that_takes_its_memory_in_large_pieces(
    lost: float, trials: int
) -> None:
    # ResNet-50's of an H200: what DALI wants beside large batches does not show in small ones
    device = Device(room=141 * GIB, base=5 * GIB, each=44 * MIB)
    device.holds = int(device.holds * (1 - lost))
    found = largest(device.taken, room=device.room, most=SAMPLES)
    assert CLOSE * device.holds <= found <= device.holds
    # 64, 1,024 and the least that is close to what is predicted; then less, and more again
    assert len(device.tried) <= trials


@pytest.mark.parametrize(("holds", "most"), [(1, 50), (3, 50), (17, 50), (900, 13)])
def test_small_batches_and_small_sets(holds: int, most: int) -> None:
    device = Device(room=holds * MIB, base=0, each=MIB)
    assert device.holds == holds
    assert largest(device.taken, room=device.room, most=most) == min(holds, most)


def test_what_holds_no_sample_is_a_line() -> None:
    device = Device(room=GIB, base=2 * GIB, each=MIB)
    with pytest.raises(UserError, match="--batch-size auto: not even one sample fits"):
        largest(device.taken, room=device.room, most=99)


@pytest.mark.parametrize(
    ("flags", "before", "expected"),
    [
        ("", None, (200, 1)),
        ("--accumulate 3", None, (200, 3)),
        ("--global-batch-size 1024", None, (128, 8)),
        ("--global-batch-size 100", None, (100, 1)),
        ("", 48, (48, 1)),
    ],
)
def test_the_answer_is_a_setting_and_the_recipe_is_kept(
    monkeypatch: pytest.MonkeyPatch,
    flags: str,
    before: int | None,
    expected: tuple[int, int],
) -> None:
    device = Device(room=200 * MIB, base=0, each=MIB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (0, device.room))
    monkeypatch.setattr(batch_size, "taken", lambda *of: device.taken(of[-1]))
    world = ProcessWorld(torch.device("cpu"))
    config = parse(["--batch-size", "auto", "--loader", "synthetic", *flags.split()])
    start = Start.from_config(config, (), {}, path=None, origin="")
    split = Split(columns=SyntheticImages(5000), source=NoBytes(5000))
    splits = {"train": split, "val": split}
    console = Console(stream=io.StringIO())
    never: Any = None
    settings = resolve(start, world)
    made = batch_size.sized(
        settings, splits, world, console, before=before, make_step=never
    )
    size, accumulate = made.batching.size, made.batching.accumulate
    asked = config.optimisation.global_batch_size
    assert accumulate == expected[1]
    assert expected[0] * CLOSE <= size <= expected[0]
    assert asked is None or size * accumulate == asked
    assert isinstance(made.config.loading.batch_size, int)
    assert bool(device.tried) == (before is None)


SMALL = "--arch squeezenet1_1 --image-size 32 --batch-size auto --loader synthetic --precision fp32"
"""Flags of trials that a CPU can make, also one whose default is bf16."""


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that stand in for a GPU's on a CPU: torch has 30, and others have 40."""
    cuda = torch.cuda
    known = {"max_memory_allocated": 30, "memory_reserved": 10}
    for name, figure in known.items():
        monkeypatch.setattr(cuda, name, lambda _, figure=figure: figure)
    monkeypatch.setattr(cuda, "mem_get_info", lambda _: (50, 100))
    monkeypatch.setattr(cuda, "reset_peak_memory_stats", lambda _: None)


@pytest.mark.usefixtures("figures")
@pytest.mark.parametrize(
    ("flags", "rows", "micro_batches"),
    [
        ("--accumulate 5", 8, 2),
        ("--global-batch-size 32", 30, 1),
    ],
)
def test_a_trial_has_two_micro_batches_where_the_run_has_several(
    flags: str, rows: int, micro_batches: int
) -> None:
    """More would take longer and no more memory, and those of a step may be more than the samples that there are."""
    world = ProcessWorld(torch.device("cpu"))
    config = parse([*SMALL.split(), *flags.split()])
    settings = resolve(Start.from_config(config, (), {}, path=None, origin=""), world)
    split = Split(columns=SyntheticImages(40), source=NoBytes(40))
    tried = []

    def make_step(assembly: Any, world: ProcessWorld) -> Any:
        tried.append(assembly.optimisation.accumulate)
        return composed(assembly.module, assembly.task, assembly.optimisation)

    splits = {"train": split, "val": split}
    assert batch_size.taken(settings, splits, world, make_step, rows) == 30 + 40
    assert tried == [micro_batches]


@pytest.mark.usefixtures("figures")
def test_a_trial_trains_validates_and_says_what_that_took() -> None:
    world = ProcessWorld(torch.device("cpu"))
    start = Start.from_config(parse(SMALL.split()), (), {}, path=None, origin="")
    split = Split(columns=SyntheticImages(40), source=NoBytes(40))
    settings = resolve(start, world)
    steps: list[Any] = []

    def make_step(assembly: Any, world: ProcessWorld) -> Any:
        step = composed(assembly.module, assembly.task, assembly.optimisation)
        steps.append((step, assembly.plan.batches.rows))
        return step

    def taken(make: Any) -> int | None:
        splits = {"train": split, "val": split}
        return batch_size.taken(settings, splits, world, make, 6)

    assert taken(make_step) == 30 + 40
    ((step, rows),) = steps
    moved = [state["momentum_buffer"] for state in step.optimizer.state.values()]
    assert rows == 6 and moved and all(one.any() for one in moved[:4])

    def short(assembly: Any, world: ProcessWorld) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    def wrong(assembly: Any, world: ProcessWorld) -> Any:
        raise RuntimeError("another")

    def short_of_dali(assembly: Any, world: ProcessWorld) -> Any:
        raise UserError("DALI ran out of the GPU's memory: a smaller --batch-size")

    assert taken(short) is None and taken(short_of_dali) is None
    with pytest.raises(RuntimeError, match="another"):
        taken(wrong)


def test_batches_of_many_shapes_refuse_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (50, 100))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: None)
    world = ProcessWorld(torch.device("cpu"))
    start = Start.from_config(
        parse(["--loader", "synthetic"]), (), {}, path=None, origin=""
    )
    settings = resolve(start, world)
    never: Any = None
    splits = {"train": Split(columns=SyntheticImages(40), source=NoBytes(40))}
    one, many = (
        SimpleNamespace(batches=SimpleNamespace(varies=each)) for each in (False, True)
    )
    # a detector's training, and the validation of super-resolution
    for plan, val_plan in ((many, one), (one, many)):
        made = SimpleNamespace(plan=plan, val_plan=val_plan)
        monkeypatch.setattr(batch_size.build, "build", lambda *_, made=made: made)
        with pytest.raises(UserError, match="is for batches of one shape"):
            batch_size.taken(settings, splits, world, never, 2)


def test_a_cpu_and_an_evaluation_refuse_it(tmp_path: Path) -> None:
    words = ["--batch-size", "auto", "--loader", "synthetic"]
    start = Start.from_config(parse(words), (), {}, path=None, origin="")
    settings = resolve(start, ProcessWorld(torch.device("cpu")))
    with pytest.raises(UserError, match="no GPU is here; name a number"):
        batch_size.require_gpu(settings)
    spare = [*words, "--unkillable", "20", "--warm-spare", "true"]
    start = Start.from_config(parse(spare), (), {}, path=None, origin="")
    settings = resolve(start, ProcessWorld(torch.device("cpu")))
    settings = replace(settings, device=torch.device("cuda"))
    with pytest.raises(UserError, match="leaves no memory of the GPU for --warm-spare"):
        batch_size.require_gpu(settings)
    priced = ["--gpu-price", "2.5", "--loader", "synthetic"]
    start = Start.from_config(parse(priced), (), {}, path=None, origin="")
    settings = resolve(start, ProcessWorld(torch.device("cpu")))
    with pytest.raises(UserError, match="--gpu-price is of GPUs, and no GPU is here"):
        batch_size.require_gpu(settings)
    with pytest.raises(UserError, match="--batch-size auto is for training"):
        parse(["--batch-size", "auto", "--predict", str(tmp_path)])
