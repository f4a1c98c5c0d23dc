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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when it is started as a file

from contracts import one_line
from scripts import Parser
from scripts._sets import whole


def sources(root: Path) -> list[Path]:
    """List the files below <class>/ or train/<class>/, relative to the folder that has the classes.
    ValueError when there are none."""
    top = root / "train" if (root / "train").is_dir() else root
    files = [path.relative_to(top) for path in sorted(top.rglob("*")) if path.is_file()]
    found = [
        top / file
        for file in files
        if len(file.parts) > 1 and not any(part.startswith(".") for part in file.parts)
    ]
    if not found:
        raise ValueError(f"{root} has no files in <class>/* or train/<class>/*")
    return found


def shares(files: int, count: int) -> list[int]:
    """Return how many links each file gets; those that get one more are spread over the list."""
    return [(i + 1) * count // files - i * count // files for i in range(files)]


@contextmanager
def filled(target: Path, root: Path) -> Iterator[Path]:
    """Yield a folder to fill, which gets the name TO at the end: whatever has it is whole. ValueError where
    `target` cannot be made of `root`."""
    if target.resolve().is_relative_to(root.resolve()):
        raise ValueError(f"{target} lies inside {root}, which is never written to; name a folder elsewhere")
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
        for file, its in zip(files, shares(len(files), count), strict=True):
            place = fresh / file.relative_to(top).parent
            place.mkdir(parents=True, exist_ok=True)
            for number in range(its):
                put(file, place / f"{number:04d}-{file.name}", symbolic)
    return len(files)


def command(
    prog: str,
    description: str | None,
    link: Callable[..., int],
    helps: tuple[str, str, str],
    unit: str,
    arguments: Sequence[str] | None,
) -> int:
    """Run the command line around `link`: parse, link, return the exit code. `helps`: of FROM, TO and
    --count; `unit`: of what `link` counts."""
    parser = Parser(prog, description)
    parser.add_argument("source", metavar="FROM", type=Path, help=helps[0])
    parser.add_argument("target", metavar="TO", type=Path, help=helps[1])
    parser.add_argument("--count", type=int, required=True, help=helps[2])
    parser.add_argument(
        "--symbolic", action="store_true", help="symbolic links, also to another file system; else hard links"
    )
    options = parser.parse_args(arguments)
    try:
        found = link(options.source, options.target, options.count, symbolic=options.symbolic)
    except ValueError as error:
        print(one_line(f"{prog}: {error}"), file=sys.stderr)
        return 2
    except OSError as error:
        hint = "" if options.symbolic else "; --symbolic links to another file system too"
        print(
            one_line(
                f"{prog}: {error.filename2 or error.filename or options.target}: {error.strerror}{hint}"
            ),
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        return 130
    print(f"{options.target}: {options.count} links to {found} {unit}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    helps = (
        "folder with <class>/* or train/<class>/*; never written to",
        "new folder; it gets <class>/*",
        "links in all, at least one a file",
    )
    return command("link_set", __doc__, link, helps, "files", arguments)


if __name__ == "__main__":
    sys.exit(main())
