"""Mutants: one token of the product is changed, and its tests run. A mutant that they all pass is a claim that none of
them makes.

    python -m benchmarks.mutants --cover                 the suite once: which test runs which line, and for how long
    python -m benchmarks.mutants [--count 300] [--seed 0] [--only REGEX] [--workers 2] [--again]

The tests of a mutant are those of tests/unit and tests/conformance that run its statement, the quick ones first, as
many as fit LIMIT_S. A row each goes to mutants.jsonl, and the same command goes on from there; a mutant whose line has
changed is tried anew. `--again` tries those that were alive by all tests that run them. What runs at import stays, and
a test that fails without the mutant as well kills none.
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple
from xml.etree import ElementTree

from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("mutants.jsonl")
LIMIT_S = 40.0
"""Longest that the tests of a mutant take without it."""
SLOWER = 4
"""Times that with which they may take so much longer, and a start: then it has made something wait."""
START_S = 60.0
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
COVERED = ROOT / ".mutants"
"""What --cover found: coverage's own file, and pytest's times."""
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
    nth: int = 0  # of those that are alike but for the line's number

    @property
    def key(self) -> str:
        """What stays the same while other lines change."""
        again = [str(self.nth)] if self.nth else []
        return "|".join([self.file, self.text, str(self.column), self.now, *again])


def mutants_of(file: str, source: str) -> list[Mutant]:
    """Return all mutants of a file."""
    lines = source.splitlines()
    tree = ast.parse(source)
    wanted = {position for node in _bodies(tree) for position in _positions(node)}
    found: dict[str, Mutant] = {}
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
            one = Mutant(file, line, column, token.string, now, text)
            while one.key in found:
                one = one._replace(nth=one.nth + 1)
            found[one.key] = one
    return [*found.values()]


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
            if isinstance(child, ast.AST) and not _is_check(node, child):
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


def _is_check(node: ast.AST, child: ast.AST) -> bool:
    """Whether a child is zip's strict, a check of what cannot be: no right program comes there."""
    if not isinstance(node, ast.Call) or not isinstance(child, ast.keyword):
        return False
    return isinstance(node.func, ast.Name) and node.func.id == "zip"


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


class Covered:
    """Which tests run a line of a file, as --cover has found."""

    def __init__(self, folder: Path) -> None:
        """Read a folder. Raises SystemExit where --cover has not made it, of this product."""
        wanted = folder / "times.xml", folder / "coverage"
        if not all(path.exists() for path in wanted):
            sys.exit("mutants: run it with --cover first")
        commit = (folder / "commit").read_text()
        words = ["git", "-C", str(ROOT), "diff", "--quiet", commit, "HEAD", "--"]
        words += [f":(glob){pattern}" for pattern in MUTATED]
        if subprocess.run(words).returncode:
            sys.exit(
                f"mutants: the product has changed since --cover, at {commit:.8}: run it with --cover again"
            )
        self._data = CoverageData(str(folder / "coverage"))
        self._data.read()
        self._files = {
            path[path.rindex("/saturate/") + 1 :]: path
            for path in self._data.measured_files()
        }
        self.seconds = {
            f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}": float(
                case.get("time", 0)
            )
            for case in ElementTree.parse(folder / "times.xml").iter("testcase")
            if not len(case)  # else it was skipped, or has failed
        }

    def tests_of(self, mutant: Mutant, tree: ast.Module) -> list[str]:
        """Return the tests that run a mutant's statement, the quick ones first."""
        around = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.stmt)
            and node.lineno <= mutant.line <= (node.end_lineno or node.lineno)
        ]
        innermost = max(around, key=lambda node: node.lineno)
        body = getattr(innermost, "body", None)
        ends = body[0].lineno if body else (innermost.end_lineno or 0) + 1
        lines = self._data.contexts_by_lineno(self._files.get(mutant.file, ""))
        own = {line: lines.get(line, []) for line in range(innermost.lineno, ends)}
        # a process of their own runs it: what the tests of the file look at
        seen = own if any(own.values()) else lines
        contexts = {context for each in seen.values() for context in each}
        found = {context.rpartition("|")[0] for context in contexts}
        # what a fixture made is looked at by all tests of a file
        shared = {
            context.partition("::")[0]
            for context in contexts
            if context.endswith("|setup")
        }
        found |= {test for test in self.seconds if test.partition("::")[0] in shared}
        return sorted(found & {*self.seconds}, key=self.seconds.__getitem__)

    def within(self, tests: Sequence[str], limit_s: float) -> list[str]:
        """Return the first ones, as many as take no longer, and one at least."""
        total = accumulate(self.seconds[test] for test in tests)
        pairs = zip(tests, total, strict=True)
        return [test for test, until_s in pairs if until_s < limit_s] or [*tests[:1]]


