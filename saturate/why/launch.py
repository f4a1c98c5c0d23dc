"""`saturate why [flags] -- PROGRAM`: starts a program that is not ours, measures it, and says why it is slow.

    saturate why -- train.py --their flags       also -- -m their.module, and -- torchrun ... train.py
    torchrun ... -m saturate.why -- train.py     every rank

Exit code 0: it was measured; 2: it was not, and a line says why; its own where it fails by itself.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from saturate.why import hooks, undo, verdict
from saturate.why.hooks import GO_ON, RESULT

START = Path(__file__).with_name("start")
POLLS_EVERY_S = 0.2


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="saturate why",
        usage="saturate why [flags] -- PROGRAM [its flags]",
        description=(__doc__ or "").partition("\n\n")[0],
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=3.0,
        help="of a window; there are nine. Default: 3",
    )
    parser.add_argument(
        "--samples", type=int, help="in a batch, where that cannot be seen in it"
    )
    parser.add_argument("--json", type=Path, help="file to write all figures to")
    parser.add_argument(
        "--then",
        choices=("stop", GO_ON),
        default="stop",
        help="what the program does once it was measured. Default: stop",
    )
    at = given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:at])
    words = given[at + 1 :]
    if not words:
        parser.error("name a program behind --")
    if not 0 < options.seconds < math.inf:
        parser.error(f"--seconds {options.seconds:g}: a window takes time, and ends")
    if options.samples is not None and options.samples < 1:
        parser.error(f"--samples {options.samples}: a batch has one or more")
    if options.json and not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: there is no such folder")
    if options.json and options.json.is_dir():
        parser.error(f"--json {options.json}: it is a folder; name a file")
    if words[0] == "-m" or words[0].endswith(".py"):
        words = [sys.executable, *words]
    if not sys.platform.startswith("linux"):
        return refused("it needs Linux, which tells what processes wait for")
    folder = Path(tempfile.mkdtemp(prefix="saturate-why-"))
    try:
        code = ran(words, folder, options)
        undone = undo.back(folder)
        if not (folder / RESULT).exists():
            for title, text in verdict.of_files(undone).items():
                print(f"saturate why: {title}: {text}", file=sys.stderr)
            return code or refused(f"not measured: {why_not(folder)}")
        if options.then == GO_ON:
            return code
        tell(folder, options, undone)
        # it was ended in its own way, which may be another code
        return 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def tell(folder: Path, options: Any, undone: undo.Undone) -> None:
    """Print the table, once for all ranks, and write --json."""
    ranks = json.loads((folder / RESULT).read_text())
    result = verdict.summary(ranks) | undone._asdict()
    if int(os.environ.get("RANK", 0)) == 0:
        print("\n".join(verdict.lines(result)), flush=True)
        if options.json:
            options.json.write_text(json.dumps({**result, "ranks": ranks}, indent=2))


def ran(words: Sequence[str], folder: Path, options: Any) -> int:
    """Run the program with hooks; return its exit code. Of one that goes on the table is printed meanwhile."""
    paths = [str(START), *filter(None, [os.environ.get("PYTHONPATH")])]
    asked = {name: getattr(options, name) for name in ("seconds", "samples", "then")}
    # of torchrun's ranks, which are no neighbours of each other, what has started them
    asked["launcher"] = os.getppid() if "LOCAL_RANK" in os.environ else os.getpid()
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        hooks.FOLDER: str(folder),
        hooks.ASKED: json.dumps(asked),
    }
    try:
        process = subprocess.Popen(words, env=environment)
    except OSError as error:
        return refused(f"{words[0]}: {error.strerror}")
    # Ctrl-C reaches the program, too, and this one says what came of it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
    while (code := process.poll()) is None:
        time.sleep(POLLS_EVERY_S)
        if options.then == GO_ON and (folder / RESULT).exists():
            tell(folder, options, undo.Undone())
            code = process.wait()
            break
    return 128 - code if code < 0 else code


def why_not(folder: Path) -> str:
    """Return why a program that has ended well was not measured."""
    with suppress(FileNotFoundError):
        return (folder / hooks.UNMEASURED).read_text()
    return "no loader was seen: a DataLoader, DALI's iterator, or saturate.why.watch(loader)"


def refused(why: str) -> int:
    """Say why nothing was measured, and return the exit code."""
    print(f"saturate why: {why}", file=sys.stderr)
    return 2
