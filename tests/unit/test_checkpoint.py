"""Checkpoints: whole at any time, loaded without running code, refused where they do not fit."""

from __future__ import annotations

import errno
import io
import os
import random
import re
import shutil
import signal
import textwrap
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from saturate.contracts import Figure, UserError
from saturate.engine import checkpoint
from saturate.engine.checkpoint import Checkpoints, Progress, Resume, keep_best
from saturate.engine.distributed import ProcessWorld
from saturate.settings.config import parse
from saturate.settings.run import Run
from saturate.system import storage
from tests.end_to_end.runs import Runner, until

CPU = torch.device("cpu")
FITS: dict[str, Any] = {
    "arch": "resnet18",
    "classes": ["ant", "bee", "cow"],
    "manifest": "a1b2c3",
}
CONFIG: dict[str, Any] = {"optimizer": "sgd", "task": "classification"}
CONFIG |= {"max_pixels": 9999, "trust_list": False}
CONFIG |= {"data": "/a", "val_share": 0.2, "label_key": None}
CONTENT: dict[str, Any] = {
    **FITS,
    "model": {"weight": torch.arange(1000.0), "steps": torch.tensor(3)},
    "optimizer": {"state": {}, "param_groups": [{"lr": 0.1, "params": [0]}]},
    "scaler": {},
    "progress": {"epoch": 2, "consumed": 640, "best": float("-inf")},
    "config": CONFIG,
    "used": {"image_size": 224},
}


def read(path: Path, **fits: Any) -> dict[str, Any]:
    resume = Resume(path=path)
    about = {"task": "classification", "config": CONFIG, "world": ProcessWorld(CPU)}
    resume.fits(**{**about, **FITS, **fits})
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


WRITER = """
    import itertools, pathlib, sys, torch
    from saturate.engine import checkpoint
    path = pathlib.Path(sys.argv[1])
    for i in itertools.count():
        model = {"a": torch.full((400_000,), float(i)), "b": torch.full((10,), i)}
        checkpoint.write(path, {"i": i, "model": model})
        print(i, flush=True)
"""


def test_a_kill_at_any_moment_leaves_a_whole_file(
    tmp_path: Path, runner: Runner
) -> None:
    path, moments = tmp_path / "last.pt", random.Random(0)
    for _ in range(3):
        process = runner.python("-c", textwrap.dedent(WRITER), path)
        until(partial(os.path.getsize, process.folder / "stdout"), 60, "a line")
        time.sleep(moments.uniform(0, 0.1))
        process.send(signal.SIGKILL)
        process.wait()
        content = torch.load(path, weights_only=True)
        told = int(process.out.split("\n")[-2])
        assert content["i"] >= told, "what was said to be written is"
        for value in content["model"].values():
            assert set(value.tolist()) == {content["i"]}
        assert len(list(tmp_path.iterdir())) <= 2, "what the kills left"
    checkpoint.write(path, CONTENT)
    assert [left.name for left in tmp_path.iterdir()] == ["last.pt"]


FULL = """
    import pathlib, resource, sys, torch
    from saturate.contracts import UserError
    from saturate.engine import checkpoint
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
        assert line.startswith(
            f"--output {tmp_path}: cannot write last.pt: File too large; "
        )
        assert line.endswith(
            "; the earlier last.pt is untouched: mend it, then --resume auto"
        )
    assert torch.load(path, weights_only=True)["i"] == 1
    assert [left.name for left in tmp_path.iterdir()] == ["last.pt"]


def test_a_disk_without_space_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch and the file's end raise others in its wake."""

    class Full(io.BytesIO):
        def write(self, piece: Any) -> int:
            if len(piece) < 1000:
                return super().write(piece)
            raise OSError(errno.ENOSPC, "No space left on device")

        def __exit__(self, *_: object) -> None:
            self.write(bytes(1000))

    monkeypatch.setattr(storage, "create", lambda _: Full())
    with pytest.raises(UserError, match=r"cannot write last\.pt: No space left on dev"):
        checkpoint.write(tmp_path / "last.pt", CONTENT)


@pytest.mark.parametrize(
    ("fits", "both"),
    [
        ({"task": "rotation"}, "task is classification .*, rotation "),
        ({"arch": "resnet50"}, "architecture is resnet18 .*, resnet50 "),
        ({"classes": ["ant", "bee", "dog"]}, "a class is cow .*, dog "),
        ({"manifest": "d4"}, "fingerprint.* is a1b2c3 .*, d4 in this run: files were"),
        (
            {"manifest": "d4", "config": CONFIG | {"val_share": 0.4, "data": "/b?key"}},
            "d4 in this run: --data, --val-share 0.2 -> 0.4; --weights",
        ),
    ],
)
def test_a_mismatch_prints_both_values(
    fits: dict[str, Any], both: str, written: Path
) -> None:
    said = refusal(written, **fits)
    assert re.search(both, said), said
    assert "in the checkpoint" in said and "in this run" in said


