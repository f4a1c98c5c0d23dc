"""A folder for PYTHONPATH: what Python imports as it begins."""
