"""Mutants: one token of the product is changed, and its tests run. A mutant that they all pass is a claim that none of
them makes.

    python -m benchmarks.mutants [--count 300] [--seed 0] [--only REGEX] [--alive tests|suite]

The tests of a file are those that name its module, and those of ALSO, the quick ones first, as many as fit LIMIT_S.
A row each goes to mutants.jsonl, and the same command goes on from there; a mutant whose line has changed
is tried anew. `--alive` tries those again that were alive, by their tests or by all. What runs at import stays.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import io
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("mutants.jsonl")
LIMIT_S = 40.0
"""Longest that the tests of a mutant take without it."""
HANGS_S = 3 * LIMIT_S
"""Longest that they may take with it: then it has made something wait."""
SUITE_S = 3600.0
MUTATED = (
    "saturate/plan/*.py",
    "saturate/dataset/stores/*.py",
    "saturate/dataset/scan/*.py",
    "saturate/dataset/*/scan.py",
    "saturate/dataset/val_split.py",
    "saturate/engine/step.py",
    "saturate/engine/schedules.py",
    "saturate/engine/validation.py",
    "saturate/engine/checkpoint.py",
    "saturate/tasks/*.py",
    "saturate/report/what_if.py",
    "saturate/system/storage.py",
)
"""What is mutated: files that say what is right, and not how it looks."""
ALSO = {
    "plan/": "unit/test_plan unit/test_plans unit/test_checks unit/test_recipes conformance/test_plans",
    "stores/": "conformance/test_sources unit/test_arrow_source unit/test_lmdb_source unit/test_tar_source",
    "remote|disk_cache|read_ahead|bucket|mirror": "unit/test_remote unit/test_remote_s3",
    "scan/": "unit/test_scan unit/test_lists unit/test_own_data unit/test_classification unit/test_names",
    "coco": "unit/test_coco_scoring unit/test_coco_scan unit/test_instances unit/test_coco_layouts",
    "detection|coco|boxes": "unit/test_detection_task unit/test_instances unit/test_detection_run",
    "superres|fidelity|pairs": "unit/test_superres_task unit/test_superres_data unit/test_superres_loader",
    "video|clips": "unit/test_clips unit/test_video_task unit/test_video_scan unit/test_clip_loaders",
    "engine/": "unit/test_checkpoint unit/test_loop unit/test_step unit/test_schedules unit/test_graphed",
    "tasks/": "unit/test_classification unit/test_targets unit/test_fine_tuning unit/test_report_pictures",
    "mixing": "unit/test_mixing",
}
"""Pattern of files -> tests that make claims about them and do not name them."""
NO_TESTS = "code 5"
"""What pytest ends with where a file has no tests here."""
PRELOADED = ["torch", "torchvision", "numpy", "PIL.Image", "pydantic", "yaml", "pytest"]
"""What takes seconds to import, and is none of ours: imported once, and forked for each mutant."""
INSTEAD = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "in": "not in", "is": "is not",
    "+": "-", "-": "+", "*": "+", "/": "*", "//": "*", "%": "*", "**": "*", "and": "or", "or": "and",
    "&": "|", "|": "&", "^": "&", "<<": ">>", ">>": "<<", "+=": "-=", "-=": "+=", "*=": "+=", "|=": "&=",
    "min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor", "rint": "floor",
    "True": "False", "False": "True", "break": "continue",
}  # fmt: skip
"""A token -> what stands in its place; numbers grow by one."""


class Mutant(NamedTuple):
    """A token of a file at (line, column), both as tokenize counts them, and what is put in its place."""

    file: str
    line: int
    column: int
    was: str
    now: str
    text: str  # of the line

    @property
    def key(self) -> str:
        """What stays the same while other lines change."""
        return "|".join([self.file, self.text, str(self.column), self.now])


def mutants_of(file: str, source: str) -> list[Mutant]:
    """Return all mutants of a file."""
    lines = source.splitlines()
    tree = ast.parse(source)
    wanted = {position for node in _bodies(tree) for position in _positions(node)}
    found = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        now = INSTEAD.get(token.string, "")
        if token.type == tokenize.NUMBER:
            is_whole = token.string.isdecimal()
            now = f"{int(token.string) + 1}" if is_whole else f"(1 + {token.string})"
        line, column = token.start
        # two words are one operator: "not in", and "is not"
        is_half = re.search(r"not $", token.line[:column]) or re.match(
            "is not", token.line[column:]
        )
        if now and token.start in wanted and not is_half:
            text = lines[line - 1].strip()
            found.append(Mutant(file, line, column, token.string, now, text))
    return found


def _bodies(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements of all functions."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from node.body


def _positions(node: ast.AST) -> Iterator[tuple[int, int]]:
    """Yield where tokens begin whose change keeps the syntax, but for those of annotations."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_params", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _positions(child)
    if isinstance(node, (ast.Constant, ast.Name, ast.Break)):
        yield (node.lineno, node.col_offset)
    elif isinstance(node, ast.Attribute):
        yield (node.value.end_lineno or 0, (node.value.end_col_offset or 0) + 1)
    elif isinstance(node, ast.BinOp):
        yield from _between(node.left, node.right)
    elif isinstance(node, ast.AugAssign):
        yield from _between(node.target, node.value)
    elif isinstance(node, ast.BoolOp):
        yield from _between(*node.values[:2])
    elif isinstance(node, ast.Compare):
        yield from _between(node.left, node.comparators[0])


