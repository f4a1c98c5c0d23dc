"""`python -m scripts.make_map`: writes docs/map.md, a line a file, from the first sentences of docstrings.

A file's line is the first sentence of its docstring, a folder's that of its __init__.py; a shell script's is
its first comment. A test fails where the page is not what this program writes.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "map.md"
ORDER = "settings system dataset plan loaders models tasks engine report benchmarks scripts configs tests docs"
ROOMS = tuple(ORDER.split())
"""Top-level folders in the order in which a sample meets them."""
FOLDERS_ONLY = {
    "configs": "Presets; the header of each has command, hardware, expected accuracy and source.",
    "tests": "unit/, conformance/ (the same assertions for all), end_to_end/, and gpu/ (needs a device).",
    "docs": "Pages for users, benchmark tables, screenshots.",
}
"""Folders whose files come and go: a phrase for the folder says it."""
HEAD = """# Map

Every file with the first sentence of its docstring, written by `python -m scripts.make_map`. Rooms are in the
order in which a sample meets them. A file whose name begins with `_` is used by its own folder alone.

## To add or change

| what | the file | the line, and what else |
| --- | --- | --- |
| a loader | `loaders/images/NAME.py` (or `videos/`, `pairs/`): see [own-loop](own-loop.md) | its `LoaderSpec` in `LOADERS`, `loaders/__init__.py` |
| a reader of JPEGs for `--loader torchvision` | `loaders/images/decoders.py` | `READERS` there, and the names in `settings/loading.py` |
| an augmentation | its class in `plan/augment.py`, its setting in `settings/augmentation.py` | `AUGMENTATIONS`; a new operation on pixels: `plan/ops.py`, `loaders/_ops.py` |
| a store of samples | `dataset/stores/NAME.py`: see [data](data.md#a-source-of-your-own) | `SOURCES` in `dataset/stores/__init__.py`; to write it: `scripts/_stores.py` |
| a task | `tasks/NAME.py`, its settings: see [own-task](own-task.md) | `TASKS` in `tasks/__init__.py`; of another medium also `dataset/open.py` |
| a network | `models/` | the registry that the task names |
| an optimiser | `engine/optimizers.py` | `OPTIMIZERS`, and the names in `settings/optimisation.py` |
| a setting | a field in its group in `settings/` | none: groups are scanned |
| a key of summary.json | `report/reporter.py` | `LINES` of `report/console.py` for the closing table, `SCALARS` of `report/tensorboard.py` |
| a warning about data | `dataset/open.py`, `dataset/coco/warnings.py`, the task's file | |
| when last.pt is written | `engine/loop.py` | `engine/watch.py` ends a rank that hangs |
| signals | `engine/stop.py`, `engine/watch.py` (a main thread that hangs), `settings/preflight.py` (while imports run) | |
| an axis of `scripts.bench` | `benchmarks/train.py` or `benchmarks/loader.py` | `AXES` there and a field of its settings |
"""  # noqa: E501


def tracked(root: Path = ROOT) -> list[str]:
    """Return the paths of the files that git tracks, sorted."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files"], capture_output=True, text=True, check=True
    )
    return sorted(
        name for name in listed.stdout.splitlines() if (root / name).is_file()
    )


def first_sentence(path: Path) -> str:
    """Return the first sentence of a Python file's docstring or a shell script's comment; "" without one.

    What a docstring says behind "; must not" is a rule for those who change the file, and left out.
    """
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(source)) or ""
    else:
        text = "\n".join(
            line.removeprefix("#").strip() for line in source.splitlines()[1:2]
        )
    paragraph = " ".join(text.split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z`])", paragraph, maxsplit=1)[0]
    return re.sub(r"; must not .*", ".", sentence)


def lines(names: Sequence[str], root: Path = ROOT) -> Iterator[str]:
    """Yield the lines of the page for these files. Raises ValueError for a file without a docstring."""
    for room in ("", *ROOMS):
        if room:
            yield f"\n## {room}/\n"
        if room in FOLDERS_ONLY:
            yield FOLDERS_ONLY[room]
            continue
        for name in names:
            if name.partition("/")[0] != room and (room or "/" in name):
                continue
            if not name.endswith((".py", ".sh")):
                continue
            sentence = first_sentence(root / name)
            if name.endswith("/__init__.py"):
                if name == f"{room}/__init__.py" and sentence:
                    yield f"{sentence}\n"
                # a table that others read, such as LOADERS, stands there
                if "=" in (root / name).read_text(encoding="utf-8"):
                    yield f"- `{name}` {sentence}"
            elif sentence:
                yield f"- `{name}` {sentence}"
            else:
                raise ValueError(f"{name} has no docstring, which the map is made of")


def page(names: Sequence[str], root: Path = ROOT) -> str:
    """Return the whole page for these files."""
    return HEAD + "\n" + "\n".join(lines(names, root)) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(tracked()), encoding="utf-8")