@pytest.mark.parametrize(
    "flags",
    [
        "source exif val-share val-seed multi-label lmdb-label label-key max-pixels",
        "scale patch-size patches-per-image data trust-list",
    ],
)
def test_flags_that_make_another_data_set_are_named(flags: str, written: Path) -> None:
    names = {flag.replace("-", "_"): flag for flag in flags.split()}
    other = {**CONTENT, "config": CONFIG | dict.fromkeys(names, "a_b")}
    checkpoint.write(written, other)
    config = CONFIG | dict.fromkeys(names, "b_a")
    said = refusal(written, manifest="d4", config=config)
    for flag in names.values():
        assert f"--{flag}" in said, flag
    assert "a_b -> b_a" in said and "files" not in said


def test_other_parameters_were_trained() -> None:
    def trained(*counts: int) -> torch.optim.Optimizer:
        groups = [
            {"params": [torch.nn.Parameter(torch.ones(2)) for _ in range(count)]}
            for count in counts
        ]
        return torch.optim.SGD(groups, lr=0.5, momentum=0.9)

    scaler = torch.amp.GradScaler("cpu", enabled=False)
    content = {"config": CONFIG, "optimizer": trained(3).state_dict(), "scaler": {}}
    checkpoint.load_optimizer(last := trained(3), scaler, content, "sgd")
    assert [group["lr"] for group in last.param_groups] == [0.5]
    for counts, said in {
        (2,): r"groups of \[3\] in the checkpoint, \[2\] .*--weights-backbone",
        (2, 1): r"groups of \[3\] in the checkpoint, \[2, 1\] .*--no-decay",
    }.items():
        with pytest.raises(UserError, match=said):
            checkpoint.load_optimizer(trained(*counts), scaler, content, "sgd")
    with pytest.raises(UserError, match="--optimizer is sgd in the checkpoint, adamw"):
        checkpoint.load_optimizer(trained(3), scaler, content, "adamw")
    others = trained(3)
    content["optimizer"]["param_groups"][0]["names"] = ["a", "b", "c"]
    others.param_groups[0]["names"] = ["a", "c", "d"]
    with pytest.raises(
        UserError, match=r"b is trained in the checkpoint, c .*--freeze"
    ):
        checkpoint.load_optimizer(others, scaler, content, "sgd")
    del content["optimizer"]["state"]
    with pytest.raises(UserError, match="its optimiser's state is not one"):
        checkpoint.load_optimizer(trained(3), scaler, content, "sgd")


class Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("evil"),))


def test_code_in_a_checkpoint_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = {"format": checkpoint.FORMAT, **CONTENT, "model": Evil()}
    torch.save(content, tmp_path / "a.pt")
    assert "not a checkpoint that can be read" in refusal(tmp_path / "a.pt")
    assert not Path("evil").exists()
    torch.load(tmp_path / "a.pt", weights_only=False)
    assert Path("evil").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"weight": torch.zeros(1)}, "--weights"),
        ({**CONTENT, "format": 3}, "a checkpoint of format 3; this version reads"),
        ({**FITS, "format": 2}, "'model' in it is missing"),
        ({**CONTENT, "format": 2, "model": {"weight": [1.0]}}, "'model' in it"),
    ],
)
def test_what_is_anothers(content: Any, said: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "a.pt")
    assert said in refusal(tmp_path / "a.pt")


def test_damage_is_one_line_or_harmless(written: Path) -> None:
    whole, places = written.read_bytes(), random.Random(1)
    refused = 0
    for number in range(60):
        damaged = bytearray(whole)
        for _ in range(places.randint(1, 20)):
            damaged[places.randrange(len(whole))] = places.randrange(256)
        cut = places.randrange(len(whole)) if number % 3 == 0 else len(whole)
        written.write_bytes(damaged[:cut])
        try:
            found = read(written)
        except UserError as mistake:
            refused += 1
            assert "\n" not in str(mistake)  # noqa: PT017
        else:
            assert torch.equal(found["model"]["weight"], CONTENT["model"]["weight"])
    assert refused > 20
    # a weight, which torch.load reads without a word, and the pickle's end, of which it has none
    weight = CONTENT["model"]["weight"].numpy().tobytes()
    for at in (whole.index(weight), whole.index(b"u.PK\x07\x08")):
        written.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert "damaged" in refusal(written)