def _between(left: ast.expr, right: ast.expr) -> Iterator[tuple[int, int]]:
    """Yield all places between two operands: an operator begins at one of them."""
    begin = (left.end_lineno or 0, left.end_col_offset or 0)
    end = (right.lineno, right.col_offset)
    for line in range(begin[0], end[0] + 1):
        first = begin[1] if line == begin[0] else 0
        last = end[1] if line == end[0] else 120
        yield from ((line, column) for column in range(first, last))


def chosen(count: int, seed: int, only: str) -> list[Mutant]:
    """Return so many of all mutants, drawn by a hash: more of them are the same ones and others."""
    files = sorted({path for pattern in MUTATED for path in ROOT.glob(pattern)})
    every = [
        mutant
        for path in files
        for mutant in mutants_of(str(path.relative_to(ROOT)), path.read_text("utf-8"))
    ]
    drawn = sorted(
        every, key=lambda one: hashlib.sha256(f"{seed} {one.key}".encode()).digest()
    )
    return [one for one in drawn[:count] if re.search(only, one.file)]


def tests_of(file: str) -> list[str]:
    """Return the test files that name a module, and those of its room's name."""
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    room, _, name = module.rpartition(".")
    says = re.compile(
        rf"{re.escape(module)}\b|from {re.escape(room)} import[^\n]*\b{name}\b"
    )
    paths = (ROOT / "tests").glob("*/test_*.py")
    naming = {
        str(path.relative_to(ROOT))
        for path in paths
        if path.parent.name != "gpu" and says.search(path.read_text("utf-8"))
    }
    also = [words for where, words in ALSO.items() if re.search(where, file)]
    named = (f"tests/{name}.py" for words in also for name in words.split())
    return sorted(naming.union(named))


# --- a run of tests, in a process that is forked -------------------------------------------------------------------


class _Watcher:
    """The first test that failed, as pytest tells."""

    failed = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid

    pytest_collectreport = pytest_runtest_logreport


def _tested(tree: Path, words: Sequence[str], answer: Any) -> None:
    """Run pytest in a tree, and send the first failure."""
    os.setsid()
    os.chdir(tree)
    sink = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(sink, number)
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("saturate", "benchmarks", "tests"):
            del sys.modules[name]
    sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", str(ROOT)))]  # fmt: skip
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    import pytest

    watcher = _Watcher()
    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *words], [watcher])
    answer.send(watcher.failed or (f"code {int(code)}" if code else ""))


