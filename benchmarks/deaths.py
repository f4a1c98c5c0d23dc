"""`python -m benchmarks deaths OUTPUT -- FLAGS ...`: how soon an --unkillable training goes on behind a SIGKILL.

FLAGS are those of train.py, with --data and --unkillable; each step is logged. The ranks run on this host. One trainer
at a time is killed, each rank's in turn. A line has the seconds until the next step was logged, and what they were
spent for, as the run itself counts it (`spent` of metrics.jsonl). What the run says goes to OUTPUT.log.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from saturate.contracts import UserError
from saturate.run.program import Parser
from saturate.system.exit_codes import of_program

LATE_S = 180.0
"""Seconds after which a run that logs no step is given up."""


def logged(output: Path) -> list[dict[str, Any]]:
    """Return the attempts and steps that the run has logged so far."""
    path = output / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [line for line in found if "spent" in line]


def waited(run: subprocess.Popen[bytes], look: Callable[[], Any]) -> Any:
    """Return what `look` gives, once it is something. Raises UserError where the run ends before, or is late."""
    ends = time.monotonic() + LATE_S
    while time.monotonic() < ends and run.poll() is None:
        if found := look():
            return found
        time.sleep(0.02)
    raise UserError(f"no step within {LATE_S:.0f} s, or the run has ended: see its log")


def step_of(output: Path, attempt: int) -> dict[str, Any] | None:
    """Return the last step that the run has logged, and None before the first one of its `attempt`, from 1 on."""
    lines = logged(output)
    begun = sum(line["kind"] == "attempt" for line in lines)
    return lines[-1] if begun >= attempt and lines[-1]["kind"] == "train" else None


def killed(
    run: subprocess.Popen[bytes], output: Path, rank: int, attempt: int
) -> dict[str, float]:
    """Kill the trainer of a rank; return the seconds to the first step of the next `attempt`, and what they were spent
    for.
    """
    agents = sorted(psutil.Process(run.pid).children(), key=lambda one: one.pid)
    # a warm spare was forked later
    trainer = min(agents[rank].children(), key=psutil.Process.create_time)
    before = logged(output)[-1]["spent"]["seconds"]
    trainer.send_signal(signal.SIGKILL)
    at = time.time()
    spent = waited(run, lambda: step_of(output, attempt))["spent"]
    parts = {part: s - before.get(part, 0) for part, s in spent["seconds"].items()}
    return {"next step": spent["at"] - at} | parts


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    parser = Parser("deaths", __doc__)
    parser.add_argument("output", type=Path, help="new folder of the run")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--deaths", type=int, default=4)
    parser.add_argument("--apart-s", type=float, default=15.0, help="seconds between")
    parser.add_argument("flags", nargs="+", metavar="FLAGS")
    options = parser.parse_args(arguments)
    if "--unkillable" not in options.flags:
        parser.error("FLAGS need --unkillable")

    def work() -> int:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        ranks = f"--nproc-per-node={options.ranks}"
        output = ["--output", str(options.output), "--resume", "auto"]
        flags = [*output, "--log-every", "1", *options.flags]
        log = Path(f"{options.output}.log")
        with (
            log.open("wb") as said,
            subprocess.Popen(
                [*torchrun, ranks, "train.py", *flags], stdout=said, stderr=said
            ) as run,
        ):
            try:
                waited(run, lambda: step_of(options.output, 1))
                for number in range(options.deaths):
                    time.sleep(options.apart_s)
                    rank = number % options.ranks
                    found = killed(run, options.output, rank, number + 2)
                    parts = (
                        f"{part} {s:.2f}" for part, s in found.items() if s > 0.005
                    )
                    print(f"death {number + 1}, s: {', '.join(parts)}", flush=True)
            finally:
                run.send_signal(signal.SIGTERM)
        return 0

    return of_program("deaths", work)
