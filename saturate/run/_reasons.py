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
LONGEST = 300
"""Characters of a line."""


def reason(code: int, log: str) -> tuple[str, str]:
    """Return the status of the row (ok, oom or failed), and why it has no figures."""
    if not code:
        return "ok", ""
    lines = [line.strip()[-LONGEST:] for line in log.splitlines() if line.strip()]
    for line in lines:
        if any(word in line.lower() for word in OUT_OF_MEMORY):
            return "oom", line
    last = [*takewhile(lambda line: LAUNCHER not in line, lines)][-1:]
    if code == -signal.SIGKILL:  # which may come after any line
        return "failed", "killed, as the system does when memory is short"
    return "failed", f"exit code {code}: {'; '.join(last) or 'it said nothing'}"
