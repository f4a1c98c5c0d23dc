"""Fixtures that several files of unit tests share."""

from tests.unit.folders import cache, root, synced  # noqa: F401
