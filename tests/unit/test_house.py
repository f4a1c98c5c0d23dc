"""The rules of the house, each with its plant."""

from __future__ import annotations

import ast
import contextlib
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
    "__init__": set(),
    "contracts": set(),
    "system": {"contracts"},  # for the error that it raises
    "settings": {"contracts", "system"},
    "plan": {"contracts"},
    "models": {"system"},
    "dataset": {"contracts", "system", "plan.draws", "settings.data"},
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
    "why": {"contracts", "system", "report"},
}
"""Room of saturate/ -> the rooms, or single modules, that it may import."""
MAY_IMPORT["run"] = {*MAY_IMPORT}
MAY_IMPORT["__main__"] = {"run", "settings", "system"}
INSIDE = {*MAY_IMPORT}
"""What is imported as saturate.NAME."""
OF_PROGRAMS = {*INSIDE, "scripts"}
EVERYTHING = {*OF_PROGRAMS, "benchmarks", "tests"}
MAY_IMPORT |= dict.fromkeys(("train", "predict", "scripts"), OF_PROGRAMS)
MAY_IMPORT |= dict.fromkeys(("benchmarks", "tests"), EVERYTHING)
FOR_HELP = {("settings/preflight.py", "tasks")}
"""What a file imports beyond that: tables of names, for --help-all alone."""


