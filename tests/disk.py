"""Tests do not wait for the disk."""

import os

synced = os.fsync
"""What a test sets again that is about what lies on the disk."""


def unsynced(fd: object) -> None:
    """Take os.fsync's place: what a test writes need not outlive a crash of the machine, and bringing a file
    to the disk takes milliseconds, of which a scan alone has fifty."""