def run_tests(tree: Path, words: Sequence[str], limit_s: float) -> str:
    """Return the first test that fails in a tree, or that they took too long; "" where all pass."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_tested, args=(tree, words, there))
    process.start()
    there.close()
    try:
        if not here.poll(limit_s):
            return "time"
        return str(here.recv())
    except EOFError:
        return "ended"
    finally:
        # with all that it has started
        with suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()


def quick_tests(tree: Path, file: str, seconds: dict[str, float]) -> list[str]:
    """Return the tests of a file that pass without a change and fit into the limit, the quick ones first."""
    words = tests_of(file)
    for name in words:
        if name not in seconds:
            began = time.monotonic()
            failed = run_tests(tree, [name], SUITE_S).replace(NO_TESTS, "")
            seconds[name] = time.monotonic() - began
            if failed:
                print(f"mutants: {failed} fails without a change", flush=True)
                seconds[name] = LIMIT_S
            _keep({"test": name, "seconds": round(seconds[name], 1)})
    fitting, total = [], 0.0
    for name in sorted(words, key=seconds.__getitem__):
        total += seconds[name]
        if total < LIMIT_S:
            fitting.append(name)
    return fitting


def _keep(row: dict[str, Any]) -> None:
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def tried(tree: Path, mutant: Mutant, words: Sequence[str], limit_s: float) -> str:
    """Return what has killed a mutant; "" if it is alive."""
    path = tree / mutant.file
    source = path.read_text("utf-8")
    lines = source.splitlines(keepends=True)
    line = lines[mutant.line - 1]
    begin, end = mutant.column, mutant.column + len(mutant.was)
    lines[mutant.line - 1] = line[:begin] + mutant.now + line[end:]
    path.write_text("".join(lines), "utf-8")
    try:
        return run_tests(tree, words, limit_s)
    finally:
        path.write_text(source, "utf-8")


def report(rows: Iterable[dict[str, Any]]) -> None:
    """Print how many mutants of each file were killed, and those that are alive."""
    counts: dict[str, Counter[bool]] = {}
    for row in rows:
        counts.setdefault(row["file"], Counter())[bool(row["killed"])] += 1
    for file, count in sorted(counts.items()):
        print(f"{file:44} {count[True]:3} of {count.total():3}")
    killed = sum(count[True] for count in counts.values())
    total = sum(count.total() for count in counts.values())
    print(f"killed: {killed} of {total}, {killed / max(total, 1):.0%}")
    for row in rows:
        if not row["killed"]:
            where = f"{row['file']}:{row['line']}"
            print(f"alive: {where}: {row['was']} -> {row['now']}: {row['text']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="pattern of the files")
    parser.add_argument(
        "--alive", choices=("tests", "suite"), help="try what was alive again"
    )
    asked = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    seconds: dict[str, float] = {}
    if RESULTS.exists():
        for line in RESULTS.read_text("utf-8").splitlines():
            row = json.loads(line)
            if "test" in row:
                seconds[row["test"]] = row["seconds"]
            else:
                rows[row["key"]] = row
    wanted = chosen(asked.count, asked.seed, asked.only)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(tree)], check=True)
        try:
            # one file after another: its tests are known then
            for mutant in sorted(wanted):
                row = rows.get(mutant.key, {})
                if row and (row["killed"] or not asked.alive):
                    continue
                by_all = bool(row) and asked.alive == "suite"
                began = time.monotonic()
                words = ["tests"] if by_all else quick_tests(tree, mutant.file, seconds)
                limit_s = SUITE_S if by_all else HANGS_S
                killed = tried(tree, mutant, words, limit_s) if words else ""
                row = mutant._asdict() | {"key": mutant.key, "killed": killed}
                row["seconds"] = round(time.monotonic() - began, 1)
                rows[mutant.key] = row
                _keep(row)
                where = f"{mutant.file}:{mutant.line} {mutant.was} -> {mutant.now}"
                print(f"{where}: {killed or 'alive'}", flush=True)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    report([rows[one.key] for one in wanted])


if __name__ == "__main__":
    main()