def text_of(path: Path | str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def files() -> Iterator[Path]:
    """Every file that git tracks, as a path from the root; without git those of the map."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    page = text_of("docs/map.md")
    names = listed.stdout.split("\0") or re.findall(r"^- `(.*)`", page, re.MULTILINE)
    yield from (Path(name) for name in names if name and (ROOT / name).is_file())


def python() -> list[Path]:
    return [path for path in files() if path.suffix == ".py"]


def names_no_test(pattern: str) -> bool:
    path, _, name = pattern.partition("::")
    tree = ast.parse(text_of(path))
    tests = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return not any(fnmatchcase(test, name.partition("[")[0]) for test in tests)


def test_sweeps_are_of_tests_that_are_there() -> None:
    assert [pattern for pattern in SWEEPS if names_no_test(pattern)] == []
    assert names_no_test("tests/unit/test_house.py::test_that_is_gone[*]")
    test = "tests/conformance/test_signals.py::test_ctrl_c"
    assert is_sweep(f"{test}[pyav]") and not is_sweep(f"{test}[dali-fed]")


def imported(source: str) -> Iterator[str]:
    """Every module that code imports, at its top, in a function, for types alone, or by name at run time."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "saturate":
            yield from (f"saturate.{alias.name}" for alias in node.names)
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


def within(path: Path) -> Path:
    """A file's path from the package on: of loaders/ and models/, which are links there, from the root."""
    return path.relative_to("saturate") if path.parts[0] == "saturate" else path


def trespasses(path: Path, source: str) -> list[str]:
    room = within(path).parts[0].removesuffix(".py")
    allowed = MAY_IMPORT[room] | {room, "__version__"}
    found = []
    for name in imported(source):
        module = name.removeprefix("saturate.")
        other = module.partition(".")[0]
        if name.startswith("."):
            found.append(f"{path} imports {name}: imports name the room")
        elif other in INSIDE and other == name.partition(".")[0]:
            found.append(f"{path} imports {name}: it is saturate.{name}")
        elif (
            (name.startswith("saturate.") or other in MAY_IMPORT)
            and not {other, module} & allowed
            and (str(within(path)), other) not in FOR_HELP
        ):
            found.append(f"{path} imports {name}")
    return found


def test_imports_run_one_way() -> None:
    assert {within(path).parts[0].removesuffix(".py") for path in python()} <= {
        *MAY_IMPORT
    }, "a new room needs a line in MAY_IMPORT"
    found = [line for path in python() for line in trespasses(path, text_of(path))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source", "wrong"),
    [
        (
            "saturate/engine/loop.py",
            "def f():\n    import saturate.loaders.images.torchvision as x",
            True,
        ),
        ("loaders/x.py", "import_module('saturate.tasks.classification')", True),
        ("saturate/dataset/x.py", "from ..manifest import Images", True),
        ("saturate/dataset/x.py", "from saturate.plan.epoch import EpochPlan", True),
        ("saturate/dataset/x.py", "from saturate import plan", True),
        ("saturate/dataset/x.py", "from saturate.plan.draws import key", False),
        ("saturate/engine/x.py", "from scripts import doctor", True),
        ("saturate/run/x.py", "from scripts import doctor", True),
        ("scripts/x.py", "from benchmarks.train import words", True),
        ("tests/unit/x.py", "import loaders", True),
        ("train.py", "from models.timm import names", True),
        ("models/x.py", "import torchvision.models, datasets, engine_room", False),
    ],
)
def test_a_planted_import_is_caught(path: str, source: str, wrong: bool) -> None:
    assert bool(trespasses(Path(path), source)) is wrong


def test_every_folder_is_a_package() -> None:
    """An installed package of that name would win over a folder without __init__.py."""
    packages = {path.parent for path in python() if path.name == "__init__.py"}
    assert {path.parent for path in python()} - packages == {Path()}


LONGEST = 80
"""Lines of a function of the package, without its docstring; a Triton kernel's arguments take a line each."""


def too_long(source: str) -> list[str]:
    """The functions of a module that are longer, with their lines."""

    def lines(node: ast.stmt) -> int:
        return (node.end_lineno or node.lineno) - node.lineno + 1

    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if any("triton.jit" in ast.unparse(one) for one in node.decorator_list):
                continue
            has_docstring = ast.get_docstring(node, clean=False) is not None
            count = lines(node) - (lines(node.body[0]) if has_docstring else 0)
            if count > LONGEST:
                found.append(f"{node.name} has {count} lines")
    return found


def test_no_function_is_longer_than_a_screen() -> None:
    found = [
        f"{path}: {line}"
        for path in python()
        if within(path).parts[0] not in ("benchmarks", "scripts", "tests")
        for line in too_long(text_of(path))
    ]
    assert not found, "\n".join(found)
    said = 'def f():\n    """What it does."""\n'
    assert too_long(said + (LONGEST - 1) * "    f()\n") == []
    assert too_long(said + LONGEST * "    f()\n") == ["f has 81 lines"]
    assert too_long("@triton.jit\n" + said + LONGEST * "    f()\n") == []


def backwards(source: str) -> int:
    nodes = ast.walk(ast.parse(source)) if ".backward" in source else ()
    return sum(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "backward"
        for node in nodes
    )


def test_one_training_step_in_the_repository() -> None:
    """benchmarks/baselines/train.py and benchmarks/why_*.py are what others write."""
    counts = {
        str(path): backwards(text_of(path))
        for path in python()
        if path.parts[0] != "tests"
    }
    assert {path: count for path, count in counts.items() if count} == {
        "saturate/engine/step.py": 1,
        "benchmarks/baselines/train.py": 1,
        "benchmarks/why_hooks.py": 1,
        "benchmarks/why_loop.py": 1,
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


def left_over(text: str) -> list[str]:
    return [
        match[0] for rule in (LEFT_OVER, OF_A_MACHINE) for match in rule.finditer(text)
    ]


def test_nothing_is_left_over_and_no_path_is_one_machines() -> None:
    for path in files():
        with contextlib.suppress(UnicodeDecodeError):
            assert not left_over(text_of(path)), path
    for planted in (
        "# TO" + "DO: later",
        "cd /wo" + "rk/main",
        "--data=/ho" + "me/anna/data",
    ):
        assert left_over(planted)
    assert not left_over("ENV HOME=/home/saturate/x https://example.org/wo" + "rk/x")


def test_the_table_of_facts_is_what_its_program_writes() -> None:
    page = text_of("docs/rates.md")
    assert page == make_map.rates(page), "python -m scripts.make_map"


def test_the_map_is_what_its_program_writes() -> None:
    page = make_map.page(sorted(str(path) for path in files()))
    assert text_of("docs/map.md") == page, "python -m scripts.make_map"
