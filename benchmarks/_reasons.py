"""Why a point has no figure, of the exit code and the log of its process. Must not know a suite."""

from __future__ import annotations

import signal
from itertools import takewhile

LAUNCHER = "torch/distributed/elastic/multiprocessing/api.py"
"""A file name in the log: from here on torchrun speaks, of ranks that have already said why they end."""
OUT_OF_MEMORY = (
    "out of memory",
    "out of the GPU's memory",
    "does not fit (",
    "can't allocate ",
    "cudaerrormemoryallocation",
    "_alloc_failed",
    "memoryerror",
    "could not create a primitive",
    "[errno 12]",
    "std::bad_alloc",
)
"""Lower-case words by which PyTorch, train.py, DALI, CUDA and its libraries, Python, oneDNN, the system and
C++ say that memory is short.
"""
NO_THREAD_OR_KILLED = (
    "thread creation failed",
    "can't start new thread",
    "resource temporarily unavailable",
    "when memory is short",
)
"""Words by which libgomp, Python, the system and our loaders may say so. These have other reasons too, but
not for a suite that asks how much fits.
"""
NOT_HERE = 77
"""Exit code of a point that this machine cannot measure: a row that says so, and no failure."""
LONGEST = 300
"""Characters of a line."""


def reason(code: int, log: str, *, asks_what_fits: bool = False) -> tuple[str, str]:
    """Return the status of the row (oom, absent or failed), and why it has no figures."""
    lines = [line.strip()[-LONGEST:] for line in log.splitlines() if line.strip()]
    words = OUT_OF_MEMORY + NO_THREAD_OR_KILLED * asks_what_fits
    for line in lines:
        if any(word.lower() in line.lower() for word in words):
            return "oom", line
    last = [*takewhile(lambda line: LAUNCHER not in line, lines)][-1:]
    if code == NOT_HERE and last:
        return "absent", last[0]
    if code == -signal.SIGKILL:  # which may come after any line
        status = "oom" if asks_what_fits else "failed"
        return status, "killed, as the system does when memory is short"
    return "failed", f"exit code {code}: {'; '.join(last) or 'it said nothing'}"
