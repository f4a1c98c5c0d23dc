"""The rules of the house: who imports whom, what a folder must have, and a README whose map is true. Each rule has its plant."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MAY_IMPORT: dict[str, set[str]] = {
    "contracts": set(),
    "models": set(),
    "cli": {"contracts"},  # its errors are UserErrors
    "config": {"cli", "contracts"},
    "dataset": {"config", "contracts"},
    "engine": {"config", "contracts"},
    "report": {"config", "contracts"},
    "loaders": {"config", "contracts", "dataset"},
    "tasks": {"config", "contracts", "dataset"},
}
EVERYTHING = {"train", "scripts", "benchmarks", "tests"}
ROOMS = {*MAY_IMPORT, *EVERYTHING}


def files(folder: Path = ROOT) -> Iterator[Path]:
    """Every file that belongs to the repository, as a path from its root."""
    for place, folders, names in os.walk(folder):
        top = Path(place) == folder
        folders[:] = [
            name
            for name in sorted(folders)
            if (not name.startswith(".") or name == ".ci") and name != "__pycache__" and not (top and name in {"runs", "shared"})
        ]
        yield from (Path(place, name).relative_to(folder) for name in sorted(names) if name != ".venv.lock")


def python() -> list[Path]:
    return [path for path in files() if path.suffix == ".py"]


def test_the_walk_finds_the_repository() -> None:
    found = {str(path) for path in files()}
    assert {"train.py", "dataset/sources/folder.py", "tests/unit/test_house.py", ".ci/run", "configs/demo.yaml", "LICENSE"} <= found
    assert not any(".venv" in path or ".git/" in path for path in found)


# --- imports run one way --------------------------------------------------------------------------------------------------------------


def imported(source: str) -> Iterator[str]:
    """Every module that code imports, at its top, in a function, for types alone, or by name at run time."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__"):
                yield str(node.args[0].value)


def trespasses(path: Path, source: str) -> list[str]:
    """What a file imports that its room may not."""
    room = path.parts[0].removesuffix(".py")
    found = []
    for module in imported(source):
        other = module.partition(".")[0]
        if module.startswith("."):
            found.append(f"{path} imports {module}: imports name the room")
        elif other in ROOMS - {room} and room not in EVERYTHING and other not in MAY_IMPORT[room]:
            found.append(f"{path} imports {module}")
    return found


