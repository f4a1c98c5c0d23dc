"""Suites that measure, one a file, and baselines/: the loops that others write."""
