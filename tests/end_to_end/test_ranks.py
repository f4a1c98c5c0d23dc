"""Two, three and four ranks: a run that was stopped and resumed is the run that nobody has stopped."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.runs import Runner, kept

STEPS = 2
FLAGS = """--loader torchvision --arch shufflenet_v2_x0_5 --image-size 32 --batch-size 4 --workers 1 --val-every 0
    --epochs 50 --precision fp32 --ceilings false --log-every 1 --ema 0.9 --resume auto"""
"""It has gradients for several buckets."""


def digests(train: Runner, ranks: int, data: Path, output: str, steps: int) -> Any:
    """Train to step `steps`; return a digest of each tensor of last.pt."""
    words = f"{FLAGS} --steps {steps} --output {output}"
    for process in train.ranks(ranks, "--data", data, words):
        process.done()
    content = kept(train.cwd / output / "last.pt")
    held = {f"ema.{name}": value for name, value in content["ema"].items()}
    for number, state in content["optimizer"]["state"].items():
        held |= {f"{name} of {number}": value for name, value in state.items()}
    return {
        name: hashlib.sha256(value.numpy().tobytes()).hexdigest()
        for name, value in {**content["model"], **held}.items()
        if value is not None
    }


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_resumed_run_is_the_one_that_was_not_stopped(
    train: Runner, pictures: Path, ranks: int
) -> None:
    """Bit for bit. DDP would sum the first gradients in buckets that three ranks round otherwise."""
    digests(train, ranks, pictures, "stopped", STEPS // 2)
    stopped = digests(train, ranks, pictures, "stopped", STEPS)
    whole = digests(train, ranks, pictures, "whole", STEPS)
    assert len(whole) > 200
    assert [name for name in whole if stopped[name] != whole[name]] == []
