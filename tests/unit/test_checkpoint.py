"""Checkpoints: whole at any time, loaded without running code, refused where they do not fit."""

from __future__ import annotations

import os
import random
import signal
import textwrap
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts import UserError
from engine import checkpoint, checkpoint_format
from engine.checkpoint import Resume
from engine.distributed import ProcessWorld
from settings.config import parse
from settings.run import Run
from tests.end_to_end.runs import Runner, until

ROOT = Path(__file__).resolve().parents[2]
FITS: dict[str, Any] = {
    "arch": "resnet18",
    "classes": ["ant", "bee", "cow"],
    "manifest": "a1b2c3",
}
CONTENT: dict[str, Any] = {
    **FITS,
    "model": {"weight": torch.arange(1000.0), "steps": torch.tensor(3)},
    "optimizer": {
        "state": {0: {"momentum_buffer": torch.ones(2)}},
        "param_groups": [{"lr": 0.1, "params": [0]}],
    },
    "scaler": {},
    "progress": {"epoch": 2, "consumed": 640, "best": float("-inf")},
    "config": {
        "optimizer": "sgd",
        "task": "classification",
        "max_pixels": 9999,
        "trust_list": False,
    },
    "used": {"image_size": 224},
}


def read(path: Path, **fits: Any) -> dict[str, Any]:
    resume = Resume(path=path)
    resume.fits(
        **{"task": "classification", "config": CONTENT["config"], **FITS, **fits}
    )
    return resume.content


def refusal(path: Path, **fits: Any) -> str:
    with pytest.raises(UserError) as caught:
        read(path, **fits)
    said = str(caught.value)
    assert "\n" not in said and said.startswith(f"--resume {path}: ")
    return said


@pytest.fixture
def written(tmp_path: Path) -> Path:
    checkpoint.write(tmp_path / "last.pt", CONTENT)
    return tmp_path / "last.pt"


def test_round_trip(written: Path) -> None:
    found = read(written)
    assert torch.equal(found["model"]["weight"], CONTENT["model"]["weight"])
    assert {
        name: found[name] for name in ("progress", "arch", "classes", "manifest")
    } == {name: CONTENT[name] for name in ("progress", "arch", "classes", "manifest")}
    assert [path.name for path in written.parent.iterdir()] == ["last.pt"]


WRITER = """
    import itertools, pathlib, sys, torch
    from engine import checkpoint
    path = pathlib.Path(sys.argv[1])
    for i in itertools.count():
        model = {"a": torch.full((400_000,), float(i)), "b": torch.full((10,), i)}
        checkpoint.write(path, {"i": i, "model": model})
        print(i, flush=True)
"""


def _has_written(process: Any) -> bool:
    return "\n" in process.out


def test_a_kill_at_any_moment_leaves_a_whole_file(
    tmp_path: Path, runner: Runner
) -> None:
    path, moments = tmp_path / "last.pt", random.Random(0)
    for _ in range(3):
        process = runner.python("-c", textwrap.dedent(WRITER), path)
        until(partial(_has_written, process), 60, "a checkpoint")
        time.sleep(moments.uniform(0, 0.1))
        process.send(signal.SIGKILL)
        process.wait()
        content = torch.load(path, weights_only=True)
        assert content["i"] >= int(process.out.split("\n")[-2]), (
            "what was said to be written is"
        )
        assert (
            {float(content["i"])}
            == set(content["model"]["a"].tolist())
            == set(content["model"]["b"].tolist())
        )
        assert len(list(tmp_path.iterdir())) <= 2, (
            "what the kills left does not pile up"
        )
    checkpoint.write(path, CONTENT)
    assert [left.name for left in tmp_path.iterdir()] == ["last.pt"]


