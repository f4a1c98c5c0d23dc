"""`python -m scripts.link_set FROM TO --count N`: N images of few, as links to the files of a folder of classes; copies no pixels.

For a pass as long as a large data set's. Each file gets N / files links, evenly spread, in a folder of its class:

    FROM/cat/a.jpg  ->  TO/cat/0000-a.jpg, TO/cat/0001-a.jpg, ...

All links to one file share its place in the page cache: the storage is read once for each.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path


def sources(root: Path) -> list[Path]:
    """The files below <class>/ or train/<class>/, relative to the folder that has the classes. ValueError when there are none."""
    top = root / "train" if (root / "train").is_dir() else root
    files = [path.relative_to(top) for path in sorted(top.rglob("*")) if path.is_file()]
    found = [top / file for file in files if len(file.parts) > 1 and not any(part.startswith(".") for part in file.parts)]
    if not found:
        raise ValueError(f"{root} has no files in <class>/* or train/<class>/*")
    return found


def shares(files: int, count: int) -> list[int]:
    """How many links each file gets; those that get one more are spread over the list."""
    return [(i + 1) * count // files - i * count // files for i in range(files)]


def link(root: Path, target: Path, count: int, *, symbolic: bool = False) -> int:
    """Make the links; the number of files they lead to. ValueError for what was asked, OSError from the file system."""
    files = sources(root)
    top = root / "train" if (root / "train").is_dir() else root
    if count < len(files):
        raise ValueError(f"--count {count} is less than the {len(files)} files of {root}; each gets a link at least")
    if target.resolve().is_relative_to(root.resolve()):
        raise ValueError(f"{target} lies inside {root}, which is never written to; name a folder elsewhere")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} is there and not empty; name a new folder")
    fresh = target.with_name(f".{target.name}.{os.getpid()}.partial")  # whatever has the name TO is whole
    try:
        for file, its in zip(files, shares(len(files), count), strict=True):
            place = fresh / file.relative_to(top).parent
            place.mkdir(parents=True, exist_ok=True)
            real = file.resolve()
            for number in range(its):
                name = place / f"{number:04d}-{file.name}"
                name.symlink_to(real) if symbolic else os.link(real, name)
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return len(files)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="link_set", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="FROM", type=Path, help="folder with <class>/* or train/<class>/*; never written to")
    parser.add_argument("target", metavar="TO", type=Path, help="new folder; it gets <class>/*")
    parser.add_argument("--count", type=int, required=True, help="links in all, at least one a file")
    parser.add_argument("--symbolic", action="store_true", help="symbolic links, also to another file system; else hard links")
    options = parser.parse_args(arguments)
    try:
        files = link(options.source, options.target, options.count, symbolic=options.symbolic)
    except ValueError as error:
        print(f"link_set: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        hint = "" if options.symbolic else "; --symbolic links to another file system too"
        print(f"link_set: {error.filename2 or error.filename}: {error.strerror}{hint}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(f"{options.target}: {options.count} links to {files} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
