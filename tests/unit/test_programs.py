"""Programs of scripts/: Ctrl-C, and URLs that they do not take."""

from __future__ import annotations

import os
import subprocess
from importlib import import_module
from pathlib import Path

import pytest
import torch

from saturate.engine.distributed import ProcessWorld
from saturate.run import export
from saturate.run.build import resolve
from saturate.settings.config import parse
from saturate.tasks.initial_state import Start
from tests.end_to_end.runs import draw
from tests.unit.folders import refused

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "words",
    [
        "scripts.export s3://b/best.pt",
        "scripts.demo_set s3://b/p",
        "benchmarks.bench loader --data s3://b/p",
    ],
)
def test_a_url_that_a_program_does_not_take_is_refused_in_a_line(
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    name, *arguments = words.split()
    try:
        code = import_module(name).main(arguments)
    except SystemExit as end:
        code = end.code
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 2 and "is a URL; name a file or folder of this machine" in line
    assert os.listdir(tmp_path) == ["photos"]


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("scripts/tensorboard_pictures", "", "it takes RUNS TO"),
        ("scripts/tensorboard_pictures", "runs to", "runs: no run is below it"),
        ("benchmarks/published_gpus", "runs to", "it takes IMAGES OUT 1"),
        ("benchmarks/published_gpus", "runs to 4", "it takes IMAGES OUT 1"),
    ],
)
def test_what_a_script_lacks_is_said_in_a_line(
    name: str, words: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "runs").mkdir()
    ended = subprocess.run(
        [ROOT / f"{name}.sh", *words.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    (line,) = ended.stderr.splitlines()
    assert ended.returncode == 2 and line.startswith(f"{Path(name).name}: {said}")
    assert os.listdir(tmp_path) == ["runs"]


@pytest.mark.parametrize("flags", ["", "--val-share 0.2"])
def test_an_export_whose_data_was_moved_says_what_else_it_is_checked_on(
    flags: str,
) -> None:
    config = parse(f"--data gone {flags}".split())
    start = Start.from_config(config, (), {}, path=None, origin="")
    world = ProcessWorld(torch.device("cpu"))
    settings = resolve(start, world)
    said = refused(lambda: export.assembled(settings, None, world))
    assert said.startswith("--data gone: no such folder") and "--images FOLDER" in said


def test_an_export_is_not_checked_on_data_of_other_classes(tmp_path: Path) -> None:
    data = draw(tmp_path / "data", classes=("cat", "fox"), train=1, val=1)
    start = Start(
        config=parse(f"--data {data} --manifest-dir {tmp_path}".split()),
        messages=[],
        weights=None,
        origin="--resume run/best.pt",
        trained=("cat", "dog"),
    )
    world = ProcessWorld(torch.device("cpu"))
    said = refused(lambda: export.assembled(resolve(start, world), None, world))
    assert "class 'fox' of 2 is none of the 2 classes of --resume run/best.pt" in said
    assert "or check the file on --images FOLDER" in said
