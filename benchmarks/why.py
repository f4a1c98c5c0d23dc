"""Slow loops by a planted cause: is it named by `saturate why`, and does its prediction hold?

    python -m benchmarks.why IMAGES [--only REGEX] [--repeats 3] [--output FILE] [--traceml]
    python -m benchmarks.why --hooks [--repeats 3]

Each cause is a run of why_loop.py under `saturate why`, and where a change is predicted, `--repeats` runs with that
change really made, by the loop's own stopwatch.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.why_loop import converted

LOOP = Path(__file__).with_name("why_loop.py")
CORES = 2
"""Cores that a cause of a CPU's has."""


@dataclass(frozen=True)
class Cause:
    """Words of the loop that make it slow; `names` must be found in the verdict."""

    words: str
    names: str
    # what of the predictions is tried, a pattern, and the words that make that change
    change: str = ""
    changed: str = ""
    gpu: bool = False
    images: str = ""
    ranks: int = 1
    beside: int = 0  # busy processes of somebody else


BIG = "arch=resnet50 size=224 batch=128 memory=1"
CAUSES = {
    "slow reads": Cause("read_ms=20 step_ms=100", "read", "num_workers=8$", "workers=8"),
    "one worker": Cause("workers=1 read_ms=4 step_ms=100", "num_workers", "num_workers=2$", "workers=2"),
    "no worker": Cause("workers=0 step_ms=150", "num_workers", "num_workers=1$", "workers=1"),
    "too many workers": Cause("workers=24 batch=8", "num_workers=2: 24 hinder"),
    "heavy transform": Cause("blur=31", "GaussianBlur", "without GaussianBlur", "blur=0"),
    "large photographs": Cause("batch=4", "decode|decoding", "by torchvision", "decoder=torchvision", images="large"),
    "PNG": Cause("", "decode|decoding", "by torchvision", "decoder=torchvision", images="png"),
    "Python in the dataset": Cause("spin_ms=10", "dataset", "num_workers=4$", "workers=4"),
    "short epochs": Cause("samples=160 persistent=0", "persistent_workers", "persistent", "persistent=1"),
    "validation": Cause("validate_every=10", "validat"),
    "pictures": Cause("pictures=8 workers=1 size=32", "most of it is loop|loop, "),
    "slow rank": Cause("slow_rank_ms=20 step_ms=100 workers=1", "rank 1", ranks=2),
    "cores shared": Cause("step_ms=50", "[Oo]ther programs take", beside=4),
    "none": Cause("step_ms=150", "the step, which has its data"),
    "pageable copies": Cause(f"{BIG} pin=0", "pin_memory", "pin_memory", f"{BIG} pin=1", gpu=True),
    "item": Cause("arch=resnet18 size=64 batch=64 memory=1 item=4", r"why_loop.py:\d+ 4 x", gpu=True),
    "tiny batches": Cause("arch=resnet50 size=64 batch=4 memory=1", "launch", gpu=True),
    "fp32": Cause(f"{BIG} amp=0", "autocast", "autocast", "amp=1", gpu=True),
    "no channels_last": Cause(f"{BIG} channels_last=0", "channels_last", "channels_last", "channels_last=1", gpu=True),
    "few workers": Cause("arch=resnet50 size=224 workers=1", "num_workers", "num_workers=4$", "workers=4", gpu=True),
    "slow rank of two GPUs": Cause("slow_rank_ms=20 arch=resnet50 size=224", "rank 1", gpu=True, ranks=2),
    "GPU shared": Cause(BIG, "Another process uses this GPU", "this GPU alone", "pin=1", gpu=True, beside=1),
}  # fmt: skip

ALONE = Cause("", "")
"""A program that nothing disturbs, on a CPU's cores."""


def loop(cause: Cause, images: Path, words: str) -> list[str]:
    """Return the words of the loop."""
    folder = {"large": images / "large", "png": images / "png", "": images / "jpeg"}
    return [str(folder[cause.images]), *words.split()]


def command(cause: Cause, images: Path, words: str) -> list[str]:
    ranks = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={cause.ranks}"]  # fmt: skip
    launcher = [sys.executable, *(ranks if cause.ranks > 1 else [])]
    return [*launcher, str(LOOP), *loop(cause, images, words)]