def test_steps_that_are_kept_and_the_one_before(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    last = tmp_path / "last.pt"
    for step in (2, 10, 20):
        checkpoint.write(last, {**CONTENT, "step": step})
        checkpoint.keep(last, step, 2)
    steps = [tmp_path / f"step-0000000{step}.pt" for step in (10, 20)]
    assert sorted(tmp_path.iterdir()) == [last, *steps]
    assert checkpoint.newest(tmp_path) == last
    damaged = bytearray(last.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    last.write_bytes(damaged)  # and the file of its step, which is the same
    assert checkpoint.newest(tmp_path) == steps[0]
    assert read(steps[0])["step"] == 10
    lines = capfd.readouterr().err.splitlines()
    assert [
        path.name in line for path, line in zip((last, steps[1]), lines, strict=True)
    ]
    assert "damaged" in lines[0]
    assert "a damaged checkpoint" in refusal(last), "where it is named"


def test_what_is_later_than_the_step_that_a_run_goes_on_from_is_kept_aside(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    later = {"best.pt": 30, "last.pt": 40, "step-000000040.pt": 40}
    later["val_loss--0.25000-step-000000030.pt"] = 30
    own = {"step-000000020.pt": 20, "top1-0.50000-step-000000020.pt": 20}
    for name, step in {**later, **own}.items():
        checkpoint.write(tmp_path / name, {**CONTENT, "progress": {"step": step}})
    files = {"mine.pt": b"weights of a user", "metrics.jsonl": b"40 steps"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    checkpoint.set_aside(tmp_path, 20, ["metrics.jsonl", "results.csv"])
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    moved = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert moved == {name: before[name] for name in (*later, "metrics.jsonl")}
    here = {path.name: path.read_bytes() for path in tmp_path.glob("*.*")}
    assert here == {name: before[name] for name in (*own, *files)}
    said = capfd.readouterr().err
    assert str(folder) in said and all(name in said for name in later)
    # the same run again, and a best.pt of which nobody knows the step
    (tmp_path / "best.pt").write_bytes(b"damaged")
    checkpoint.set_aside(tmp_path, 20, [])
    assert (
        len([*tmp_path.rglob("best.pt")]) == 2 and not (tmp_path / "best.pt").exists()
    )
    checkpoint.set_aside(tmp_path, 20, [])
    assert len([*tmp_path.glob("later*")]) == 2, "nothing is later than its own"


def test_a_best_that_cannot_be_written_is_written_before_the_next_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Else a run that is resumed has the figure of a best.pt that is not there."""
    checkpoints = Checkpoints(
        folder=tmp_path,
        world=ProcessWorld(CPU),
        module=torch.nn.Linear(1, 1),
        step=MagicMock(),
        about={},
    )
    full = True
    written = []

    def write(path: Path, content: dict[str, Any]) -> None:
        if full:
            raise UserError("no space left; free some")
        written.append((path.name, content["at"]))

    monkeypatch.setattr(checkpoint, "write", write)
    for at, name in enumerate(("last.pt", "best.pt", "last.pt", "last.pt")):
        full = at < 3
        checkpoints.write(name, {"at": at, "progress": {"step": at}})
        checkpoints.wait()
    assert written == [("best.pt", 1), ("last.pt", 3)]
    said = (
        "train.py: no space left; training goes on, and the next checkpoint tries again"
    )
    assert capfd.readouterr().err.splitlines() == [said] * 3
    checkpoints.finish()
    checkpoints.notify_where()
    assert "train.py: last.pt has step 3: go on with" in capfd.readouterr().err
    full = True
    monkeypatch.setattr(storage, "ENDING_S", (0, 0))
    checkpoints.write("last.pt", {"at": 4}, last=True)
    with pytest.raises(UserError, match="no space left; free some"):
        checkpoints.finish()
    assert capfd.readouterr().err == "", "training does not go on"


def test_the_best_is_of_the_folder_that_has_its_weights(written: Path) -> None:
    world = ProcessWorld(CPU)
    resume = Resume(path=written, content=read(written))
    resume.content["progress"] |= {"best": 0.5, "best_epoch": 3, "stale": 2, "step": 7}
    for here, expected in ((False, (float("-inf"), -1, 0, 7)), (True, (0.5, 3, 2, 7))):
        if here:
            (written.parent / "best.pt").touch()
        at = resume.progress_in(written.parent, world)
        assert (at.best, at.best_epoch, at.stale, at.step) == expected
    resume.content["progress"]["reached"] = "top1=0.4"
    at = resume.progress_in(written.parent, world, validates_anew=True)
    assert (at.best, at.best_epoch, at.stale, at.step) == (float("-inf"), -1, 0, 7)
    assert (at.reached, at.comparable_since) == ("", 7)


def test_files_of_the_best_are_ranked_by_figures_that_compare(tmp_path: Path) -> None:
    for step, value in enumerate((0.95, 0.96, 0.6, 0.7, 0.65)):
        progress = Progress(step=step, comparable_since=1 if step > 1 else -1)
        content = {"progress": asdict(progress)}
        keep_best(tmp_path, content, Figure(name="top1"), value, 2)
    kept = {path.name[:12] for path in tmp_path.iterdir()}
    assert kept == {"top1-0.95000", "top1-0.96000", "top1-0.70000", "top1-0.65000"}


@pytest.mark.parametrize(
    ("flags", "files", "told"),
    [
        ("--lr 2 --workers 3 --precision fp16", "v0", ""),
        ("", "v1", "other files"),
        ("--tta flip", "v0", "tta none -> flip"),
        ("--val-crop-share 0.9", "v1", "other files, val_crop_share None -> 0.9"),
    ],
)
def test_figures_of_other_validations_are_not_compared(
    flags: str, files: str, told: str
) -> None:
    before = {"config": parse([]).flat(), "progress": asdict(Progress(best_epoch=0))}
    resume = Resume(content={**before, "val_manifest": "v0"})
    now = parse(flags.split()).flat()
    assert ", ".join(resume.validates_otherwise(now, files)) == told
    report = MagicMock()
    resume.tell(report, config=now, ordering="x", samples_a_step=1, val_manifest=files)
    warned = [call.args[0] for call in report.warn.call_args_list]
    assert [f"({told})" in line for line in warned] == [True] * bool(told)
    assert not Resume(content=before).validates_otherwise(parse([]).flat(), "v1")
    never = {**before, "progress": asdict(Progress()), "val_manifest": "v0"}
    assert not Resume(content=never).validates_otherwise(now, "v1")


def test_which_file_is_resumed(tmp_path: Path) -> None:
    def found(resume: str | None, output: Path | None) -> Path | None:
        where = str(output) if output else None
        return Resume.find(Run(resume=resume, output=where)).path

    assert found(None, tmp_path) is None
    assert found("auto", tmp_path) is None
    (tmp_path / "last.pt").touch()
    assert found("auto", tmp_path) == tmp_path / "last.pt"
    assert found(str(tmp_path), None) == tmp_path / "last.pt"
    assert found("x/best.pt", tmp_path) == Path("x/best.pt")
    with pytest.raises(UserError, match="--output, which was not given"):
        found("auto", None)


def test_predictions_of_a_runs_folder_are_of_its_best_weights(written: Path) -> None:
    ran = Run(predict=Path("NEW"), resume=str(written.parent))
    assert Resume.find(ran).path == written
    best = written.with_name("best.pt")
    shutil.copy(written, best)
    assert Resume.find(ran).path == best
    with pytest.raises(UserError, match=r"its folder has best\.pt, last\.pt"):
        read(written.with_name("bset.pt"))


def test_what_a_resumed_run_has_otherwise_than_it_began() -> None:
    """Settings of one run, such as --steps or --workers, are not named."""
    words = "--lr 0.1 --crop-scale 0.1 1 --workers 2 --output a"
    before = parse(words.split()).flat()
    words = "--lr 1 --crop-scale 0.2 1 --workers 3 --output b --steps 9 --seed 1"
    now = parse([*words.split(), "--leave-out", "list.csv"]).flat()
    report = MagicMock()
    alike: dict[str, Any] = {
        "ordering": "one",
        "samples_a_step": 8,
        "val_manifest": "v",
    }
    content = {"config": before, "progress": asdict(Progress()), "samples_a_step": 8}
    resume = Resume(content=content)
    resume.tell(report, config=now, **alike)
    report.warn.assert_not_called()
    resume.tell(report, config=now, **alike | {"samples_a_step": 16})
    assert "--global-batch-size 8 " in report.warn.call_args.args[0]
    (told,) = report.info.call_args.args
    others = "lr 0.1 -> 1.0", "seed 0 -> 1", "leave_out None -> list.csv"
    for each in (*others, "crop_scale [0.1, 1.0] -> [0.2, 1.0]"):
        assert each in told
    assert told.count("->") == 4
    content |= {"config": now, "progress": asdict(Progress(step=7, epoch=2))}
    resume.tell(report, config=now, **alike)
    assert "goes on in epoch 3, at step 7" in report.info.call_args.args[0]
    assert Resume(content={"config": now}).changed(now) == []
    assert Resume().changed(now) == [], "a checkpoint that does not say"
