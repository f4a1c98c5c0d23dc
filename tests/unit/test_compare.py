"""saturate compare: a loss is told where it is, is not where it is not, and the stage that grew is named."""

from __future__ import annotations

import json
import subprocess
import sys
from math import log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from saturate.run import compare

WORKERS = 8
BATCH = 32
LOADER_MS = {"read": 0.8, "decode": 6.0, "transforms": 1.2}
"""Stage -> what it takes of a sample, all workers added up."""
STEP_MS = {"forward": 0.25, "backward": 0.45, "update": 0.05}
SD = 0.015


def windows(
    rng: np.random.Generator, count: int, rate: float = 1000.0, sd: float = SD
) -> list[float]:
    """Rates of independent windows, with the standard deviation of their logarithms."""
    return [float(each) for each in rate * np.exp(sd * rng.standard_normal(count))]


def stages(rng: np.random.Generator, grown: str, share: float) -> dict[str, float]:
    """Milliseconds a sample of each stage, measured within 1 %; that of `grown` makes the rate lower by a share."""
    found = {
        name: ms * (1 + 0.01 * rng.uniform(-1, 1))
        for name, ms in (LOADER_MS | STEP_MS).items()
    }
    if grown:
        # 1,000 samples a second, of one step or of all workers
        found[grown] += share / (1 - share) * (WORKERS if grown in LOADER_MS else 1)
    return found


def of_a_run(path: Path, rates: list[float], ms: dict[str, float], **more: Any) -> Path:
    """Write what summary.json has of a run."""
    steady = {"spread": {"each": rates}, "short": False}
    own = {
        "workers": WORKERS,
        "batch_size": BATCH,
        "accumulate": 1,
        "world_size": 1,
        "loader": "dali-gpu",
        "hardware": {"gpu": "H200", "shm_gib": rates[0]},
        "steps": len(rates),
        "settings": {"lr": 0.1, "loader": "auto", "steps": 0, "output": str(path)},
        "versions": {"torch": "2.14.1"},
        "rate": steady,
        "ceiling": {"compute": {"spread": {"each": [1200.0]}}, "loader": None},
        "stages": {
            name: {"ms": value} for name, value in ms.items() if name in LOADER_MS
        }
        # what waits for the rest takes longer, too
        | {"idle": {"ms": 9e3 / rates[0]}, "full": {"ms": 5e2 / rates[0]}},
        "split_ms": {
            name: BATCH * value for name, value in ms.items() if name in STEP_MS
        }
        | {"data_wait": 1e4 / rates[0]},
    }
    path.mkdir()
    (path / "summary.json").write_text(json.dumps(own | more))
    return path


def of_why(path: Path, rates: list[float], ms: dict[str, float]) -> Path:
    """Write what `saturate why --json` has of a program: the same keys, where it knows them."""
    folder = of_a_run(path.with_name(f"{path.name}-run"), rates, ms)
    found = json.loads((folder / "summary.json").read_text())
    for name in ("accumulate", "steps"):
        del found[name]
    found["settings"] = {"num_workers": WORKERS, "autocast": True}
    found["hardware"] = {"gpu": None, "cores": 2}
    del found["rate"]["short"]
    path.write_text(json.dumps(found))
    return path


