"""`python -m benchmarks losses FILE`: the losses of every case of `losses.yaml`, to the last bit, a line a case.

    python -m benchmarks losses now.txt                                  runs all cases, some 5 s each
    python -m benchmarks losses now.txt --against benchmarks/losses.txt  and names those that differ

A move or a type leaves them equal. A line has the case, the losses of its steps, the figures of its validations,
and the digest of the weights that it has trained. The cases use the CPU alone, and one thread of OpenMP: with
another machine or torch the numbers are others.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

ROOT = Path(__file__).resolve().parents[1]
CASES = Path(__file__).with_suffix(".yaml")
LIMIT_S = 600.0


def prepare(commands: list[str], folder: Path) -> None:
    """Draw the sets of the cases in `folder`, once."""
    if (folder / "drawn").exists():
        return
    for command in commands:
        subprocess.run(
            [sys.executable, *command.split()],
            check=True,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
        )
    (folder / "drawn").touch()


def losses(run: Path) -> str:
    """Return what a run has computed: losses, figures, and the first digits of a SHA-256 of its weights."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    said = [repr(loss) for record in records for loss in record.get("losses", ())]
    said += [
        f"{name}={value!r}"
        for record in records
        if record["kind"] == "val"
        for name, value in record.items()
        if isinstance(value, float) and name != "seconds"
    ]
    checkpoint = run / "last.pt"
    if checkpoint.exists():
        weights = torch.load(checkpoint, map_location="cpu", weights_only=True)["model"]
        digest = hashlib.sha256()
        for name, value in sorted(weights.items()):
            digest.update(name.encode())
            digest.update(value.contiguous().view(-1).view(torch.uint8).numpy())
        said.append(digest.hexdigest()[:16])
    return " ".join(said)


def run_folder(folder: Path) -> Path:
    """Return where this process has its runs: others may use the same sets."""
    return folder / f"run-{os.getpid()}"


def words_of(part: str, table: dict[str, Any], folder: Path) -> list[str]:
    """Return the words behind `python` of one run of a case."""
    ranks, _, part = part.strip().rpartition(" ranks ")
    base, _, flags = part.partition(" ")
    line = f"train.py {table['all']} {table['bases'][base]} {flags}"
    words = line.format(sets=folder, run=run_folder(folder)).split()
    if not ranks:
        return words
    torchrun = "-m torch.distributed.run --standalone --nproc-per-node"
    return [*torchrun.split(), ranks, *words]


def measured(case: str, table: dict[str, Any], folder: Path) -> str:
    """Run a case; return what it has computed, or how it failed."""
    run = run_folder(folder)
    shutil.rmtree(run, ignore_errors=True)
    for part in case.split(";"):
        words = words_of(part, table, folder)
        ended = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "XDG_CACHE_HOME": f"{folder}/cache",
            },
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        if ended.returncode:
            last = (ended.stderr.strip().splitlines() or ["no line"])[-1]
            return f"exit {ended.returncode}: {last}"
    newest = max(run.rglob("metrics.jsonl"), key=os.path.getmtime)
    return losses(newest.parent)


def read(file: Path) -> dict[str, str]:
    """Return the lines of a file of losses by case; none where there is no file."""
    if not file.exists():
        return {}
    parts = (line.partition(" ") for line in file.read_text().splitlines())
    return {name: said for name, _, said in parts}


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0; 1 where a case failed, or differs from its line of --against."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help="cases that it has are not run again")
    parser.add_argument("--against", type=Path, help="losses of another commit")
    parser.add_argument("--only", default="", help="a regular expression of names")
    settings = parser.parse_args(arguments)
    table = yaml.safe_load(CASES.read_text())
    done = read(settings.file)
    wanted = {
        name: case
        for name, case in table["cases"].items()
        if re.search(settings.only, name)
    }
    folder = Path(tempfile.gettempdir(), "saturate-losses")
    folder.mkdir(exist_ok=True)
    prepare([line.format(sets=folder) for line in table["sets"]], folder)
    for name in wanted:
        if name in done:
            continue
        done[name] = measured(wanted[name], table, folder)
        lines = [f"{case} {done[case]}\n" for case in table["cases"] if case in done]
        settings.file.write_text("".join(lines))
        print(name, done[name].rpartition(" ")[2], flush=True)
    failed = [name for name in wanted if done[name].startswith("exit ")]
    before = read(settings.against) if settings.against else {}
    differ = [name for name in wanted if done[name] != before.get(name, done[name])]
    for name in failed + differ:
        print(f"{name}: {done[name]}")
    print(f"{len(wanted)} cases, {len(failed)} failed, {len(differ)} differ")
    return 1 if failed or differ else 0


if __name__ == "__main__":
    sys.exit(main())
