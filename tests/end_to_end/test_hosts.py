"""Two ranks on hosts that share no disk, as two folders: one command line, other files, one run."""

from __future__ import annotations

import hashlib
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.runs import Process, Runner, kept, summary

HOST = socket.gethostname()
FLAGS = """--loader torchvision --arch tests.end_to_end.networks:tiny --image-size 32 --batch-size 8
    --workers 1 --precision fp32 --ceilings false --log-every 1 --val-every 1 --ema 0.9
    --epochs 1 --warmup-epochs 0 --lr 0.01 --output run --manifest-dir manifests"""


def trained(
    train: Runner, data: Path, hosts: list[Path], flags: str = "", last: str = ""
) -> list[Process]:
    """Run FLAGS in two processes, each in the folder of its host."""
    return train.ranks(2, "--data", data, f"{FLAGS} {flags}", folders=hosts, last=last)


@pytest.fixture(scope="module")
def files(of_module: Runner, pictures: Path) -> Path:
    """Checkpoints of one run, step-2.pt and step-3.pt, and presets of two momenta."""
    folder = of_module.cwd
    kept_steps = "--steps 3 --save-every-steps 1 --keep 3"
    for process in trained(of_module, pictures, [folder] * 2, kept_steps):
        process.done()
    for step in (2, 3):
        shutil.copy(folder / f"run/step-{step:09}.pt", folder / f"step-{step}.pt")
        (folder / f"{step}.yaml").write_text(f"momentum: 0.{step}\n")
    return folder


PRESET_AND_WEIGHTS = "--config preset.yaml --weights start.pt"
AT_2 = {"preset.yaml": "2.yaml", "start.pt": "step-2.pt"}
AT_3 = {"preset.yaml": "3.yaml", "start.pt": "step-3.pt"}
Files = dict[str, str]


@pytest.mark.parametrize(
    ("flags", "here", "others"),
    [
        (
            "--resume auto",
            {"run/last.pt": "step-2.pt"},
            [{"run/last.pt": "step-3.pt"}],
        ),
        ("--resume auto", {}, [{"run/last.pt": "step-3.pt"}]),
        ("--resume start.pt --evaluate true", {"start.pt": "step-2.pt"}, [{}]),
        (PRESET_AND_WEIGHTS, AT_2, [AT_3, {}]),
    ],
)
def test_rank_0_reads(
    train: Runner,
    pictures: Path,
    files: Path,
    flags: str,
    here: Files,
    others: list[Files],
) -> None:
    """A file that another host has otherwise, or not at all: weights are those of a run on one folder."""
    ends: list[Any] = []
    for number, there in enumerate((here, *others)):
        hosts = [train.cwd / f"{number}-{rank}" for rank in range(2)]
        for host, own in zip(hosts, (here, there), strict=True):
            (host / "run").mkdir(parents=True)
            for name, file in own.items():
                shutil.copy(files / file, host / name)
        if not ends:
            hosts[1] = hosts[0]
        for process in trained(train, pictures, hosts, flags):
            process.done()
        ends.append(end_of(hosts[0] / "run"))
    assert ends == ends[:1] * len(ends)


def end_of(run: Path) -> Any:
    """Return the figures of the validation, of both ranks' halves, and every number of last.pt."""
    figures = summary(run)["validation"]
    if not (run / "last.pt").exists():
        return figures
    content = kept(run / "last.pt")
    digest = hashlib.sha256()
    held = [*content["model"].values(), *content["ema"].values()]
    for state in content["optimizer"]["state"].values():
        held += [value for value in state.values() if value is not None]
    for value in held:
        digest.update(value.numpy().tobytes())
    return figures, content["progress"], len(held), digest.hexdigest()


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (
            "--lr 0.3 --seed 5",
            f"the ranks differ: --seed is 0 on rank 0, 5 on rank 1 on {HOST}; --lr is 0.01",
        ),
        # met by one rank alone, in its scan
        ("--data nowhere", "--data nowhere"),
        ("--workers 0 --output other --data absent", ""),
    ],
)
def test_settings_are_compared(
    train: Runner, pictures: Path, last: str, said: str
) -> None:
    """One line a host, and exit code 2 on every rank; what is a host's own matter may differ."""
    shutil.copytree(pictures, train.cwd / "absent")
    processes = trained(train, pictures, [train.cwd] * 2, "--steps 1", last)
    for process in processes:
        assert process.wait() == (2 if said else 0)
    lines = "".join(process.err for process in processes).splitlines()
    assert len(lines) == bool(said) and all(said in line for line in lines), lines
    assert (train.cwd / "run").exists() is not bool(said)
    assert not (train.cwd / "other").exists()