def cover(tree: Path) -> None:
    """Run the tests once in a tree, and keep which of them runs which line."""
    COVERED.mkdir(exist_ok=True)
    (COVERED / "times.xml").unlink(missing_ok=True)
    head = ["git", "-C", str(tree), "rev-parse", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True, check=True).stdout
    (COVERED / "commit").write_text(commit.strip())
    settings = COVERED / "settings"
    settings.write_text(f"[run]\nsource = saturate\ndata_file = {COVERED}/coverage\n")
    words = ["--cov=saturate", "--cov-context=test", f"--cov-config={settings}"]
    words += ["--cov-report=", f"--junitxml={COVERED}/times.xml", "-q", "-n", "2"]
    tests = ["tests/unit", "tests/conformance"]
    subprocess.run([sys.executable, "-m", "pytest", *words, *tests], cwd=tree)


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
            how = "alive" if row["tests"] else "no test runs it"
            where = f"{row['file']}:{row['line']}"
            print(f"{how}: {where}: {row['was']} -> {row['now']}: {row['text']}")


@contextmanager
def worktree() -> Iterator[Path]:
    """Make a worktree of what is committed, and remove it."""
    git = ["git", "-C", str(ROOT), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        subprocess.run([*git, "add", "-q", "--detach", str(tree)], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--cover", action="store_true", help="run the suite once")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="pattern of the files")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="those that were alive")
    asked = parser.parse_args()
    if asked.cover:
        with worktree() as tree:
            cover(tree)
        return
    covered = Covered(COVERED)
    rows: dict[str, dict[str, Any]] = {}
    for line in RESULTS.read_text("utf-8").splitlines() if RESULTS.exists() else ():
        row = json.loads(line)
        rows[row["key"]] = row
    wanted = chosen(asked.count, asked.seed, asked.only)
    trees: SimpleQueue[Path] = SimpleQueue()
    innocent: dict[tuple[str, ...], bool] = {}

    def work(mutant: Mutant) -> None:
        tree = trees.get()
        try:
            began = time.monotonic()
            parsed = ast.parse((tree / mutant.file).read_text("utf-8"))
            words = covered.tests_of(mutant, parsed)
            if not asked.again:
                words = covered.within(words, LIMIT_S)
            limit_s = START_S + SLOWER * sum(covered.seconds[word] for word in words)
            killed = tried(tree, mutant, words, limit_s) if words else ""
            if killed:
                # a test may fail because of those before it
                upto = words.index(killed) + 1 if killed in words else len(words)
                blamed = tuple(words[:upto])
                if blamed not in innocent:
                    innocent[blamed] = not run_tests(tree, blamed, limit_s)
                if not innocent[blamed]:
                    print(
                        f"{mutant.key}: not tried, {killed} fails without it",
                        flush=True,
                    )
                    return
        finally:
            trees.put(tree)
        row = mutant._asdict() | {"key": mutant.key, "killed": killed}
        row |= {"tests": len(words), "seconds": round(time.monotonic() - began, 1)}
        rows[mutant.key] = row
        _keep(row)
        where = f"{mutant.file}:{mutant.line} {mutant.was} -> {mutant.now}"
        print(f"{where}: {killed or 'alive'}", flush=True)

    todo = [
        mutant
        for mutant in wanted
        if not (row := rows.get(mutant.key)) or (asked.again and not row["killed"])
    ]
    with ExitStack() as stack:
        for _ in range(asked.workers):
            trees.put(stack.enter_context(worktree()))
        pool = stack.enter_context(ThreadPoolExecutor(asked.workers))
        for done in [pool.submit(work, mutant) for mutant in todo]:
            done.result()
    report([rows[one.key] for one in wanted if one.key in rows])
    print(f"not tried: {sum(one.key not in rows for one in wanted)}")


if __name__ == "__main__":
    main()