def test_imports_run_one_way() -> None:
    assert {path.parts[0].removesuffix(".py") for path in python()} <= ROOMS, "a new room needs a line in MAY_IMPORT"
    found = [line for path in python() for line in trespasses(path, (ROOT / path).read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source", "wrong"),
    [
        ("engine/loop.py", "from plan.epoch import ImagePlan", True),
        ("engine/loop.py", "def f():\n    import loaders.images.torchvision as x", True),
        ("models/x.py", "if TYPE_CHECKING:\n    from contracts import Batch", True),
        ("loaders/x.py", "import importlib\nimportlib.import_module('tasks.classification')", True),
        ("dataset/sources/x.py", "from ..manifest import Images", True),
        ("report/x.py", "import os, engine", True),
        ("contracts.py", "import config", True),
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
    at_run_time = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert "torch" not in {name for node in at_run_time for name in imported(ast.unparse(node))}
    assert "torch" in set(imported(ast.unparse(tree)))


# --- folders and files ----------------------------------------------------------------------------------------------------------------


def bare_folders(paths: list[Path]) -> set[Path]:
    """Folders with Python in them and no __init__.py: an installed package of that name would win."""
    return {path.parent for path in paths if path.parent != Path()} - {path.parent for path in paths if path.name == "__init__.py"}


def test_every_folder_is_a_package() -> None:
    assert not bare_folders(python())
    assert bare_folders([Path("train.py"), Path("a/__init__.py"), Path("a/x.py"), Path("a/b/y.py")]) == {Path("a/b")}


def test_the_composition_root_stays_short() -> None:
    assert len((ROOT / "train.py").read_text(encoding="utf-8").splitlines()) <= 150


def backwards(source: str) -> int:
    """Calls of a method backward()."""
    nodes = ast.walk(ast.parse(source))
    return sum(isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward" for node in nodes)


def test_one_training_step_in_the_repository() -> None:
    """engine/memory.py runs it without an optimiser, to see which batch size fits; benchmarks/baselines/train.py is what others write."""
    counts = {str(path): backwards((ROOT / path).read_text(encoding="utf-8")) for path in python() if path.parts[0] != "tests"}
    assert {path: count for path, count in counts.items() if count} == {
        "engine/step.py": 1,
        "engine/memory.py": 1,
        "benchmarks/baselines/train.py": 1,
    }
    assert backwards("scaler.scale(f(x)).backward()\ntorch.autograd.backward(x)") == 2


# Written in pieces, so that this file does not break its own rule.
LEFT_OVER = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b")
OF_A_MACHINE = re.compile(r"(?<![\w.~$}])/(" + "|".join(["wo" + "rk", "ro" + "ot", "Us" + "ers", "ho" + r"me/(?!saturate\b)\w+"]) + r")/")


def texts() -> Iterator[tuple[Path, str]]:
    """Every file that is text."""
    for path in files():
        try:
            yield path, (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def test_nothing_is_left_over_and_no_path_is_one_machines() -> None:
    found = [f"{path}: {match[0]}" for path, text in texts() for rule in (LEFT_OVER, OF_A_MACHINE) for match in rule.finditer(text)]
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
def test_a_planted_word_is_caught(rule: re.Pattern[str], text: str, wrong: bool) -> None:
    assert bool(rule.search(text)) is wrong


# --- the README's map -----------------------------------------------------------------------------------------------------------------

FOLDER_IS_ENOUGH = ("tests", "configs", "docs")
"""Their files come and go; a phrase for the folder says it. A file of theirs that is named must be there."""
NAME = re.compile(r"[\w*.-]+(?:/[\w*.-]+)*/?")


def map_of(readme: str) -> str:
    """The text block whose lines begin with train.py and dataset/; empty when there is none."""
    blocks: list[str] = re.findall(r"^```\w*\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL)
    return next((block for block in blocks if {"train.py", "dataset/"} <= {line.split(" ")[0] for line in block.splitlines()}), "")


def named(tree: str, present: set[str]) -> Iterator[str]:
    """Every path that a map names: `folder/  phrase`, and indented or in the phrase `file.py`. Raises ValueError for what is not there.

    A file in a phrase may also be meant from the root (`train.py as a user runs it`).
    """
    folders = {str(parent) for path in present for parent in Path(path).parents}
    inside: list[tuple[int, str]] = []  # indentation, folder
    for line in filter(str.strip, tree.splitlines()):
        indentation = len(line) - len(line.lstrip(" │├└─"))
        while inside and inside[-1][0] >= indentation:
            inside.pop()
        at = inside[-1][1] if inside else ""
        for position, word in enumerate(line.strip(" │├└─").split()):
            name = word.strip("`,;:()")
            if not NAME.fullmatch(name) or not name.endswith(("/", ".py", ".sh", ".yaml")) or "*" in name:
                continue
            here = next((path for path in (f"{at}{name}", name) if path in present or path.rstrip("/") in folders), None)
            if here is None:
                raise ValueError(f"the map names {at}{name}, which is not there")
            if position == 0 and name.endswith("/"):
                inside.append((indentation, here))
                at = here
            yield here


def faults(readme: str, present: set[str]) -> list[str]:
    """What is wrong with a README's map of files that are `present`."""
    try:
        found = set(named(map_of(readme), present))
    except ValueError as error:
        return [str(error)]
    wanted = {path for path in present if path.endswith((".py", ".sh")) and not path.endswith("__init__.py")}
    wanted = {f"{path.split('/')[0]}/" if path.split("/")[0] in FOLDER_IS_ENOUGH else path for path in wanted}
    return [f"the map does not name {path}" for path in sorted(wanted - found)]


def test_the_map_in_the_readme_is_true() -> None:
    wrong = faults((ROOT / "README.md").read_text(encoding="utf-8"), {str(path) for path in files() if path.parts[0] != ".ci"})
    assert not wrong, "\n".join(wrong)


PRESENT = {
    "train.py",
    "dataset/__init__.py",
    "plan/epoch.py",
    "dataset/sources/folder.py",
    "loaders/images/_pipeline.py",
    "tests/unit/x.py",
}
MAP = """# saturate

```bash
python train.py
```

```text
train.py          composition root
dataset/          WHAT exists
  plan.py         rows
  sources/        row -> path: folder.py,
                  and more
loaders/          rows -> batch; what several share: `_dali.py`
tests/            unit/ (fast), and train.py as a user runs it
```
"""


def test_a_true_map_has_no_faults() -> None:
    assert faults(MAP, PRESENT) == []


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("  plan.py         rows\n", "", "does not name plan/epoch.py"),
        ("  plan.py ", "  plans.py", "names dataset/plans.py, which is not there"),
        (" folder.py,", "", "does not name dataset/sources/folder.py"),
        ("  sources/ ", "  sauces/ ", "names dataset/sauces/, which is not there"),
        ("  plan.py         rows\n", "  plan.py         rows\n  old.py          gone\n", "names dataset/old.py"),
        ("`_dali.py`", "_dali.py, _cuda.py", "names loaders/_cuda.py"),
        ("tests/  ", "        ", "unit/, which is not there"),
        ("dataset/          WHAT", "              dataset WHAT", "does not name"),
    ],
)
def test_a_planted_fault_in_the_map_is_found(before: str, after: str, said: str) -> None:
    assert before in MAP
    assert any(said in fault for fault in faults(MAP.replace(before, after), PRESENT))


def test_a_new_file_must_be_named() -> None:
    assert faults(MAP, PRESENT | {"engine/new.py"}) == ["the map does not name engine/new.py"]
    assert faults("no map", PRESENT), "no map at all"