FULL = """
    import pathlib, resource, sys, torch
    from contracts import UserError
    from engine import checkpoint
    path = pathlib.Path(sys.argv[1])
    checkpoint.write(path, {"i": 0})
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    for size in (10_000, 40_000, 1_000_000):
        try:
            checkpoint.write(path, {"i": 1, "a": torch.zeros(size)})
        except UserError as mistake:
            print(mistake)
"""


def test_a_disk_that_fills_up_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, runner: Runner
) -> None:
    path = tmp_path / "last.pt"
    said = runner.python("-c", textwrap.dedent(FULL), path).done().out.splitlines()
    assert len(said) == 2
    for line in said:
        assert line.startswith(f"--output {tmp_path}: cannot write last.pt: ")
        assert line.endswith(
            "; the earlier last.pt is untouched: mend it, then --resume auto"
        )
    assert torch.load(path, weights_only=True)["i"] == 1
    assert [left.name for left in tmp_path.iterdir()] == ["last.pt"]


def test_the_file_and_its_folder_are_synced_in_order(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def renamed(new: Path, path: Path) -> None:
        synced.append("rename")
        replace(new, path)

    monkeypatch.setattr(os, "replace", renamed)
    checkpoint.write(tmp_path / "last.pt", CONTENT)
    assert synced[1:] == ["rename", tmp_path.name] and synced[0] != "last.pt"


@pytest.mark.parametrize(
    ("fits", "both"),
    [
        ({"task": "rotation"}, ("task", "classification", "rotation")),
        ({"arch": "resnet50"}, ("architecture", "resnet18", "resnet50")),
        ({"classes": ["ant", "bee"]}, ("number of classes", "3", "2")),
        ({"classes": ["ant", "bee", "dog"]}, ("class", "cow", "dog")),
        (
            {"manifest": "d4e5f6"},
            ("manifest fingerprint", "a1b2c3", "d4e5f6 in this run: files were added"),
        ),
        (
            {"manifest": "d4e5f6", "config": {"max_pixels": 64, "trust_list": False}},
            ("d4e5f6 in this run: --max-pixels 9999 -> 64 or files were added",),
        ),
    ],
)
def test_a_mismatch_prints_both_values(
    fits: dict[str, Any], both: tuple[str, ...], written: Path
) -> None:
    said = refusal(written, **fits)
    assert all(value in said for value in both), said
    assert "in the checkpoint" in said and "in this run" in said


def test_other_parameters_were_trained() -> None:
    def trained(*counts: int) -> torch.optim.Optimizer:
        groups = [
            {"params": [torch.nn.Parameter(torch.ones(2)) for _ in range(count)]}
            for count in counts
        ]
        return torch.optim.SGD(groups, lr=0.5, momentum=0.9)

    scaler = torch.amp.GradScaler("cpu", enabled=False)
    content = {
        "config": {"optimizer": "sgd"},
        "optimizer": trained(3).state_dict(),
        "scaler": {},
    }
    checkpoint.load_optimizer(last := trained(3), scaler, content, "sgd")
    assert [group["lr"] for group in last.param_groups] == [0.5]
    with pytest.raises(
        UserError,
        match=r"3 parameters were trained in the checkpoint, 2 are in this run: .*--weights-backbone",
    ):
        checkpoint.load_optimizer(trained(2), scaler, content, "sgd")
    with pytest.raises(
        UserError, match=r"groups of \[3\] in the checkpoint, \[2, 1\] .*--no-decay"
    ):
        checkpoint.load_optimizer(trained(2, 1), scaler, content, "sgd")
    with pytest.raises(
        UserError, match="--optimizer is sgd in the checkpoint, adamw in this run"
    ):
        checkpoint.load_optimizer(trained(3), scaler, content, "adamw")


class Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("evil"),))


def test_code_in_a_checkpoint_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(
        {"format": checkpoint_format.FORMAT, **FITS, "model": Evil()}, tmp_path / "a.pt"
    )
    assert "not a checkpoint that can be read" in refusal(tmp_path / "a.pt")
    assert not Path("evil").exists()
    torch.load(tmp_path / "a.pt", weights_only=False)
    assert Path("evil").exists()


