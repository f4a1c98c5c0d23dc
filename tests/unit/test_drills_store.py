"""A drill: a new kind of shards is one file and one line, in a copy of the tree that knows nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import scenes
from tests.end_to_end.runs import Runner
from tests.unit.drills import add_line, copied, ran
from tests.unit.test_house import ROOT

PAGE = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
TOY = PAGE.rpartition("```python\n")[2].partition("```")[0]
"""The example of the page: a line 'name size label' before the bytes of each image."""
LINE = '    "toy": "saturate.dataset.stores.toy",'
IMAGES = [*scenes.small(8).values()]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project with one file and one line more."""
    copy = copied(tmp_path_factory.mktemp("drill") / "tree")
    (copy / "saturate/dataset/stores/toy.py").write_text(TOY)
    add_line(copy / "saturate/dataset/stores/__init__.py", '    "tar": ', LINE)
    return copy


@pytest.fixture(scope="module")
def data(tree: Path) -> Path:
    """Return toy shards of two classes, and one sample without bytes."""
    folder = tree.parent / "data"
    for split in ("train", "val"):
        (folder / split).mkdir(parents=True)
        for shard in range(2):
            lines = [b"empty%d.jpg 0 a\n" % shard]
            for number, content in enumerate(IMAGES):
                label = "ab"[number % 2]
                lines.append(
                    f"{label}/{shard}-{number}.jpg {len(content)} {label}\n".encode()
                    + content
                )
            (folder / split / f"{shard}.toy").write_bytes(b"".join(lines))
    return folder


def test_it_trains_from_toy_shards_and_says_what_is_left_out(
    runner: Runner, tree: Path, data: Path
) -> None:
    cache, out = tree.parent / "cache", tree.parent / "runs"
    small = "--arch shufflenet_v2_x0_5 --image-size 32 --precision fp32 --batch-size 8"
    more = "--loader torchvision --workers 1 --epochs 1 --ceilings False"
    where = ("--data", data, "--manifest-dir", cache, "--output", out)
    ran(runner, tree, "train.py", *where, *small.split(), *more.split())
    (record,) = out.rglob("last.pt")
    assert record.stat().st_size
    rejected = [path.read_text() for path in cache.rglob("rejected.txt")]
    assert sorted(rejected) == sorted(
        "".join(
            f"{data / split / f'{shard}.toy'}:empty{shard}.jpg\tno bytes\n"
            for shard in range(2)
        )
        for split in ("train", "val")
    )


CODE = """
import sys
from pathlib import Path
from saturate.dataset.open import open_split
toy, tar = (open_split(Path(each) / "train", cache=sys.argv[3]) for each in sys.argv[1:3])
assert toy.columns.fingerprint == tar.columns.fingerprint
print([len(tar.source.read(sample)) for sample in range(len(tar.columns))])
"""


def test_its_packed_form_is_the_same_data(
    runner: Runner, tree: Path, data: Path
) -> None:
    cache, target = tree.parent / "cache", tree.parent / "packed"
    where = ("--format", "tar", "--manifest-dir", cache)
    ran(runner, tree, "-m", "scripts.pack", target, "--from", data, *where)
    sizes = [len(image) for label in (0, 1) for _ in "ab" for image in IMAGES[label::2]]
    assert ran(runner, tree, "-c", CODE, data, target, cache).strip() == str(sizes)
