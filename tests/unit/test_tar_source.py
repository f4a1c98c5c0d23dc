"""Tar shards as a source: which members are samples, what is left out by name, and what is refused."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from saturate.contracts import Split, UserError
from saturate.dataset.open import open_split, open_splits
from saturate.dataset.stores.tar import members
from saturate.settings.config import build
from tests.conformance import scenes
from tests.conformance.sources import write_tar
from tests.unit.folders import left_out, refused, samples
from tests.unit.test_splits import Console

ONE, TWO, THREE, FOUR = scenes.small(4).values()


def opened(data: Path, **how: Any) -> Split:
    return open_split(data / "train", source="tar", cache=data.parent / "cache", **how)


def shards(tmp_path: Path, *files: dict[str, bytes]) -> Path:
    for place, own in enumerate(files):
        write_tar(tmp_path / "data" / "train" / f"{place}.tar", own)
    return tmp_path / "data"


def appended(path: Path, name: str, content: bytes = b"", **about: Any) -> None:
    """Add a member to a tar, as GNU's tar does."""
    with tarfile.open(path, "a", format=tarfile.GNU_FORMAT) as file:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        for key, value in about.items():
            setattr(member, key, value)
        file.addfile(member, io.BytesIO(content))


WHOLE = {"x.jpg": ONE, "x.cls": b"a"}
LONG = f"{'long' * 80}/é\n"
Found = dict[str, tuple[str, bytes]]
CASES: dict[str, tuple[dict[str, bytes], str | None, Found, list[str]]] = {
    "members lie anywhere, and hidden ones are none": (
        {
            "./x.input.jpg": ONE,
            "v1.0/y.JPG": TWO,
            "m.jpg": THREE,
            "m.mask.png": FOUR,
            "x.outputs.txt": b"said",
            "m.cls": b"cat\n",
            "._x.jpg": b"of a Mac",
            "d/.hidden.jpg": ONE,
            "v1.0/y.cls": b"ant",
            f"{LONG}.jpg": FOUR,
            f"{LONG}.cls": b"ant",
            "x.cls": b"bee",
        },
        None,
        {
            "x.input.jpg": ("bee", ONE),
            "v1.0/y.JPG": ("ant", TWO),
            "m.jpg": ("cat", THREE),
            f"{LONG}.jpg": ("ant", FOUR),
        },
        ["0.tar:m.mask.png\tnot read: the image of its sample is m.jpg"],
    ),
    "images with dots are samples by their own labels": (
        {
            "s_0.png": ONE,
            "s_0.cls": b"a",
            "s_0.5.png": TWO,
            "s_0.5.cls": b"b",
            "d/v1.2.jpg": THREE,
            "d/v1.2.cls": b"a",
            "d/v1.3.jpg": FOUR,
            "d/v1.txt": b"",
        },
        None,
        {
            "s_0.png": ("a", ONE),
            "s_0.5.png": ("b", TWO),
            "d/v1.2.jpg": ("a", THREE),
        },
        ["0.tar:d/v1.3.jpg\tno label: no .cls beside it"],
    ),
    "a key of .json goes before .cls": (
        {
            "x.jpg": ONE,
            "x.json": b'{"class": "cat", "id": 7}',
            "x.1.jpg": TWO,
            "x.1.json": b'{"class": "ant"}',
            "x.cls": b"0",
            "y.jpg": THREE,
            "y.cls": b"1",
            "z.jpg": FOUR,
            "z.json": b"{",
            "w.jpg": FOUR,
            "w.json": b'{"class": null}',
        },
        "class",
        {"x.jpg": ("cat", ONE), "x.1.jpg": ("ant", TWO)},
        [
            "0.tar:y.jpg\tno label: no class in its .json",
            "0.tar:z.jpg\tno label: no class in its .json",
            "0.tar:w.jpg\tits label is neither a word nor a number of a class",
        ],
    ),
    "what is no sample is left out by name": (
        {
            **WHOLE,
            "n.txt": b"",
            "n.a": b"",
            "n.b": b"",
            "n.cls": b"a",
            "t.1.jpg": ONE,
            "t.2.jpg": TWO,
            "u.jpg": ONE,
            "w.jpg": b"",
            "w.cls": b"a",
            "c.jpg": ONE,
            "c.cls": b"two\nlines",
            "v.jpg": ONE,
            "v.cls": b"a",
            "v.x.cls": b"b",
        },
        None,
        {"x.jpg": ("a", ONE)},
        [
            "0.tar:n\tno image among its members: n.a, n.b, n.cls, ...",
            "0.tar:t.1.jpg\t2 images in one sample: t.1.jpg, t.2.jpg",
            "0.tar:t.2.jpg\t2 images in one sample: t.1.jpg, t.2.jpg",
            "0.tar:u.jpg\tno label: no .cls beside it",
            "0.tar:c.jpg\tits label is neither a word nor a number of a class",
            "0.tar:v.jpg\t2 labels: 'a' and 'b'",
            "0.tar:w.jpg\tempty file",
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_which_members_are_samples(case: str, tmp_path: Path) -> None:
    files, key, found, lines = CASES[case]
    split = opened(shards(tmp_path, files), labels=key)
    assert samples(split) == found and sorted(left_out(split)) == sorted(lines)


def test_a_name_that_comes_again(tmp_path: Path) -> None:
    """In two shards it is two samples, in one the last member; links and sparse files are none."""
    data = shards(tmp_path, WHOLE, {"x.jpg": TWO, "x.cls": b"b"})
    split = opened(data)
    assert samples(split) == {"0.tar/x.jpg": ("a", ONE), "1.tar/x.jpg": ("b", TWO)}
    assert split.source.name(1).endswith("/train/1.tar:x.jpg")
    path = data / "train" / "0.tar"
    (data / "train" / "1.tar").unlink()
    appended(path, "x.jpg", THREE)
    appended(path, "é.jpg", type=tarfile.LNKTYPE, linkname="x.jpg")
    appended(path, "s.jpg", type=tarfile.GNUTYPE_SPARSE)
    split = opened(data)
    assert samples(split) == {"x.jpg": ("a", THREE)}
    assert sorted(left_out(split)) == [
        "0.tar:s.jpg\ta sparse file of the tar",
        "0.tar:x.jpg\tcomes again in this shard; the last one is taken",
        "0.tar:é.jpg\ta link",
    ]


def test_integers_are_numbers_of_classes(tmp_path: Path) -> None:
    data = shards(
        tmp_path, {"x.jpg": ONE, "x.cls": b"3", "y.jpg": TWO, "y.cls": b"1\n"}
    )
    assert samples(opened(data)) == {"x.jpg": ("3", ONE), "y.jpg": ("1", TWO)}
    assert opened(data).columns.classes == ("0", "1", "2", "3")
    (data / "train" / "classes.txt").write_text("w\nx\ny\nz\n")
    write_tar(data / "val" / "0.tar", {"v.jpg": TWO, "v.cls": b"0"})
    settings = build({"data": data, "manifest_dir": tmp_path / "cache"}).data
    splits = open_splits(settings, loader="torchvision", console=Console())
    assert samples(splits["train"]) == {"x.jpg": ("z", ONE), "y.jpg": ("x", TWO)}
    assert samples(splits["val"]) == {"v.jpg": ("w", TWO)}, "train/ names its classes"
    write_tar(data / "train" / "1.tar", {"z.jpg": THREE, "z.cls": b"9"})
    assert "/train/1.tar:z.jpg has the label '9'" in refused(lambda: opened(data))


def damaged(offset: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:offset] + b"?" + content[offset + 1 :]


def ended(zeros: int) -> Callable[[bytes], bytes]:
    return lambda content: content[
        : -(-len(content.rstrip(b"\0")) // 512) * 512 + zeros
    ]


@pytest.mark.parametrize(
    "change",
    [
        gzip.compress,
        lambda content: content[: len(content) // 2],
        ended(0),
        ended(511),
        lambda content: content * 2,
        damaged(512 + -(-len(ONE) // 512) * 512 + 9),
    ],
    ids=["gz", "half", "no-end", "half-an-end", "joined", "damaged"],
)
def test_what_is_not_whole_is_refused_at_the_start(
    change: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    shard = shards(tmp_path, WHOLE) / "train" / "0.tar"
    shard.write_bytes(change(shard.read_bytes()))
    said = refused(lambda: opened(tmp_path / "data"))
    assert str(shard) in said and "cut short" in said


def test_a_shard_that_changes_is_refused_by_name_and_a_new_one_is_seen(
    tmp_path: Path,
) -> None:
    data = shards(tmp_path, WHOLE, {"y.jpg": TWO, "y.cls": b"a"})
    before = opened(data)
    os.utime(data / "train" / "1.tar", ns=(1, 1))
    assert before.source.read(0) == ONE
    said = refused(lambda: before.source.read(1))
    assert "/train/1.tar:y.jpg: its shard has changed since it was scanned" in said
    shard = data / "train" / "0.tar"
    date = shard.stat().st_mtime_ns
    shard.write_bytes(shard.read_bytes() + bytes(512))
    os.utime(shard, ns=(date, date))
    assert "has changed" in refused(lambda: before.source.read(0)), "by its size"
    write_tar(data / "train" / "2.tar", {"z.jpg": THREE, "z.cls": b"a"})
    assert len(opened(data).columns) == 3


@pytest.mark.parametrize("other", [".tar.part", ".tar (1)", ""])
def test_a_shard_of_another_ending_is_not_passed_over(
    other: str, tmp_path: Path
) -> None:
    data = shards(tmp_path, WHOLE, {"y.jpg": TWO, "y.cls": b"a"})
    path = data / "train" / "1.tar"
    beside = (
        "0.idx",
        "1_stats.json",
        "2.parquet",
        "README",
        "0.tar.bak",
        "._0.tar",
        ".2.tar",
    )
    for name in beside:
        (data / "train" / name).touch()
    assert {*samples(opened(data))} == {"x.jpg", "y.jpg"}
    path.rename(path.with_name(f"1{other}"))
    said = refused(lambda: opened(data))
    assert f"/train/1{other} is named like the shards beside it" in said


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_member_that_would_end_behind_the_shard_is_refused(
    form: int, tmp_path: Path
) -> None:
    member = tarfile.TarInfo("x.jpg")
    member.size = 9 << 30
    path = tmp_path / "x.tar"
    path.write_bytes(member.tobuf(form))  # type: ignore[arg-type]
    with (
        open(path, "rb") as file,
        pytest.raises(UserError, match=r"no end mark at byte 9,663,67\d,"),
    ):
        list(members(file, path, path.stat().st_size))