@pytest.mark.parametrize(
    "content", [b"", b"garbage", b"PK\x03\x04 cut", b"\x80\x02", bytes(1000)]
)
def test_what_is_no_checkpoint(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(content)
    assert "not a checkpoint" in refusal(tmp_path / "a.pt")


@pytest.mark.parametrize(
    "content", [{"weight": torch.zeros(1)}, [1], {"format": 99}, {"format": 1}, 3]
)
def test_what_is_anothers(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "a.pt")
    assert "--weights" in refusal(tmp_path / "a.pt")


def test_damage_is_one_line_or_harmless(written: Path) -> None:
    whole, places = written.read_bytes(), random.Random(1)
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(places.randint(1, 20)):
            damaged[places.randrange(len(whole))] = places.randrange(256)
        written.write_bytes(
            damaged
            if places.random() < 0.7
            else damaged[: places.randrange(len(whole))]
        )
        try:
            read(written)
        except UserError as mistake:
            refused += 1
            assert "\n" not in str(mistake)  # noqa: PT017
    assert refused > 50


def test_a_weight_that_changed_on_the_disk_is_seen(written: Path) -> None:
    """torch.load reads it without a word."""
    whole = written.read_bytes()
    weight = (
        next(iter(torch.load(written, weights_only=True)["model"].values()))
        .numpy()
        .tobytes()
    )
    at = whole.index(weight)
    written.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    torch.load(written, weights_only=True)
    assert "a damaged checkpoint: " in refusal(written)


def test_the_best_is_of_the_folder_that_has_its_weights(written: Path) -> None:
    world = ProcessWorld(torch.device("cpu"))
    resume = Resume(path=written, content=read(written))
    resume.content["progress"] |= {"best": 0.5, "best_epoch": 3, "stale": 2, "step": 7}
    found = resume.progress_in(written.parent, world)
    assert (found.best, found.best_epoch, found.stale, found.step) == (
        float("-inf"),
        -1,
        0,
        7,
    )
    (written.parent / "best.pt").touch()
    found = resume.progress_in(written.parent, world)
    assert (found.best, found.best_epoch, found.stale, found.step) == (0.5, 3, 2, 7)


def test_which_file_is_resumed(tmp_path: Path) -> None:
    def found(resume: str | None, output: Path | None) -> Path | None:
        return Resume.find(Run(resume=resume, output=output)).path

    assert found(None, tmp_path) is None
    assert found("auto", tmp_path) is None
    (tmp_path / "last.pt").touch()
    assert found("auto", tmp_path) == tmp_path / "last.pt"
    assert found(str(tmp_path), None) == tmp_path / "last.pt"
    assert found("x/best.pt", tmp_path) == Path("x/best.pt")
    with pytest.raises(UserError, match="--output, which was not given"):
        found("auto", None)


def test_nothing_there(tmp_path: Path) -> None:
    assert "no checkpoint there" in refusal(tmp_path / "last.pt")


def test_what_a_resumed_run_has_otherwise_than_it_began() -> None:
    before = parse(
        ["--lr", "0.1", "--crop-scale", "0.1", "1", "--workers", "2", "--output", "a"]
    ).flat()
    now = parse(
        [
            "--lr",
            "1",
            "--crop-scale",
            "0.2",
            "1",
            "--workers",
            "3",
            "--output",
            "b",
            "--steps",
            "9",
            "--seed",
            "1",
            "--exif",
            "shown",
        ]
    ).flat()
    changed = Resume(content={"config": before}).changed(now)
    assert sorted(changed) == [
        "crop_scale [0.1, 1.0] -> [0.2, 1.0]",
        "exif stored -> shown",
        "lr 0.1 -> 1.0",
        "seed 0 -> 1",
    ]
    assert Resume(content={"config": now}).changed(now) == []
    assert Resume().changed(now) == [], "a checkpoint that does not say"