def code_of(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """Return the exit code of the program, and what it prints."""
    try:
        code = compare.main([str(word) for word in words])
    except SystemExit as end:
        code = int(str(end.code))
    said = capsys.readouterr()
    return code, said.out + said.err


MEASURED = [
    [5541, 5975, 5992, 5998, 6007, 5995, 6002, 5985],
    [5381, 5942, 5987, 5918, 5976, 5985, 6004, 5978],
    [5772, 5954, 5993, 5969, 5977, 5982, 5962, 5966],
    [5855, 6000, 5966, 5968, 6001, 5998, 6007, 6007],
    [5523, 5975, 6025, 5994, 6007, 5990, 5981, 6014],
]
"""ResNet-50 on an H200, windows of 0.4 s: five runs of one recipe of `python -m benchmarks pairs`."""
SLOWED = [5658, 5709, 5706, 5709, 5714, 5726, 5716, 5715]
"""A run of the same recipe, whose forward pass waits for 2.1 ms of a step of 43."""


def test_runs_that_were_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    ms = stages(rng, "", 0)
    folders = [
        of_a_run(tmp_path / f"{number}", [*map(float, rates)], ms)
        for number, rates in enumerate(MEASURED)
    ]
    slowed = of_a_run(
        tmp_path / "slowed", [*map(float, SLOWED)], stages(rng, "forward", 0.05)
    )
    for a in folders:
        assert [code_of(capsys, a, b)[0] for b in folders] == [0] * len(folders)
        code, said = code_of(capsys, a, slowed)
        assert code == compare.LOSS and "stage that changed: forward" in said


@pytest.mark.parametrize(("count", "quantile"), [(3, 4.604), (6, 3.169), (8, 2.977)])
def test_the_smallest_loss_is_that_of_students_table(
    count: int, quantile: float
) -> None:
    # one-sided 0.5 % of 4, 10 and 14 degrees of freedom, as any table of t has them
    above = [1] * (count // 2)
    # as many windows above their median as below it, so that it is their mean, too
    logs = np.array([-1 for _ in above] + [0] * (count % 2) + above) * 0.01
    rates = [float(rate) for rate in np.exp(logs)]
    loss, smallest = compare.losses(rates, rates)
    wanted = quantile * sqrt(2 * logs.var(ddof=1) / count)
    assert loss == 0 and wanted < -log(1 - smallest) < 1.02 * wanted


def test_of_pairs_alike_fewer_than_one_in_a_hundred_show_a_loss() -> None:
    for counts in ((3, 3), (8, 8), (4, 30)):
        rng = np.random.default_rng(counts)
        pairs = [
            compare.losses(*(windows(rng, count) for count in counts))
            for _ in range(500)
        ]
        false = sum(loss > smallest for loss, smallest in pairs)
        assert false < 5, counts


@pytest.mark.parametrize("write", [of_a_run, of_why])
def test_forty_pairs_alike_show_no_loss(
    write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    codes = []
    for pair in range(40):
        sides = [
            write(tmp_path / f"{pair}{name}", windows(rng, 8), stages(rng, "", 0.0))
            for name in "ab"
        ]
        codes.append(code_of(capsys, *sides)[0])
    # 0.9 % is the standard error of two medians' difference here, and 1 % is taken for a loss that may be one
    assert compare.LOSS not in codes and codes.count(0) > 30


@pytest.mark.parametrize("write", [of_a_run, of_why])
@pytest.mark.parametrize("stage", ["transforms", "decode", "forward"])
def test_twenty_slow_downs_are_told_and_named(
    write: Any, stage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    for pair in range(20):
        # many windows, or few that lie within 1.5 %
        count, width = ((20, SD), (4, 0.004))[pair % 2]
        sides = [
            write(
                tmp_path / f"{pair}{name}",
                windows(rng, count, rate, width),
                stages(rng, name, 0.05),
            )
            for name, rate in (("", 1000.0), (stage, 950.0))
        ]
        code, said = code_of(capsys, *sides, "--most-loss", "3%")
        assert code == 1 and f"stage that changed: {stage}\n" in said, said
        # the other way round it is a gain, of the same stage
        code, said = code_of(capsys, *reversed(sides))
        assert code == 0 and f"stage that changed: {stage}\n" in said, said


@pytest.mark.parametrize(
    ("slower", "width", "flags", "code", "last"),
    [
        (0.02, 0.001, "", 1, "a loss of 2.0%, beyond both spreads"),
        (0.02, 0.001, "--most-loss 3%", 0, "a loss of 2.0%, which --most-loss lets"),
        (0.05, 0.001, "--most-loss 3", 1, "a loss of 5.0%, beyond both spreads"),
        (0.0, 0.03, "", 0, "no loss of "),
        # 900 to 1,200 in 4: t of 6 degrees is 3.707, times the error 0.0876 of logarithms: 27.7 %
        (0.0, 0.2, "", 3, "cannot tell: a loss of 27"),
        (0.04, 0.05, "", 3, "cannot tell: a loss of 4.0% lies within the spreads"),
        (0.0, 0.03, "--most-loss 3%", 3, "cannot tell: a loss of 3.0% may not show"),
        (-0.4, 0.03, "--most-loss 3%", 0, "no loss of "),
        (0.4, 0.03, "--most-loss 3%", 1, "a loss of 40.0%, beyond both spreads"),
    ],
)
def test_exit_codes(
    slower: float,
    width: float,
    flags: str,
    code: int,
    last: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rates = [1000 * (1 + width * step) for step in (-1, -0.5, 0, 0.5, 1)]
    a = of_why(tmp_path / "a", rates, STEP_MS)
    b = of_why(tmp_path / "b", [(1 - slower) * rate for rate in rates], STEP_MS)
    found, said = code_of(capsys, a, b, *flags.split())
    assert (found, said.splitlines()[-1][: len(last)]) == (code, last)


def test_what_differs_is_a_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = [990.0, 1000.0, 1010.0]
    a = of_a_run(tmp_path / "a", rates, STEP_MS)
    hardware = {"gpu": "H200", "cpu": "a\x1b[2J"}
    more = {"versions": {"torch": "2.15.0"}, "hardware": hardware}
    b = of_a_run(tmp_path / "b", rates, STEP_MS, **more, loader="torchvision", steps=9)
    code, said = code_of(capsys, a / "summary.json", b)
    table = [line.split() for line in said.partition("-----")[0].splitlines()]
    rate = ["1,000", "(990", "to", "1,010", "in", "3)"]
    assert code == 0 and ["rate", *rate, *rate, "+0.0%"] in table
    assert ["torch", "2.14.1", "2.15.0"] in table and "\x1b" not in said
    assert ["loader", "dali-gpu", "torchvision"] in table
    assert not {"lr", "output", "steps", "shm_gib"} & {line[0] for line in table}


def test_a_run_of_few_windows_tells_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = of_a_run(tmp_path / "a", [990.0, 1000.0, 1010.0], STEP_MS)
    b = of_a_run(tmp_path / "b", [990.0, 1000.0], STEP_MS)
    code, said = code_of(capsys, a, b)
    assert code == 3 and said.endswith("cannot tell: train for 3 windows or more\n")


SLOW = [900.0, 899.0, 900.0, 901.0, 900.0]
"""Windows of a rate, so that a sample takes 0.11 ms longer than at 1,000 a second."""


@pytest.mark.parametrize(
    ("before", "now"),
    [
        # a graph has its step as one stage
        ({"graph": 0.75}, {"forward": 0.25, "backward": 0.45, "update": 0.15}),
        ({}, {"read": 0.8, "decode": 6.9}),  # a loader without stages
        (STEP_MS, {name: 0.99 * ms for name, ms in STEP_MS.items()}),
        (STEP_MS, STEP_MS | {"backward": 0.46}),  # 0.01 of 0.11 ms
    ],
)
def test_a_stage_that_does_not_explain_the_loss_is_not_named(
    before: dict[str, float],
    now: dict[str, float],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def split(ms: dict[str, float]) -> dict[str, float]:
        return {name: BATCH * value for name, value in ms.items()}

    fast = [rate / 0.9 for rate in SLOW]
    a = of_a_run(tmp_path / "a", fast, before, split_ms=split(before))
    b = of_a_run(tmp_path / "b", SLOW, now, split_ms=split(now))
    for pair, code in (((a, b), 1), ((b, a), 0)):
        found, said = code_of(capsys, *pair)
        assert found == code and "stage that changed: not known\n" in said, said
    only = next(iter({**before, **now}))
    row = next(line for line in said.splitlines() if line.startswith(only))
    assert (only in before and only in now) or " - " in f"{row} ", row


@pytest.mark.parametrize(
    ("bound", "stage"),
    [
        ("compute", "forward"),
        ("loader", "decode"),
        ("storage", "decode"),
        ("contention", "forward"),
    ],
)
def test_a_stage_that_nothing_waits_for_is_not_named(
    bound: str, stage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sample takes 0.11 ms longer: forward 0.13 ms, and decode 0.125 ms of each of eight workers."""
    ms = LOADER_MS | STEP_MS
    more = {"forward": ms["forward"] + 0.13, "decode": ms["decode"] + 1.0}
    a = of_a_run(tmp_path / "a", [rate / 0.9 for rate in SLOW], ms)
    b = of_a_run(tmp_path / "b", SLOW, ms | more, bound=bound)
    said = code_of(capsys, a, b)[1]
    assert f"stage that changed: {stage}\n" in said
    assert f"stage that changed: {stage}\n" in code_of(capsys, b, a)[1]


def test_of_two_tasks_nothing_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = [990.0, 1000.0, 1010.0]
    folders = [
        of_a_run(tmp_path / task, rates, STEP_MS, settings={"task": task})
        for task in ("detection", "video")
    ]
    code, said = code_of(capsys, *folders)
    assert code == 3 and "cannot tell: A is of detection and B of video" in said


@pytest.mark.parametrize("rate", [900.0, 1000.0, 1100.0])
@pytest.mark.parametrize(("gpu", "named"), [("H\x1b100", "H\\x1b100"), (None, "a CPU")])
def test_the_code_is_not_blamed_for_another_gpu(
    gpu: str | None,
    named: str,
    rate: float,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    a = of_a_run(tmp_path / "a", [999.0, 1000.0, 1001.0, 1000.0], STEP_MS)
    rates = [rate - 1, rate, rate + 1, rate]
    b = of_a_run(tmp_path / "b", rates, STEP_MS, hardware={"gpu": gpu})
    code, said = code_of(capsys, a, b)
    assert code == 3 and "stage that changed" not in said
    last = f"cannot tell: A ran on H200 and B on {named}; run both on one kind\n"
    assert said.endswith(last), said
    # the table has both all the same
    assert "rate" in said and "gpu" in said


@pytest.mark.parametrize(
    "more",
    [
        {"rate": {"spread": {"each": [float("nan")] * 6}}},
        {"rate": {"spread": {"each": [1e3, 0.0, 0.0, 0.0, 0.0]}}},
        {"ceiling": None},
        {"batch_size": 0},
    ],
)
def test_a_file_with_wrong_values_is_refused(
    more: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = of_a_run(tmp_path / "a", SLOW, STEP_MS)
    b = of_a_run(tmp_path / "b", SLOW, STEP_MS, **more)
    code, said = code_of(capsys, a, b)
    assert code == 2 and said.count("\n") == 1 and "b/summary.json: name the" in said


@pytest.mark.parametrize(
    ("content", "flags", "said"),
    [
        (None, "", "compare: b: No such file or directory"),
        ("{", "", "compare: b: name the folder or the summary.json of a run"),
        ('{"versions": {}}', "", "compare: b: name the folder or the summary.json"),
        ("{}", "--most-loss 0%", "--most-loss: '0%' is no share; write one such as 3%"),
        # no pair could pass it
        ("{}", "--most-loss 0.03", "'0.03' is 0.03%, and any two runs differ by 1%"),
    ],
)
def test_a_mistake_is_a_line(
    content: str | None,
    flags: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    of_why(Path("a"), [990.0, 1000.0, 1010.0], STEP_MS)
    if content is not None:
        Path("b").write_text(content)
    code, found = code_of(capsys, "a", "b", *flags.split())
    assert code == 2 and said in found and found.count("\n") == 1


def test_it_needs_neither_torch_nor_pydantic(tmp_path: Path) -> None:
    a = of_why(tmp_path / "a", [990.0, 1000.0, 1010.0], STEP_MS)
    program = (
        "import sys; sys.modules.update(torch=None, pydantic=None);"
        "from saturate.__main__ import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", program, "compare", str(a), str(a)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.endswith("\nno loss of 3.7% or more\n")
