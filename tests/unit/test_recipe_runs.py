"""scripts.recipes: which runs it makes, and the table of their figures."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from scripts import demo_textures, recipes
from settings.config import Config, parse


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The settings of each run that would have been made; top-1 is a tenth of the seed, with EMA 0.5 more."""
    found: list[Config] = []
    # In CPython 3.11, ast.parse in two threads at once may raise SystemError, and tyro parses the settings'
    # source. Runs are processes of their own: only here two threads read flags.
    alone = threading.Lock()

    def run(command: list[str], **_: Any) -> None:
        with alone:
            config = parse(command[2:])
        found.append(config)
        assert config.run.output is not None
        config.run.output.mkdir(parents=True, exist_ok=True)
        figures = {"top1": config.run.seed / 10}
        if config.optimisation.ema:
            figures["ema_top1"] = 0.5 + config.run.seed / 10
        (config.run.output / "summary.json").write_text(json.dumps({"validation": figures}))

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(demo_textures, "write", lambda dest: True)
    return found


def test_recipes_and_plain_runs_differ_by_the_recipe_alone(
    made: list[Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        str(tmp_path),
        "--loaders",
        "torchvision",
        "dali-fed",
        "--seeds",
        "2",
        "--",
        "--log-every",
        "7",
    ]
    assert recipes.main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-4:] == [
        "| plain, torchvision | 5.0% | 0.0% to 10.0% | 2 |",
        "| recipe, torchvision | 55.0% | 50.0% to 60.0% | 2 |",
        "| plain, dali-fed | 5.0% | 0.0% to 10.0% | 2 |",
        "| recipe, dali-fed | 55.0% | 50.0% to 60.0% | 2 |",
    ]
    assert len(made) == 8 and all(config.run.log_every == 7 for config in made)
    plain, recipe = made[0].flat(), made[2].flat()
    differ = {name for name in plain if plain[name] != recipe[name]} - {"output"}
    assert differ == {"auto_augment", "erase", "mixup", "cutmix", "mix_prob", "label_smoothing", "ema"}
    assert recipes.main(command) == 0 and len(made) == 8, "runs that are there are not repeated"
    assert recipes.main([*command, "--epochs", "9"]) == 2 and len(made) == 8
    assert "has a run of plain, torchvision with other flags or images" in capsys.readouterr().err


def test_runs_at_once_are_those_one_by_one(
    made: list[Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--loaders", "torchvision", "--seeds", "2"]
    assert recipes.main([str(tmp_path / "one"), *command]) == 0
    one = capsys.readouterr().out
    (tmp_path / "more").mkdir()
    assert recipes.main([str(tmp_path / "more"), *command, "--jobs", "3"]) == 0
    assert capsys.readouterr().out == one
    folders = {config.run.output for config in made}
    assert len(made) == len(folders) == 8
    assert sum(path.suffix == ".txt" for path in (tmp_path / "more").iterdir()) == 4


def test_a_run_that_fails_is_named(
    monkeypatch: pytest.MonkeyPatch, made: list[Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(command: list[str], **_: Any) -> None:
        raise subprocess.CalledProcessError(3, command)

    monkeypatch.setattr(subprocess, "run", failing)
    assert recipes.main([str(tmp_path), "--seeds", "1", "--jobs", "2"]) == 3
    assert f"{tmp_path}/plain-torchvision-0 has failed" in capsys.readouterr().err and not made


def test_memorising_validates_what_is_trained(made: list[Config], tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    assert recipes.main([str(tmp_path / "runs"), "--memorise", str(images), "--seeds", "1"]) == 0
    data = tmp_path / "runs" / "real"
    assert (data / "train").resolve() == (data / "val").resolve() == images
    off, on = made
    assert off.augmentation.train_window == "center" and off.augmentation.flip == 0
    assert on.augmentation.auto_augment != "none" and on.augmentation.train_window == "random-resized"


def test_mistakes_are_told_before_a_set_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flag, value in (("--seeds", "0"), ("--jobs", "-1"), ("--memorise", str(tmp_path / "none"))):
        with pytest.raises(SystemExit):
            recipes.main([str(tmp_path / "runs"), flag, value])
        assert f"recipes: {flag} " in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_other_images_may_be_memorised_in_the_same_folder(tmp_path: Path) -> None:
    for name in ("gone", "there"):
        recipes.memorised(tmp_path / "runs", tmp_path / name, ())
        assert (tmp_path / "runs/real/val").readlink() == tmp_path / name


def test_an_interrupted_run_goes_on(
    made: list[Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", Mock(side_effect=KeyboardInterrupt))
    command = [str(tmp_path), "--loaders", "torchvision", "--seeds", "1"]
    assert recipes.main(command) == 130 and "the same command goes on" in capsys.readouterr().err
    begun = tmp_path / "plain-torchvision-0"
    begun.mkdir()
    (begun / "summary.json").write_text('{"validation": {}}')  # as a run leaves it at Ctrl-C
    monkeypatch.setattr(subprocess, "run", run)
    assert recipes.main(command) == 0
    assert [config.run.resume for config in made] == ["auto", "auto"] and made[0].run.output == begun
