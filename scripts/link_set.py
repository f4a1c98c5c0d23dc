"""`python -m scripts.link_set FROM TO --count N`: N images of few, as links to the files of a folder of
classes; copies no pixels.

For a pass as long as a large data set's. Each file gets N / files links, evenly spread, in a folder of its
class:

    FROM/cat/a.jpg  ->  TO/cat/0000-a.jpg, TO/cat/0001-a.jpg, ...

All links to one file share its place in the page cache: the storage is read once for each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # also when it is started as a file

from scripts import Parser, exit_code
from scripts._sets import whole


def sources(root: Path) -> list[Path]:
    """List the files below <class>/ or train/<class>/, relative to the folder that has the classes.
    ValueError when there are none."""
    top = root / "train" if (root / "train").is_dir() else root
    files = [path.relative_to(top) for path in sorted(top.rglob("*")) if path.is_file()]
    in_classes = [
        top / file
        for file in files
        if len(file.parts) > 1 and not any(part.startswith(".") for part in file.parts)
    ]
    if not in_classes:
        raise ValueError(f"{root} has no files in <class>/* or train/<class>/*")
    return in_classes


def shares(files: int, count: int) -> list[int]:
    """Return how many links each file gets; those that get one more are spread over the list."""
    return [(i + 1) * count // files - i * count // files for i in range(files)]


@contextmanager
def filled(target: Path, root: Path) -> Iterator[Path]:
    """Yield a folder to fill, which gets the name TO at the end: whatever has it is whole. ValueError where
    `target` cannot be made of `root`."""
    if target.resolve().is_relative_to(root.resolve()):
        raise ValueError(
            f"{target} lies inside {root}, which is never written to; name a folder elsewhere"
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} is there and not empty; name a new folder")
    with whole(target) as fresh:
        yield fresh


def put(file: Path, name: Path, symbolic: bool) -> None:
    """Make a link to the file, or to what it is itself a link to."""
    real = file.resolve()
    name.symlink_to(real) if symbolic else os.link(real, name)


def link(root: Path, target: Path, count: int, *, symbolic: bool = False) -> int:
    """Make the links; return the number of files they lead to. ValueError for what was asked, OSError from
    the file system."""
    files = sources(root)
    top = root / "train" if (root / "train").is_dir() else root
    if count < len(files):
        raise ValueError(
            f"--count {count} is less than the {len(files)} files of {root}; each gets a link at least"
        )
    with filled(target, root) as fresh:
        for file, copies in zip(files, shares(len(files), count), strict=True):
            folder = fresh / file.relative_to(top).parent
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(copies):
                put(file, folder / f"{number:04d}-{file.name}", symbolic)
    return len(files)


def command(
    name: str,
    about: str | None,
    link: Callable[..., int],
    unit: str,
    arguments: Sequence[str] | None,
) -> int:
    """Run the command line around `link`, which returns how many files it led to; `unit`: what they are."""
    parser = Parser(name, about)
    parser.add_argument(
        "source", metavar="FROM", type=Path, help="folder; never written to"
    )
    parser.add_argument("target", metavar="TO", type=Path, help="new folder")
    parser.add_argument(
        "--count", type=int, required=True, help=f"links to {unit}, at least one each"
    )
    parser.add_argument(
        "--symbolic",
        action="store_true",
        help="symbolic links, also to another file system; else hard links",
    )
    options = parser.parse_args(arguments)

    def work() -> int:
        try:
            linked = link(
                options.source, options.target, options.count, symbolic=options.symbolic
            )
        except OSError as error:
            hint = (
                ""
                if options.symbolic
                else "; --symbolic links to another file system too"
            )
            path = error.filename2 or error.filename or options.target
            raise ValueError(f"{path}: {error.strerror}{hint}") from None
        print(f"{options.target}: {options.count} links to {linked} {unit}")
        return 0

    return exit_code(name, work, ValueError)


def main(arguments: Sequence[str] | None = None) -> int:
    return command("link_set", __doc__, link, "files", arguments)


if __name__ == "__main__":
    sys.exit(main())
