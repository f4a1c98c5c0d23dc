"""Why a point has no figure, of the exit code and the log of its process. Must not know a suite."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile

LAUNCHER = "torch/distributed/elastic/multiprocessing/api.py"
"""A file name in the log: from here on torchrun speaks, of ranks that have already said why they end."""
OUT_OF_MEMORY = (
    "out of memory",
    "out of the GPU's memory",
    "does not fit (",
    "can't allocate ",
    "cudaErrorMemoryAllocation",
    "_ALLOC_FAILED",
    "MemoryError",
    "could not create a primitive",
    "[Errno 12]",
    "std::bad_alloc",
)
"""Words, in any case, by which PyTorch, train.py, DALI, CUDA and its libraries, Python, oneDNN, the system
and C++ say that memory is short."""
NO_THREAD_OR_KILLED = (
    "Thread creation failed",
    "can't start new thread",
    "Resource temporarily unavailable",
    "when memory is short",
)
"""Has other reasons too, but not for a suite that asks how much fits: of libgomp, Python, the system, and our
loaders."""
NOT_HERE = 77
"""Exit code of a point that this machine cannot measure: a row that says so, and no failure."""
LONGEST = 300
"""Letters of a line."""


def reason(code: int, log: Sequence[str], *, asks_what_fits: bool) -> tuple[str, str]:
    """Return the status of the row, and why it has no figures."""
    said = [line.strip() for line in log if line.strip()]
    words = [
        word.lower()
        for word in (*OUT_OF_MEMORY, *(NO_THREAD_OR_KILLED if asks_what_fits else ()))
    ]
    if (
        line := next(
            (line for line in said if any(word in line.lower() for word in words)), None
        )
    ) is not None:
        return "oom", line[-LONGEST:]
    last = [
        line[-LONGEST:] for line in takewhile(lambda line: LAUNCHER not in line, said)
    ][-1:]
    if code == NOT_HERE and last:
        return "absent", last[0]
    if code == -signal.SIGKILL:  # which may come after any line
        return (
            "oom" if asks_what_fits else "failed",
            f"exit code {code}: killed, as the system does when memory is short",
        )
    told = [_signal(code), *last] if code < 0 else last
    return "failed", f"exit code {code}: {'; '.join(told) or 'it said nothing'}"


def _signal(code: int) -> str:
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"  # one of the real-time ones
