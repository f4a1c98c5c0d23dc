"""`python -m benchmarks beside DATA LOADERS ...`: loaders beside each other on one GPU, and each alone.

LOADERS is a name of `loader --loaders` with its workers, or several that run at the same time: `dali-gpu:15`, or
`dali-gpu:4+torchvision:11`. Each has a process of its own, with batches of 512 images as training has them, and is
drained as fast as it gives them. A line has the rate of each, counted in the same seconds.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from itertools import chain, count
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

# before torch: see there
from saturate.engine.distributed import ProcessWorld, prepare_process

# isort: split
from benchmarks._loaders import Asked, opened, training_split
from saturate.contracts import UserError
from saturate.run.program import Parser
from saturate.system.exit_codes import of_program

BATCH = 512
WARM_UP_S = 5.0
"""Seconds in which a loader gives batches before it waits for the others."""
LATE_S = 120.0
"""Seconds that a loader waits for the others."""
QUEUED_S = 1.0
"""Seconds behind that wait which do not count: batches that were ready meanwhile cost nothing."""


def drain(
    name: str, workers: int, data: Path, seconds: float, meet: Barrier, rates: Any
) -> None:
    """Count the images a second of a loader from the moment on at which all are warm."""
    world = ProcessWorld(prepare_process())
    asked = Asked(
        medium="images",
        batch_size=BATCH,
        image_size=224,
        workers=workers,
        window="random-resized",
        flip=0.5,
    )
    images, begins, has_met = 0, time.perf_counter() + WARM_UP_S, False
    split = training_split(data, asked.task)
    try:
        with opened(asked, name, split, world) as (passes, _):
            for delivered in chain.from_iterable(map(passes, count())):
                world.synchronise()
                now = time.perf_counter()
                if not has_met and now > begins:
                    meet.wait(LATE_S)
                    has_met, begins = True, time.perf_counter() + QUEUED_S
                elif has_met and now > begins:
                    images += delivered
                if has_met and now > begins + seconds:
                    rates.put((name, workers, images / (now - begins)))
                    return
    except BaseException:
        meet.abort()
        raise


def beside(
    loaders: Sequence[tuple[str, int]], data: Path, seconds: float
) -> list[tuple[str, int, float]]:
    """Return name, workers and images/s of each loader. Raises UserError where one has failed."""
    context = multiprocessing.get_context("spawn")
    meet, rates = context.Barrier(len(loaders)), context.Queue()
    processes = [
        context.Process(target=drain, args=(*one, data, seconds, meet, rates))
        for one in loaders
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise UserError("a loader has failed; its words are above")
    return sorted(rates.get() for _ in processes)


def parsed(words: str) -> list[tuple[str, int]]:
    """Return the loaders of a line, each with its workers. Raises ValueError."""
    pairs = [one.split(":") for one in words.split("+")]
    return [(name, int(workers)) for name, workers in pairs]


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    parser = Parser("beside", __doc__)
    parser.add_argument("data", type=Path, help="with train/<class>/*, or images alone")
    parser.add_argument("loaders", type=parsed, nargs="+", metavar="LOADERS")
    parser.add_argument("--seconds", type=float, default=6.0)
    options = parser.parse_args(arguments)

    def work() -> int:
        for loaders in options.loaders:
            found = beside(loaders, options.data, options.seconds)
            each = "  ".join(
                f"{name}:{workers} {rate:,.0f}" for name, workers, rate in found
            )
            print(
                f"{each}  in all {sum(one[2] for one in found):,.0f} img/s", flush=True
            )
        return 0

    return of_program("beside", work)
