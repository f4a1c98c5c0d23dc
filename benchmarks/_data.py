"""What a suite of loaders reads: which folder of --data, and what a task's files hold. Knows no loader."""

from __future__ import annotations

from pathlib import Path

from contracts import UserError
from dataset.open import list_of
from dataset.stores import choose_source, source_named
from loaders import Medium
from settings.cli import one_of
from settings.config import Config
from tasks import TASKS, kind_named


def medium_of(task: str) -> Medium:
    """Return what a task's files hold, for the suites of loaders.

    Raises UserError for a task that is unknown, or whose samples have more than a label.
    """
    kind = kind_named(one_of("--task", task, TASKS))
    if kind.content(Config()) != kind.medium:
        raise UserError(f"--task {task}: this suite loads images or videos with a label alone")
    return kind.medium


def class_folders(root: Path | None, *, medium: Medium = "images") -> Path:
    """Return the folder with <class>/*: root/train or the root itself; of videos also a list, the root itself
    or in it. Raises UserError."""
    videos = medium == "videos"
    if root is not None and videos and (found := root if root.is_file() else list_of(root, "train")):
        return found.resolve()
    if root is None or not root.is_dir():
        wanted = "name one with <class>/* or train/<class>/*"
        wanted += ", or with the list train.csv" if videos else ""
        raise UserError(f"--data {'is missing' if root is None else f'{root}: no such folder'}; {wanted}")
    source = choose_source("auto", root, "train")
    # what is written by hand beside our loaders opens files
    if not source_named(source).FILES:
        raise UserError(
            f"--data {root}: train is read as {source}, and this suite measures files: unpack it into folders"
        )
    return (root / "train" if (root / "train").is_dir() else root).resolve()
