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

from contracts import Split, UserError
from dataset.open import open_split, open_splits
from dataset.stores.tar import members
from settings.config import build
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


def test_members_of_a_sample_are_grouped_wherever_they_are(tmp_path: Path) -> None:
    first = {
        "./x.input.jpg": ONE,
        "v1.0/y.JPG": TWO,
        "m.jpg": THREE,
        "m.mask.png": FOUR,
        "x.outputs.txt": b"said",
        "m.cls": b"cat\n",
        "._x.jpg": b"of a Mac",
        "v1.0/y.cls": b"ant",
        "x.cls": b"bee",
    }
    split = opened(shards(tmp_path, first))
    assert samples(split) == {
        "x.input.jpg": ("bee", ONE),
        "v1.0/y.JPG": ("ant", TWO),
        "m.jpg": ("cat", THREE),
    }
    assert left_out(split) == [
        "0.tar:m.mask.png\tnot read: the image of its sample is m.jpg"
    ]


def test_images_with_dots_in_their_names_are_samples_by_their_own_labels(
    tmp_path: Path,
) -> None:
    """scale_0.png and scale_0.5.png have one key to WebDataset, which keeps one of them."""
    own = {
        "s_0.png": ONE,
        "s_0.cls": b"a",
        "s_0.5.png": TWO,
        "s_0.5.cls": b"b",
        "d/v1.2.jpg": THREE,
    }
    split = opened(
        shards(
            tmp_path, {**own, "d/v1.2.cls": b"a", "d/v1.3.jpg": FOUR, "d/v1.txt": b""}
        )
    )
    assert samples(split) == {
        "s_0.png": ("a", ONE),
        "s_0.5.png": ("b", TWO),
        "d/v1.2.jpg": ("a", THREE),
    }
    assert left_out(split) == ["0.tar:d/v1.3.jpg\tno label: no .cls beside it"]


def test_images_with_dots_by_a_key_of_json(tmp_path: Path) -> None:
    """A .cls is not read where --label-key is given."""
    json_of = {
        "x.json": b'{"class": "cat"}',
        "x.1.json": b'{"class": "ant"}',
        "x.cls": b"0",
        "y.cls": b"1",
    }
    split = opened(
        shards(tmp_path, {"x.jpg": ONE, "x.1.jpg": TWO, "y.jpg": THREE, **json_of}),
        labels="class",
    )
    assert samples(split) == {"x.jpg": ("cat", ONE), "x.1.jpg": ("ant", TWO)}
    assert left_out(split) == ["0.tar:y.jpg\tno label: no class in its .json"]


def test_names_with_a_dot_as_a_folder_are_those_without(tmp_path: Path) -> None:
    own = {
        "./a.jpg": ONE,
        "./a.cls": b"0",
        "d/./b.jpg": TWO,
        "d/b.cls": b"1",
        "././d/./c.jpg": THREE,
    }
    split = opened(shards(tmp_path, {**own, "../d/c.jpg": FOUR, "d/.hidden.jpg": ONE}))
    assert samples(split) == {"a.jpg": ("0", ONE), "d/b.jpg": ("1", TWO)}
    assert [line.partition("\t")[0] for line in left_out(split)] == [
        "0.tar:../d/c.jpg",
        "0.tar:d/c.jpg",
    ]


def test_a_key_in_two_shards_is_two_samples(tmp_path: Path) -> None:
    split = opened(
        shards(tmp_path, {"x.jpg": ONE, "x.cls": b"a"}, {"x.jpg": TWO, "x.cls": b"b"})
    )
    assert samples(split) == {"0.tar/x.jpg": ("a", ONE), "1.tar/x.jpg": ("b", TWO)}
    assert split.source.name(1).endswith("/train/1.tar:x.jpg")


def test_of_a_name_twice_in_a_shard_the_last_one_is_taken(tmp_path: Path) -> None:
    data = shards(tmp_path, {"x.jpg": ONE, "x.cls": b"a"})
    with tarfile.open(data / "train" / "0.tar", "a") as file:
        member = tarfile.TarInfo("x.jpg")
        member.size = len(TWO)
        file.addfile(member, io.BytesIO(TWO))
    split = opened(data)
    assert samples(split) == {"x.jpg": ("a", TWO)}
    assert left_out(split) == [
        "0.tar:x.jpg\tcomes again in this shard; the last one is taken"
    ]


