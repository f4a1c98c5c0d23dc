"""For all tests: each process of pytest-xdist, with the programs that its tests start, has cores of its own.

Where they share them, threads of a training run on the CPU burn the time in which they wait for one that has no core, by their stacks in
oneDNN's convolutions backwards (two processes on two cores: 255 s of CPU time instead of 47).
"""

import os
import signal

from hypothesis import HealthCheck, settings

if "PYTEST_XDIST_WORKER" in os.environ:  # before anything imports torch
    NUMBER, COUNT, CORES = int(os.environ["PYTEST_XDIST_WORKER"][2:]), int(os.environ["PYTEST_XDIST_WORKER_COUNT"]), os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(CORES)[NUMBER % len(CORES) :: COUNT])

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # behind a shell's &; programs that tests start would inherit it and not hear Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # of a machine, not of a test
settings.load_profile("shared")
