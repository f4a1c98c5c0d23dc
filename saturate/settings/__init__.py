"""Every setting of train.py, a group a file: its type, its default, and the docstring that --help shows."""
