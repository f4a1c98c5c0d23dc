"""Commands of the pages are read by today's programs: no flag, preset, suite or table is of an older day."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from benchmarks import bench, lists, pairs, planted, published
from saturate.__main__ import ELSEWHERE
from saturate.run import tune
from saturate.settings import config
from saturate.settings.cli import flags

ROOT = Path(__file__).parents[2]
PAGES = {
    str(page.relative_to(ROOT)): page.read_text(encoding="utf-8")
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
    # one also tells of flags that are gone, and docstrings in the other name commands in general
    if page.name not in ("changes.md", "map.md")
}
FENCED = re.compile(r"^```(?:bash|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"N|B|LARGEST|\$n")
"""What the pages have in place of a number."""
ASKS_ALONE = ("--help", "--help-all", "SUITE")
BETWEEN = re.compile(r"(?:;|&&?|\|\|?)(?=\s|$)")


class Parsed(BaseException):
    """An argparse program has taken its flags."""


OF_SETTINGS: dict[str, Any] = {
    "benchmarks.lists": lists.Lists,
    "benchmarks.pairs": pairs.Pairs,
    "benchmarks.planted": planted.Planted,
}
"""Program -> its flags, where these are no parser of argparse."""


def lines(text: str) -> Iterator[str]:
    """Yield each line of the blocks of a page, and what is code in its sentences."""
    for block in FENCED.findall(text):
        yield from block.replace("\\\n", " ").splitlines()
    sentences = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from (" ".join(code.split()) for code in re.findall(r"`([^`]+)`", sentences))


def programs(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the programs of ours that a page calls, with their words; what is in [] may be given."""
    for line in lines(text):
        value = re.fullmatch(r'\w+="(.*)"', line)
        line = re.sub(r"\[(--[^\]]*)\]", r"\1", value[1] if value else line)
        for command in BETWEEN.split(re.sub(r"\s#\s.*", "", line)):
            try:
                words = [
                    "8" if NUMBER.fullmatch(word) else word
                    for word in shlex.split(command)
                ]
            except (
                ValueError
            ):  # a quote that goes on in the next line: no program of ours has one
                continue
            for at, word in enumerate(words):
                if (
                    word == "train.py"
                    or (at > 0 and words[at - 1] == "-m")
                    or (word, at) == ("saturate", 0)
                ):
                    yield named(word, words[at + 1 :])
                    break


def named(program: str, words: list[str]) -> tuple[str, list[str]]:
    """Return the program that a command starts, of several in one, and the words that are for it."""
    if program == "saturate" and words:
        name, *words = words
        if name in ("train", "predict"):
            return "train.py", words
        if (ROOT / f"scripts/{name}.py").is_file():
            return f"scripts.{name}", words
        return ELSEWHERE.get(name, f"saturate.run.{name}"), words
    if program == "benchmarks" and words and words[0] in bench.PROGRAMS:
        name, *words = words
        return f"benchmarks.{name.replace('-', '_')}", words
    return program, words


def read(program: str, words: list[str]) -> None:
    """Have a program take its flags. Raises what it raises where it does not."""
    at = words.index("--") if "--" in words else len(words)
    if not words or set(ASKS_ALONE) & {*words}:
        return
    if program == "train.py":
        config.parse(words)
    elif program == "benchmarks":
        suite = bench.suite_of(words[0])
        flags(suite.settings, bench.with_flags(words[1:]), prog="bench")
    elif program == "scripts.tune":
        behind = [f"--flags={shlex.join(words[at + 1 :])}"] if at < len(words) else []
        tune.recipe_of(flags(tune.Tune, [*words[:at], *behind], prog="tune"))
    elif program in OF_SETTINGS:
        flags(OF_SETTINGS[program], words, prog=program)
    elif program == "benchmarks.published":
        chosen = flags(published.Published, words[1:at], prog="published").tables
        tables = {table["name"]: table for table in published.read(words[0])["tables"]}
        for table in [tables[name] for name in chosen] or tables.values():
            suite = bench.suite_of(table["suite"])
            given = [*published.words(published.settled(table, 0)[0]), *words[at + 1 :]]
            flags(suite.settings, given, prog=suite.name)
    elif program.startswith(("scripts.", "benchmarks.", "saturate.run.")):
        main = import_module(program).main
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", [program, *words])
            with pytest.raises(Parsed):
                main()


@pytest.fixture(autouse=True)
def _no_program_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = argparse.ArgumentParser.parse_args

    def parse_args(self: argparse.ArgumentParser, *given: Any) -> NoReturn:
        taken(self, *given)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_read(page: str) -> None:
    for program, words in programs(PAGES[page]):
        try:
            read(program, words)
        except (Exception, SystemExit) as error:
            if "lr.yaml: No such file" in str(error):  # what the command before writes
                continue
            pytest.fail(f"{program} {shlex.join(words)}: {error}")


@pytest.mark.parametrize(
    "path", [*ROOT.glob("configs/planted/*.yaml")], ids=lambda path: path.stem
)
def test_planted_cases_are_read(path: Path) -> None:
    for case in yaml.safe_load(path.read_text(encoding="utf-8")):
        for more in (case.get("plant", ""), case.get("change", "")):
            words = shlex.split(f"{planted.BASE} {case['flags']} {more}")
            asked = config.parse(words).augmentation.transforms
            if asked is not None:
                module, _, function = asked.partition(":")
                assert callable(getattr(import_module(module), function))


def test_one_gpu_is_started_by_python_and_several_by_torchrun() -> None:
    texts = dict(PAGES)
    for path in (*ROOT.glob("configs/**/*.yaml"), ROOT / "scripts" / "demo.sh"):
        texts[str(path)] = path.read_text(encoding="utf-8")
    counts = [
        count
        for text in texts.values()
        for count in re.findall(r"--nproc-per-node[ =](\w+)", text)
    ]
    assert "8" in counts and "1" not in counts
    starts = [line for text in texts.values() for line in text.splitlines()]
    starts = [line for line in starts if "torchrun" in line and "train.py" in line]
    for line in starts:
        assert re.search(r"--nproc-per-node|--nnodes|\d hosts|rank", line), line


def test_modules_that_blocks_import_are_there() -> None:
    named = {
        pair
        for text in PAGES.values()
        for block in FENCED.findall(text)
        for pair in re.findall(r"\bfrom (\w+(?:\.\w+)+) import (\w+)", block)
    }
    assert ("saturate.dataset.coco.scan", "open_coco") in named
    for module, name in named:
        assert hasattr(import_module(module), name), f"{module} has no {name}"


def test_all_programs_are_found() -> None:
    found = [program for text in PAGES.values() for program, _ in programs(text)]
    for program in (
        "train.py",
        "scripts.tune",
        "benchmarks",
        "benchmarks.published",
        "benchmarks.link_set",
    ):
        assert found.count(program) > 3, program


@pytest.mark.parametrize(
    "line",
    [
        "python train.py --data D --bach-size 8",
        'L="python -m benchmarks loader --gpus two"',
        "python -m benchmarks link-set A B --number 3",
    ],
)
def test_a_planted_command_is_refused(line: str) -> None:
    *before, (program, words) = programs(f"```bash\n{line}\n```\n")
    for known in before:
        read(*known)
    with pytest.raises((Exception, SystemExit)):
        read(program, words)
