"""What a checkpoint may hold: anything else is one line that names it."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts import UserError
from engine import checkpoint_format
from system import torch_files

GOOD: dict[str, Any] = {
    "format": checkpoint_format.FORMAT,
    "arch": "resnet18",
    "classes": ["ant", "bee"],
    "manifest": "a1b2",
    "model": {"weight": torch.zeros(2)},
    "optimizer": {"state": {}, "param_groups": [{"lr": 0.1, "params": [0]}]},
    "scaler": {},
    "progress": {"epoch": 1, "consumed": 3, "step": 4, "best": 0.5, "dropped": 0},
    "config": {"lr": 0.1},
    "used": {"image_size": 32},
}


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        checkpoint_format.read(path)
    said = str(caught.value)
    assert (
        "\n" not in said and said.startswith(f"--resume {path}: ") and len(said) < 400
    )
    return said


def written(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


def test_what_is_good_is_read(tmp_path: Path) -> None:
    assert (
        checkpoint_format.read(written(tmp_path / "a.pt", GOOD))["config"]
        == GOOD["config"]
    )
    with_average = {
        **GOOD,
        "ema": {"module.weight": torch.zeros(2)},
        "best_of": "average",
    }
    assert (
        checkpoint_format.read(written(tmp_path / "c.pt", with_average))["best_of"]
        == "average"
    )
    assert "'ema' is" in refusal(written(tmp_path / "d.pt", {**GOOD, "ema": 3}))
    first = {name: value for name, value in GOOD.items() if name != "used"} | {
        "format": 1
    }
    assert checkpoint_format.read(written(tmp_path / "b.pt", first))["format"] == 1


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in checkpoint_format.CHECKED
        if name not in (*torch_files.IDENTITY, *checkpoint_format.NOT_IN_ALL)
    ],
)
def test_a_part_that_is_missing(name: str, tmp_path: Path) -> None:
    content = {key: value for key, value in GOOD.items() if key != name}
    assert f"it has no '{name}'" in refusal(written(tmp_path / "a.pt", content))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("arch", 3),
        ("classes", [1, 2]),
        ("manifest", b"a1"),
        ("model", {}),
        ("optimizer", {"state": {}, "param_groups": [[0]]}),
        ("scaler", None),
        ("progress", {**GOOD["progress"], "epoch": 0.5}),
        ("progress", {**GOOD["progress"], "step": -1}),
        ("progress", {**GOOD["progress"], "best": 10**400}),
        ("progress", {**GOOD["progress"], "consumed": True}),
        ("progress", {**GOOD["progress"], "unheard_of": 1}),
        ("config", ["--lr", 0.1]),
        ("used", None),
    ],
)
def test_a_part_of_another_type(name: str, value: Any, tmp_path: Path) -> None:
    said = refusal(written(tmp_path / "a.pt", GOOD | {name: value}))
    assert (
        f"a damaged checkpoint: '{name}' is " in said
        and checkpoint_format.CHECKED[name][1] in said
    )


@pytest.mark.parametrize("number", [3, 1.5, None, "2"])
def test_another_format(number: Any, tmp_path: Path) -> None:
    said = refusal(written(tmp_path / "a.pt", GOOD | {"format": number}))
    assert f"of format {number!r}; this version reads 1 and 2" in said


@pytest.mark.parametrize(
    ("path", "is_a"),
    [
        ("/dev/zero", "a device or a pipe"),
        ("pipe", "a device or a pipe"),
        ("folder", "a folder"),
    ],
)
def test_what_is_no_file_is_not_read(path: str, is_a: str, tmp_path: Path) -> None:
    """A device never ends, and a pipe without a writer never begins."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert f"not a checkpoint that can be read ({is_a}, and not " in refusal(
        tmp_path / path
    )


def test_stored_bytes_that_are_counted_twice_are_not_read(tmp_path: Path) -> None:
    """The directory of an archive may name one record many times."""
    whole = written(
        tmp_path / "a.pt", GOOD | {"model": {"weight": torch.zeros(1 << 16)}}
    )
    with zipfile.ZipFile(whole, "a") as archive:
        large = max(archive.infolist(), key=lambda entry: entry.file_size)
        archive.infolist().extend([large] * 5)
        archive.filelist.extend([large] * 5)
        archive.writestr("end", b"")
    assert "which torch.save does not write" in refusal(whole)