def test_what_is_no_sample_is_left_out_by_name(tmp_path: Path) -> None:
    data = shards(tmp_path, {"x.jpg": ONE, "x.cls": b"a"})
    own = {
        "n.txt": b"",
        "n.cls": b"a",
        "t.1.jpg": ONE,
        "t.2.jpg": TWO,
        "u.jpg": ONE,
        "w.jpg": b"",
        "w.cls": b"a",
    }
    path = write_tar(
        data / "train" / "1.tar", {**own, "c.jpg": ONE, "c.cls": b"two\nlines"}
    )
    with tarfile.open(path, "a") as file:
        for name, kind in (
            ("l.jpg", tarfile.LNKTYPE),
            ("s.jpg", tarfile.GNUTYPE_SPARSE),
        ):
            member = tarfile.TarInfo(name)
            member.type = kind
            member.linkname = "u.jpg"
            file.addfile(member)
    split = opened(data)
    assert [*samples(split)] == ["x.jpg"]
    assert sorted(left_out(split)) == [
        "1.tar:c.jpg\tits label is neither a word nor a number of a class",
        "1.tar:l.jpg\ta link",
        "1.tar:n\tno image among its members: n.cls, n.txt",
        "1.tar:s.jpg\ta sparse file of the tar",
        "1.tar:t.1.jpg\t2 images in one sample: t.1.jpg, t.2.jpg",
        "1.tar:t.2.jpg\t2 images in one sample: t.1.jpg, t.2.jpg",
        "1.tar:u.jpg\tno label: no .cls beside it",
        "1.tar:w.jpg\tempty file",
    ]


def test_integers_are_numbers_of_classes(tmp_path: Path) -> None:
    data = shards(
        tmp_path, {"x.jpg": ONE, "x.cls": b"3", "y.jpg": TWO, "y.cls": b"1\n"}
    )
    assert samples(opened(data)) == {"x.jpg": ("3", ONE), "y.jpg": ("1", TWO)}
    assert opened(data).columns.classes == ("0", "1", "2", "3")
    (data / "classes.txt").write_text("w\nx\ny\nz\n")
    assert samples(opened(data)) == {"x.jpg": ("z", ONE), "y.jpg": ("x", TWO)}
    write_tar(data / "train" / "1.tar", {"z.jpg": THREE, "z.cls": b"9"})
    assert (
        "/train/1.tar:z.jpg has the label '9', and all labels are numbers of classes, 0 to 3"
        in refused(lambda: opened(data))
    )
    write_tar(data / "train" / "1.tar", {"z.jpg": THREE, "z.cls": b"cat"})
    said = refused(lambda: opened(data))
    assert "1.tar:z.jpg has the label 'cat', and all labels are numbers" in said


def test_labels_by_a_key_of_json(tmp_path: Path) -> None:
    own = {
        "x.jpg": ONE,
        "x.json": b'{"class": "cat", "id": 7}',
        "y.json": b'{"class": "ant", "id": 8}',
        "y.jpg": TWO,
    }
    bad = {"z.jpg": THREE, "z.json": b"{", "w.jpg": FOUR, "w.json": b'{"class": null}'}
    split = opened(shards(tmp_path, own, bad), labels="class")
    assert samples(split) == {"x.jpg": ("cat", ONE), "y.jpg": ("ant", TWO)}
    assert len(left_out(split)) == 2
    with pytest.raises(UserError, match="no label: no "):
        opened(shards(tmp_path, own))


def test_a_label_key_goes_before_what_cls_holds(tmp_path: Path) -> None:
    """A sample without it is left out by name, and does not get another kind of label."""
    own = {"x.jpg": ONE, "x.cls": b"3", "x.json": b'{"breed": "pug"}'}
    split = opened(
        shards(tmp_path, {**own, "y.jpg": TWO, "y.cls": b"4"}), labels="breed"
    )
    assert samples(split) == {"x.jpg": ("pug", ONE)}
    assert left_out(split) == ["0.tar:y.jpg\tno label: no breed in its .json"]


def test_labels_stay_apart_whatever_they_hold(tmp_path: Path) -> None:
    words = {
        "a": b"caf\xe9",
        "b": b"caf\xe8",
        "c": b"great\xc2\xa0dane\n",
        "d": b"great dane",
    }
    own = {f"{name}.jpg": ONE for name in words} | {
        f"{name}.cls": word for name, word in words.items()
    }
    found = samples(opened(shards(tmp_path, own)))
    assert [label for label, _ in found.values()] == [
        "caf\udce9",
        "caf\udce8",
        "great\u00a0dane",
        "great dane",
    ]


def test_names_of_classes_may_lie_in_train_alone(tmp_path: Path) -> None:
    data = shards(tmp_path, {"x.jpg": ONE, "x.cls": b"1"})
    write_tar(data / "val" / "0.tar", {"y.jpg": TWO, "y.cls": b"0"})
    (data / "train" / "classes.txt").write_text("cat\ndog\n")
    settings = build({"data": data, "manifest_dir": tmp_path / "cache"}).data
    splits = open_splits(settings, loader="torchvision", console=Console())
    assert samples(splits["train"]) == {"x.jpg": ("dog", ONE)}
    assert samples(splits["val"]) == {"y.jpg": ("cat", TWO)}


