"""For all tests: processes of pytest-xdist share the cores, so each computes with one thread.

With more, threads wait for one another's turn, and tests that compute take three times as long (two processes on two cores). train.py sets
its own number.
"""

import os
import signal

from hypothesis import HealthCheck, settings

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # before anything imports torch

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # behind a shell's &; programs that tests start would inherit it and not hear Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # of a machine, not of a test
settings.load_profile("shared")
