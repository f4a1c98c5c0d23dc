"""Limits of this process, of addresses and open files, and its standard streams: seen before a large import.

Behind such a limit libraries end the process in words of their own, or hang.
"""

from __future__ import annotations

import os
import resource
import sys

LEAST_ADDRESSES = 6 << 30
"""Bytes of addresses that a run needs: torch's libraries take 3.5 GiB, more than they take of memory."""
LEAST_FILES = 128
"""Open files that a run without worker processes needs, and a few more."""


def open_streams() -> None:
    """Give a program whose standard streams are closed, as those of a daemon, ones that go nowhere.

    Else it has none to write to, and the first files that it opens get their numbers and their words.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for place, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # it stays open as long as the program runs
            setattr(sys, name, open(place, "w" if place else "r", closefd=False))  # noqa: SIM115


def too_low() -> str:
    """Return which limit is too low for any run, and what to do; raise that of open files where it helps."""
    addresses = resource.getrlimit(resource.RLIMIT_AS)[0]
    if addresses != resource.RLIM_INFINITY and addresses < LEAST_ADDRESSES:
        allows = f"ulimit -v allows {addresses / 2**30:.3g} GiB of addresses, and torch's libraries need more"
        return f"{allows} than they use of memory: ulimit -v unlimited, or {LEAST_ADDRESSES >> 10} at least"
    if not open_files(LEAST_FILES):
        return (
            f"ulimit -n allows {resource.getrlimit(resource.RLIMIT_NOFILE)[1]} open files, "
            f"and a run needs {LEAST_FILES} at least: raise it"
        )
    return ""


def open_files(needed: int) -> bool:
    """Whether this process may have so many open files; its soft limit is raised where it has to be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            return False
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return True
