"""`python -m benchmarks pairs --data DATA --output FOLDER`: what `saturate compare` says of pairs of runs.

One recipe runs --runs times as it is. Between these it runs --slowed times with a step that takes --loss longer: in
turns the forward and the backward pass wait, the device itself on a GPU. All pairs of runs as they are have no loss,
and each slowed run has one against each of these. FOLDER gets pairs.json.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torchvision.models import resnet50

from benchmarks.planted import Runs, run
from saturate.contracts import UserError
from saturate.run import compare
from saturate.run.trial import ending_on_signals
from saturate.settings.cli import flags

WAITS = "SATURATE_PAIRS_WAITS"
"""The environment's name for the pass that waits, and for how many milliseconds."""
PASSES = ("forward", "backward")


class Pairs(Runs):
    """Runs to be compared, and how many."""

    flags: str = "--precision fp16 --batch-size 256 --loader dali-gpu --graphs false"
    """The recipe: flags of train.py."""
    runs: int = 10
    """Runs as they are."""
    slowed: int = 4
    """Runs that are slower."""
    loss: float = 0.05
    """Share of the rate that these lose."""
    min_window_s: float = 0.5
    """Least seconds of each."""


class Waits(torch.nn.Module):
    """A network, one of whose passes waits for `ms` milliseconds."""

    def __init__(self, network: torch.nn.Module, of: str, ms: float) -> None:
        super().__init__()
        self.network, self.of, self.ms = network, of, ms
        self.cycles = _cycles() * ms if torch.cuda.is_available() else None

    def wait(self, *_: object) -> None:
        """Have the device wait, or this thread."""
        if self.cycles is None:
            time.sleep(1e-3 * self.ms)
        else:
            torch.cuda._sleep(int(self.cycles))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the network's outputs."""
        if self.of == "forward":
            self.wait()
        outputs: torch.Tensor = self.network(images)
        if self.of == "backward" and outputs.requires_grad:
            outputs.register_hook(self.wait)
        return outputs


def _cycles() -> float:
    """Return the clock cycles of the GPU in a millisecond, while it does nothing else."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    cycles = 100_000_000
    begin.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    return cycles / begin.elapsed_time(end)


def network(num_classes: int) -> torch.nn.Module:
    """Return a ResNet-50, a pass of which waits as the environment says."""
    of, _, ms = os.environ.get(WAITS, "").partition(" ")
    return Waits(resnet50(num_classes=num_classes), of, float(ms or 0))


def summaries(settings: Pairs) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield which pass waits, "" for none, and the summary of each run."""
    steps_ms = []
    every = max(settings.runs // max(settings.slowed, 1), 1)
    left = [PASSES[at % 2] for at in range(settings.slowed)]
    for number in range(settings.runs):
        summary = _ran(settings, f"{number:02}", "")
        steps_ms.append(1e3 * summary["batch_size"] / summary["rate"]["steady"])
        yield "", summary
        if left and number % every == every - 1:
            of = left.pop(0)
            # a step that takes 1 / (1 - loss) of its time
            ms = statistics.median(steps_ms) * settings.loss / (1 - settings.loss)
            yield of, _ran(settings, f"{number:02}-{of}", f"{WAITS}={of} {ms}")


def _ran(settings: Pairs, name: str, waits: str) -> dict[str, Any]:
    case = {
        "flags": f"--arch benchmarks.pairs:network {settings.flags}",
        "env": [waits] if waits else [],
    }
    more = f"--min-window-s {settings.min_window_s} --ceilings false"
    summary: dict[str, Any] = run(case, more, settings, settings.output / "runs" / name)
    return summary


def main(argv: list[str] | None = None) -> int:
    """Return 0; 1 where a pair was told wrong, 2 for a user's mistake."""
    try:
        given = sys.argv[1:] if argv is None else argv
        settings = flags(Pairs, given, prog="benchmarks.pairs")
    except UserError as error:
        print(f"pairs: {error}", file=sys.stderr)
        return 2
    with ending_on_signals():
        found = [
            (of, summary, compare.side(summary)) for of, summary in summaries(settings)
        ]
    plain = [side for of, _, side in found if not of]
    same = [compare.verdict(a, b, 0.0) for a, b in itertools.combinations(plain, 2)]
    slowed = [
        (of, *compare.verdict(a, b, 0.0)) for of, _, b in found if of for a in plain
    ]
    rates = [summary["rate"] for _, summary, _ in found]
    told = {
        "rates": [[of, summary["rate"]["steady"]] for of, summary, _ in found],
        "spreads": [rate["spread"]["iqr"] / rate["steady"] for rate in rates],
        "same": Counter(code for code, _ in same),
        "slowed": Counter(code for _, code, _ in slowed),
        "named": sum(lines[0].endswith(f": {of}") for of, _, lines in slowed),
        "lines": [lines for _, lines in same]
        + [[of, *lines] for of, _, lines in slowed],
    }
    (settings.output / "pairs.json").write_text(json.dumps(told, indent=2))
    print(
        json.dumps(
            {name: told[name] for name in ("spreads", "same", "slowed", "named")}
        )
    )
    right = all(code == compare.LOSS for _, code, _ in slowed)
    return int(not right or any(code == compare.LOSS for code, _ in same))
