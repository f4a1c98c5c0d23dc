"""A training step as train.py composes it, for one process."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from saturate.contracts import Task
from saturate.engine.distributed import ProcessWorld
from saturate.engine.step import Step
from saturate.plan import draws
from saturate.report.phases import Phases
from saturate.settings.optimisation import Optimisation

CPU = torch.device("cpu")


def composed(
    module: nn.Module,
    task: Task,
    optimisation: Optimisation,
    *,
    precision: str = "fp32",
    device: torch.device = CPU,
    seed: int = 0,
) -> Step:
    return Step(
        module=module,
        task=task,
        optimisation=optimisation,
        precision=precision,
        world=ProcessWorld(device),
        draw_key=partial(draws.key, seed, draws.Purpose.MODEL),
        phases=Phases(device),
    )