def test_shards_without_an_image_are_told(tmp_path: Path) -> None:
    data = shards(tmp_path, {"x.txt": b""})
    assert (
        "no image in " in (said := refused(lambda: opened(data)))
        and "0.tar:x: no image among" in said
    )


def damaged(offset: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:offset] + b"?" + content[offset + 1 :]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            gzip.compress,
            "is compressed, so that no sample can be read without all before it; unpack it",
        ),
        (
            lambda content: content[: len(content) // 2],
            "is cut short, or still being written",
        ),
        (lambda content: content.rstrip(b"\0"), "is cut short, or still being written"),
        (
            lambda content: content[: -(-len(content.rstrip(b"\0")) // 512) * 512],
            "its end mark is missing",
        ),
        (lambda content: b"", "its end mark is missing"),
        (
            lambda content: content * 2,
            "behind its end mark, as tars that were joined by cat do",
        ),
        (lambda content: b"<html>" * 99, "is no tar file"),
        (damaged(512 + -(-len(ONE) // 512) * 512 + 9), "is damaged at byte"),
    ],
    ids=["gz", "half", "no-padding", "no-end", "empty", "joined", "no-tar", "damaged"],
)
def test_what_is_not_whole_is_refused_at_the_start(
    change: Callable[[bytes], bytes], said: str, tmp_path: Path
) -> None:
    shard = shards(tmp_path, {"x.jpg": ONE, "x.cls": b"a"}) / "train" / "0.tar"
    shard.write_bytes(change(shard.read_bytes()))
    found = refused(lambda: opened(tmp_path / "data"))
    assert said in found and str(shard) in found


def test_compressed_shards_are_refused_with_the_command(tmp_path: Path) -> None:
    shard = tmp_path / "data" / "train" / "0.tar.gz"
    shard.parent.mkdir(parents=True)
    shard.write_bytes(gzip.compress(b""))
    assert f"gunzip -k {shard}" in refused(
        lambda: open_split(shard.parent, cache=tmp_path / "cache")
    )


@pytest.mark.parametrize(
    "form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
)
def test_the_walk_finds_what_tarfile_finds(form: int, tmp_path: Path) -> None:
    names = ["a.jpg", f"{'d' * 90}/{'e' * 60}.jpg", "é\n.jpg"]
    names += [] if form == tarfile.USTAR_FORMAT else [f"{'long' * 80}.jpg"]
    path = write_tar(
        tmp_path / "x.tar", {name: name.encode() * 99 for name in names}, form=form
    )
    with tarfile.open(path) as file, open(path, "rb") as raw:
        expected = [
            (os.fsencode(member.name), member.offset_data, member.size)
            for member in file
        ]
        found = [
            (member.name, member.offset, member.size)
            for member in members(raw, path, path.stat().st_size)
        ]
    assert found == expected and len(found) == len(names)


def test_sizes_in_base_256_and_of_extended_headers(tmp_path: Path) -> None:
    """Sizes of 8 GiB and more: the bytes are not here, and the walk says where they would end."""
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        member = tarfile.TarInfo("x.jpg")
        member.size = 9 << 30
        path = tmp_path / "x.tar"
        path.write_bytes(member.tobuf(form))
        with (
            open(path, "rb") as file,
            pytest.raises(UserError, match=r"a member ends at byte 9,663,67\d,"),
        ):
            list(members(file, path, path.stat().st_size))


def test_a_shard_that_changes_is_refused_by_name_and_a_new_one_is_seen(
    tmp_path: Path,
) -> None:
    data = shards(
        tmp_path, {"x.jpg": ONE, "x.cls": b"a"}, {"y.jpg": TWO, "y.cls": b"a"}
    )
    before = opened(data)
    os.utime(data / "train" / "1.tar", ns=(1, 1))
    assert before.source.read(0) == ONE
    said = refused(lambda: before.source.read(1))
    assert "/train/1.tar:y.jpg: its shard has changed since it was scanned" in said
    shard = data / "train" / "0.tar"
    date = shard.stat().st_mtime_ns
    shard.write_bytes(shard.read_bytes() + bytes(512))
    os.utime(shard, ns=(date, date))
    assert "its shard has changed" in refused(lambda: before.source.read(0)), (
        "its size tells too"
    )
    write_tar(data / "train" / "2.tar", {"z.jpg": THREE, "z.cls": b"a"})
    assert len(opened(data).columns) == 3