def run(words: list[str], cause: Cause, code: int = 0) -> str:
    """Return what a program prints, on the cores and devices of a cause."""
    environment = dict(os.environ)
    if not cause.gpu:
        environment |= {"CUDA_VISIBLE_DEVICES": ""}
    cores = sorted(os.sched_getaffinity(0))[: None if cause.gpu else CORES]
    process = subprocess.Popen(
        words,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    try:
        printed, errors = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        # with all that it has started
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == code, errors[-2000:]
    return printed


def beside(cause: Cause, images: Path) -> list[subprocess.Popen[str]]:
    """Start what disturbs a cause."""
    cores = sorted(os.sched_getaffinity(0))[: None if cause.gpu else CORES]
    busy = command(cause, images, cause.words) if cause.gpu else [sys.executable, "-c", "while True: pass"]  # fmt: skip
    return [
        subprocess.Popen(
            busy,
            text=True,
            stdout=subprocess.DEVNULL,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        for _ in range(cause.beside)
    ]


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("", 0))
        return str(one.getsockname()[1])


def traceml_of(cause: Cause, images: Path) -> str:
    """Return TraceML's verdict on a cause, and its reason; the loop has the two lines that TraceML asks for."""
    if cause.gpu and cause.ranks > 1:
        # the rank whose stopwatch ends first leaves the other one in an all-reduce
        return "not asked"
    words = loop(cause, images, f"{cause.words} traceml=1 stopwatch=20")
    start = "import sys; from traceml_ai.launcher.cli import main; sys.exit(main())"
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--run-name", "it", "--logs-dir", folder, "--nproc-per-node", str(cause.ranks)]  # fmt: skip
        flags += ["--aggregator-port", free_port(), "--master-port", free_port()]
        try:
            printed = run([sys.executable, "-c", start, "run", *flags, str(LOOP), "--args", *words], cause)  # fmt: skip
        except (AssertionError, subprocess.TimeoutExpired) as error:
            return f"failed: {error}"
    told = re.findall(r"(?:Verdict|Why): [^|]*", printed)
    return " ".join(line.strip() for line in told)


def tried(
    name: str, images: Path, repeats: int, with_traceml: bool = False
) -> dict[str, Any]:
    """Return what is said of a cause, and what its change has really given."""
    cause = CAUSES[name]
    others = beside(cause, images)
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "found.json")
            why = [sys.executable, "-m", "saturate", "why", "--seconds", "2", "--json", str(file), "--"]  # fmt: skip
            table = run([*why, *command(cause, images, cause.words)], cause)
            found = json.loads(file.read_text())
        beside_it = traceml_of(cause, images) if with_traceml else ""
    finally:
        for other in others:
            other.kill()
    row: dict[str, Any] = {
        "cause": name,
        "named": bool(re.search(cause.names, verdict_of(table))),
        "first": found_line(table, "change first"),
        "table": table,
        "traceml": beside_it,
        "rate": found["rate"]["steady"],
    }
    predicted = [
        one for one in found["what_if"] if re.search(cause.change, one["what"])
    ]
    if cause.change and predicted:
        words = f"{cause.words} {cause.changed} stopwatch=8"
        rates = [rate_of(run(command(cause, images, words), cause)) for _ in range(repeats)]  # fmt: skip
        row["predicted"] = predicted[0]["rate"]
        row["range"] = [predicted[0][name] for name in ("low", "high")]
        row["real"] = rates
        row["off"] = predicted[0]["rate"] / statistics.median(rates) - 1
    return row


def hooks(repeats: int) -> None:
    """Print what the hooks add to a batch with its step, and to a transform, in microseconds of one core."""
    added = {}
    for transforms in ("0", "10"):
        plain = [sys.executable, str(LOOP.with_name("why_hooks.py")), transforms]
        # a window that does not end: all of it are the program's own batches
        watched = [sys.executable, "-m", "saturate", "why", "--seconds", "1000", "--", *plain]  # fmt: skip
        pairs = [
            [float(run(plain, ALONE)), float(run(watched, ALONE, code=2).split()[0])]
            for _ in range(repeats)
        ]
        # the least of both: what else the machine does only adds
        plain_us, watched_us = map(min, zip(*pairs, strict=True))
        added[transforms] = watched_us - plain_us
        print(f"{transforms:2} transforms, us without and with hooks: {pairs}")
    a_transform = (added["10"] - added["0"]) / 10
    print(f"a batch and its step: {added['0']:.0f} us; a transform: {a_transform:.1f} us")  # fmt: skip


def verdict_of(table: str) -> str:
    """Return the rows that name a cause: what binds, the ranks, neighbours, and what to change first."""
    titles = "stage that binds|slowest rank|neighbours|shared|between epochs|waits for GPU|change first"
    return "\n".join(found_line(table, title) for title in titles.split("|"))


def found_line(table: str, title: str) -> str:
    lines = iter(table.splitlines())
    for line in lines:
        if line.startswith(title):
            text = line
            for more in lines:
                if not more.startswith(" " * 18):
                    break
                text += " " + more.strip()
            return text
    return ""


def rate_of(printed: str) -> float:
    return sum(
        float(rate) for rate in re.findall(r"^rate (\S+)", printed, re.MULTILINE)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", type=Path, nargs="?")
    parser.add_argument("--only", default="")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--traceml", action="store_true", help="its verdict, too")
    parser.add_argument("--hooks", action="store_true", help="what they cost")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    if asked.repeats < 1:
        parser.error("--repeats counts from 1")
    if asked.hooks:
        return hooks(asked.repeats)
    if asked.images is None:
        parser.error("IMAGES is missing")
    rows = []
    with tempfile.TemporaryDirectory() as made:
        images = Path(made)
        (images / "jpeg").symlink_to(asked.images.resolve())
        for name in CAUSES:
            if not re.search(asked.only, name):
                continue
            if kind := CAUSES[name].images:
                converted(asked.images, images / kind, kind)
            try:
                rows.append(tried(name, images, asked.repeats, asked.traceml))
            except (AssertionError, subprocess.TimeoutExpired, OSError) as error:
                rows.append(
                    {"cause": name, "named": False, "first": f"failed: {error}"}
                )
            row = rows[-1]
            real = [round(rate) for rate in row.get("real", [])]
            off = f"{row['off']:+.0%}" if "off" in row else ""
            named = "named" if row["named"] else "NOT"
            rates = f"{row.get('rate', 0):8.0f} {row.get('predicted', 0):8.0f}"
            print(
                f"{name:22} {named:5} {rates} {real} {off} | {row['first']}", flush=True
            )
            if row.get("traceml"):
                print(f"    TraceML: {row['traceml']}", flush=True)
            if asked.output:
                asked.output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
