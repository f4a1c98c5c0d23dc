"""The flags of bench and report; a wrong one is said in one line."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import loader, train
from benchmarks._suite import Common, require_gpus
from contracts import UserError
from scripts import bench, report
from tests.end_to_end.runs import draw


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            "train --batch-sizes 0 x",
            "--batch-sizes got '0': input should be greater than 0; bench train --help",
        ),
        (
            "train --loaders nothing",
            "--loaders got 'nothing', which is unknown; known: torchvision, dali-cpu",
        ),
        (
            "train --precisions fp17",
            "--precisions got 'fp17': input should be 'auto', 'fp16', 'bf16' or 'fp32'",
        ),
        ("train --seconds", "--seconds: expected one argument"),
        (
            "train --nothing 3",
            "unknown flag '--nothing'; bench train --help lists every setting",
        ),
        ("nothing", "SUITE got 'nothing', which is unknown; known: train, max-batch"),
    ],
)
def test_one_line_says_what_was_got_and_what_is_allowed(
    argv: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(argv.split()) == 2
    told = capsys.readouterr().err
    assert (
        said in told
        and told.startswith("bench: ")
        and told.count("\n") == 1
        and len(told) < 200
    )
    assert "pydantic" not in told and "[" not in told


def test_positionals_behind_a_wrong_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(["--fail-below", "x", "a", "b"]) == 2
    assert capsys.readouterr().err.startswith(
        "report: --fail-below got 'x': input should be a valid number"
    )


@pytest.mark.parametrize("count", [1, 2])
def test_more_ranks_than_gpus(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All suites that have ranks refuse them alike; on a CPU any number runs."""
    (tmp_path / "train").mkdir()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    for points in (
        lambda: train.points(train.Train(data=str(tmp_path), gpus=(1, 4))),
        lambda: loader.points(loader.Loader(data=tmp_path, gpus=(1, 4))),
    ):
        with pytest.raises(
            UserError,
            match=rf"--gpus 4: there (is 1 GPU|are 2 GPUs) here.*at most --gpus {count}",
        ):
            points()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert {
        point["gpus"]
        for point in train.points(train.Train(data=str(tmp_path), gpus=(1, 4)))
    } == {1, 4}
    require_gpus((), 2)  # a flag without a value is another mistake


@pytest.mark.usefixtures("prompt_ran")
def test_a_data_folder_whose_name_is_no_utf_8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a note of two lines: the table stays a table."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    odd = os.fsdecode(b"\xff x")
    data, output = (
        draw(tmp_path / odd, classes=("a", "b"), train=24, val=1),
        tmp_path / f"out {odd}",
    )
    words = ["loader", "--data", str(data), "--output", str(output)]
    words += [
        "--loaders",
        "torchvision",
        "--image-size",
        "32",
        "--batch-size",
        "8",
        "--workers",
        "0",
    ]
    monkeypatch.setattr(sys, "argv", ["bench", *words])
    assert bench.main([*words, "--note", "one\n\n| two"]) == 0
    text = (output / "table.md").read_bytes().decode()
    assert "\n- one | two\n- The same for all" in text
    assert "\\udcff x" in text.partition("```bash")[2].partition("```")[0]
    assert bench.main(words) == 0
    assert report.main([str(output)]) == 0
    other = tmp_path / "other"
    shutil.copytree(output, other)
    (other / "suite.json").write_text(
        (output / "suite.json").read_text().replace("\\udcff", "\\udcfe")
    )
    assert report.main([str(output), str(other)]) == 0
    assert "\\udcff x / " in capsys.readouterr().out


def test_no_suite_gives_a_common_flag_another_meaning() -> None:
    for name in bench.SUITES:
        assert not {*bench.suite_of(name).settings.__annotations__} & {
            *Common.model_fields
        }, name


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--archs", "resnet81"], "--archs got 'resnet81' (did you mean"),
        (
            ["--loaders", "torchvison"],
            "--loaders got 'torchvison' (did you mean torchvision",
        ),
        (["--archs"], "has none"),
        (["--flags=it's"], "No closing quotation"),
        (["--", "--arch", "alexnet"], "--arch behind -- is what the suite sets itself"),
        (["--", "--bach-size", "4"], "unknown flag"),
        (["--data", "/nope"], "--data /nope: no such folder"),
        (["--data", "."], "has no train/ folder"),
        (["--output", "data/out"], "never written to"),
    ],
)
def test_mistakes_before_anything_is_made(
    argv: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data/train").mkdir(parents=True)
    assert bench.main(["train", "--data", "data", "--output", "out", *argv]) == 2
    told = capsys.readouterr().err
    assert said in told and told.startswith("bench: ") and told.count("\n") == 1
    assert not [*tmp_path.rglob("out")]
