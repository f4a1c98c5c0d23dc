"""The rules of the house, each with its plant."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from scripts import make_map
from tests.sweeps import SWEEPS, is_sweep

ROOT = Path(__file__).resolve().parents[2]

MAY_IMPORT: dict[str, set[str]] = {
    "contracts": set(),
    "system": {"contracts"},  # for the error that it raises
    "settings": {"contracts", "system"},
    "plan": {"contracts"},
    "models": {"system"},
    "dataset": {"contracts", "system", "plan.draws"},
    "loaders": {"contracts", "system", "dataset", "plan"},
    "tasks": {
        "contracts",
        "system",
        "settings",
        "models",
        "dataset",
        "plan",
        "loaders",
    },
    "engine": {"contracts", "system", "settings"},
    "report": {"contracts", "system", "settings"},
}
"""Room -> the rooms, or single modules, that it may import."""
FOR_HELP = {("settings/preflight.py", "tasks")}
"""What a file imports beyond that: tables of names, for --help-all alone."""
EVERYTHING = {"train", "predict", "scripts", "benchmarks", "tests"}
ROOMS = {*MAY_IMPORT, *EVERYTHING}


def files(folder: Path = ROOT) -> Iterator[Path]:
    """Every file that git tracks, as a path from the root; without git every file of the folder, but for what
    is hidden or left by runs.
    """
    listed = subprocess.run(
        ["git", "-C", str(folder), "ls-files", "-z"],
        capture_output=True,
        text=True,
        check=False,
    )
    if (folder / ".git").exists() and listed.returncode == 0:
        yield from (
            Path(name)
            for name in listed.stdout.split("\0")
            if name and (folder / name).is_file()
        )
        return
    for place, folders, names in os.walk(folder):
        top = Path(place) == folder
        folders[:] = [
            name
            for name in sorted(folders)
            if (not name.startswith(".") or name == ".ci")
            and name != "__pycache__"
            and not (top and name in {"runs", "shared"})
        ]
        yield from (
            Path(place, name).relative_to(folder)
            for name in sorted(names)
            if name != ".venv.lock"
        )


def python() -> list[Path]:
    return [path for path in files() if path.suffix == ".py"]


def test_the_repository_is_found() -> None:
    found = {str(path) for path in files()}
    assert {
        "train.py",
        "dataset/stores/folder.py",
        "tests/unit/test_house.py",
        ".ci/run",
        "configs/demo.yaml",
        "LICENSE",
    } <= found
    assert not any(".venv" in path or ".git/" in path for path in found)


def test_a_file_that_git_does_not_track_is_none_of_the_house(tmp_path: Path) -> None:
    """The log of a demo names folders of the machine; a checkout without git has nothing else to go by."""
    for name in ("train.py", "demo.log"):
        (tmp_path / name).write_text("", encoding="utf-8")
    assert [str(path) for path in files(tmp_path)] == ["demo.log", "train.py"]
    for command in (["init", "-q"], ["add", "train.py"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    assert [str(path) for path in files(tmp_path)] == ["train.py"]


def names_no_test(pattern: str) -> bool:
    path, _, name = pattern.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    tests = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    return not any(fnmatchcase(test, name.partition("[")[0]) for test in tests)


def test_sweeps_are_of_tests_that_are_there() -> None:
    assert [pattern for pattern in SWEEPS if names_no_test(pattern)] == []
    assert names_no_test("tests/unit/test_house.py::test_that_is_gone[*]")


@pytest.mark.parametrize(
    ("test", "sweep"),
    [
        (
            "tests/conformance/test_signals.py::test_ctrl_c_to_the_program_alone[pyav]",
            True,
        ),
        (
            "tests/conformance/test_signals.py::test_ctrl_c_to_the_program_alone[dali-fed]",
            False,
        ),
        (
            "tests/gpu/test_conformance.py::test_ctrl_c_to_the_program_alone[pyav]",
            False,
        ),
        ("tests/unit/test_settings_read.py::test_compile", False),
    ],
)
def test_what_is_a_sweep(test: str, sweep: bool) -> None:
    assert is_sweep(test) is sweep


def imported(source: str) -> Iterator[str]:
    """Every module that code imports, at its top, in a function, for types alone, or by name at run time."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")
        elif (
            isinstance(node, ast.Call)
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            called = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            if called in ("import_module", "__import__"):
                yield str(node.args[0].value)


def trespasses(path: Path, source: str) -> list[str]:
    room = path.parts[0].removesuffix(".py")
    found = []
    for module in imported(source):
        other = module.partition(".")[0]
        allowed = (
            EVERYTHING | ROOMS if room in EVERYTHING else MAY_IMPORT[room] | {room}
        )
        if module.startswith("."):
            found.append(f"{path} imports {module}: imports name the room")
        elif (
            other in ROOMS
            and not {other, module} & allowed
            and (str(path), other) not in FOR_HELP
        ):
            found.append(f"{path} imports {module}")
    return found


def test_imports_run_one_way() -> None:
    assert {path.parts[0].removesuffix(".py") for path in python()} <= ROOMS, (
        "a new room needs a line in MAY_IMPORT"
    )
    found = [
        line
        for path in python()
        for line in trespasses(path, (ROOT / path).read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source", "wrong"),
    [
        ("engine/loop.py", "from plan.epoch import ImagePlan", True),
        (
            "engine/loop.py",
            "def f():\n    import loaders.images.torchvision as x",
            True,
        ),
        ("models/x.py", "if TYPE_CHECKING:\n    from contracts import Batch", True),
        (
            "loaders/x.py",
            "import importlib\nimportlib.import_module('tasks.classification')",
            True,
        ),
        ("dataset/sources/x.py", "from ..manifest import Images", True),
        ("report/x.py", "import os, engine", True),
        ("contracts.py", "from settings import config", True),
        ("plan/x.py", "from dataset.scan.manifest import Manifest", True),
        ("dataset/x.py", "from plan.epoch import EpochPlan", True),
        ("dataset/x.py", "from plan.draws import key", False),
        ("loaders/x.py", "from plan.epoch import ImagePlan\nimport torchvision", False),
        ("models/x.py", "import torchvision.models, datasets, engine_room", False),
        ("train.py", "import engine, loaders, tasks.classification", False),
        ("tests/unit/x.py", "from train import main", False),
    ],
)
def test_a_planted_import_is_caught(path: str, source: str, wrong: bool) -> None:
    assert bool(trespasses(Path(path), source)) is wrong


def test_contracts_import_torch_for_types_alone() -> None:
    tree = ast.parse((ROOT / "contracts.py").read_text(encoding="utf-8"))
    at_run_time = [
        node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert "torch" not in {
        name for node in at_run_time for name in imported(ast.unparse(node))
    }
    assert "torch" in set(imported(ast.unparse(tree)))


OF_SAMPLES = {"plan", "loaders", "tasks", "engine", "report", "train", "predict"}
"""Rooms that know samples by their number alone."""


def made_paths(source: str) -> list[str]:
    """Every call of path() or paths() on anything but a source."""
    calls = [
        node.func
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    asked = [ast.unparse(call) for call in calls if call.attr in ("path", "paths")]
    return [call for call in asked if call.split(".")[-2].lstrip("_") != "source"]


def test_only_a_source_turns_a_sample_into_a_path() -> None:
    there = [
        path for path in python() if path.parts[0].removesuffix(".py") in OF_SAMPLES
    ]
    found = [
        f"{path}: {call}"
        for path in there
        for call in made_paths((ROOT / path).read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)
    assert made_paths(
        "open(self._columns.path(0))\nsource.path(1)\nfeed.source.paths(ids)\nos.path.join(a)"
    ) == ["self._columns.path"]


def bare_folders(paths: list[Path]) -> set[Path]:
    """Folders with Python in them and no __init__.py: an installed package of that name would win."""
    return {path.parent for path in paths if path.parent != Path()} - {
        path.parent for path in paths if path.name == "__init__.py"
    }


def test_every_folder_is_a_package() -> None:
    assert not bare_folders(python())
    assert bare_folders(
        [Path("train.py"), Path("a/__init__.py"), Path("a/x.py"), Path("a/b/y.py")]
    ) == {Path("a/b")}


def backwards(source: str) -> int:
    nodes = ast.walk(ast.parse(source))
    return sum(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "backward"
        for node in nodes
    )


def test_one_training_step_in_the_repository() -> None:
    """benchmarks/baselines/train.py is what others write."""
    counts = {
        str(path): backwards((ROOT / path).read_text(encoding="utf-8"))
        for path in python()
        if path.parts[0] != "tests"
    }
    assert {path: count for path, count in counts.items() if count} == {
        "engine/step.py": 1,
        "benchmarks/baselines/train.py": 1,
    }
    assert backwards("scaler.scale(f(x)).backward()\ntorch.autograd.backward(x)") == 2


# Written in pieces, so that this file does not break its own rule.
LEFT_OVER = re.compile(
    r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b"
)
OF_A_MACHINE = re.compile(
    r"(?<![\w.~$}])/("
    + "|".join(["wo" + "rk", "ro" + "ot", "Us" + "ers", "ho" + r"me/(?!saturate\b)\w+"])
    + r")/"
)


def texts() -> Iterator[tuple[Path, str]]:
    for path in files():
        try:
            yield path, (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def test_nothing_is_left_over_and_no_path_is_one_machines() -> None:
    found = [
        f"{path}: {match[0]}"
        for path, text in texts()
        for rule in (LEFT_OVER, OF_A_MACHINE)
        for match in rule.finditer(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("rule", "text", "wrong"),
    [
        (LEFT_OVER, "# TO" + "DO: later", True),
        (LEFT_OVER, "TO" + "DOS are mastodons", False),
        (OF_A_MACHINE, "cd /wo" + "rk/main", True),
        (OF_A_MACHINE, "'/ro" + "ot/.cache/x'", True),
        (OF_A_MACHINE, "--data=/ho" + "me/anna/data", True),
        (OF_A_MACHINE, "ENV HOME=/home/saturate/x", False),
        (OF_A_MACHINE, "https://example.org/wo" + "rk/x and docs/wo" + "rk/y", False),
    ],
)
def test_a_planted_word_is_caught(
    rule: re.Pattern[str], text: str, wrong: bool
) -> None:
    assert bool(rule.search(text)) is wrong


def test_the_map_is_what_its_program_writes() -> None:
    page = make_map.page(sorted(str(path) for path in files()))
    assert (ROOT / "docs" / "map.md").read_text(encoding="utf-8") == page, (
        "python -m scripts.make_map"
    )


def test_the_map_is_made_of_first_sentences(tmp_path: Path) -> None:
    for name in make_map.ROOMS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f'"""Room {name}."""')
    (tmp_path / "plan" / "order.py").write_text(
        '"""The order\nof a.py; must not know. And more."""'
    )
    (tmp_path / "scripts" / "run.sh").write_text("#!/bin/sh\n# Runs it. Twice.\n")
    names = ["plan/__init__.py", "plan/order.py", "scripts/run.sh", "tests/test_x.py"]
    page = make_map.page(names, tmp_path)
    assert "## plan/\n\nRoom plan.\n\n- `plan/order.py` The order of a.py.\n" in page
    assert "- `scripts/run.sh` Runs it.\n" in page and "test_x" not in page
    (tmp_path / "plan" / "order.py").write_text("x = 1")
    with pytest.raises(ValueError, match=r"plan/order.py has no docstring"):
        make_map.page(names, tmp_path)
