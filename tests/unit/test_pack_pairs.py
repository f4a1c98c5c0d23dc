"""scripts.pack --pairs: a large and its small image as one entry, the same patches to training."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contracts import Batch, Split, UserError
from dataset.pairs import entry
from dataset.scan.manifest import Rejected
from plan.patches import HIGH
from scripts import pack
from tests.conformance import sources
from tests.unit.superres_files import feed_of, lengths_read, opened, write, write_small
from tests.unit.test_superres_loader import passed


def data_of(tmp_path: Path) -> Path:
    for split in ("train", "val"):
        folder = tmp_path / "data" / split
        write_small(folder / "LR", write(folder / "HR", 6, even=True), 2)
    return tmp_path / "data"


def packed(tmp_path: Path, form: str) -> Path:
    target = tmp_path / "packed"
    command = [
        str(target),
        "--from",
        str(data_of(tmp_path)),
        "--format",
        form,
        "--pairs",
        "raw",
    ]
    assert pack.main([*command, "--manifest-dir", str(tmp_path / "cache")]) == 0
    return target


def delivered(split: Split, **how: Any) -> list[Batch]:
    return passed(feed_of(split, **how))


@pytest.mark.parametrize("form", ["tar", "lmdb", "arrow"])
def test_pairs_give_the_patches_of_their_files(form: str, tmp_path: Path) -> None:
    """Training and validation show the small images that were stored, with several patches of each."""
    if not sources.here(form):
        pytest.skip("without its package")
    target = packed(tmp_path, form)
    for split, how in (("train", {}), ("val", {"patch": None, "batch_size": 1})):
        patches = 3 if split == "train" else 1
        files = delivered(opened(tmp_path / "data", split, patches=patches), **how)
        for workers in (0, 2):
            pairs = opened(target, split, patches=patches)
            assert not pairs.columns.made
            for one, other in zip(
                files, delivered(pairs, workers=workers, **how), strict=True
            ):
                assert torch.equal(one.images, other.images)
                assert torch.equal(one.targets[HIGH], other.targets[HIGH])


def test_of_a_raw_pair_the_rows_of_a_patch_alone_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = opened(packed(tmp_path, "tar"))
    asked = lengths_read(monkeypatch)
    assert all(batch.valid.all() for batch in delivered(split))
    assert 0 < max(asked) <= 16 * 3 * 120


def test_a_damaged_pair_keeps_its_place_masked(tmp_path: Path) -> None:
    split = opened(packed(tmp_path, "tar"))
    source: Any = split.source.source  # type: ignore[attr-defined]
    path = sources.shard_of(source, 2)
    with open(path, "r+b") as shard:
        status = os.fstat(shard.fileno())
        shard.seek(int(split.columns.high.offset[2]) + 24)
        shard.write(bytes(100))  # the length of the large image, and its first bytes
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    batches = delivered(split, batch_size=2)
    assert sum(int(batch.valid.sum()) for batch in batches) == 5
    assert [sample for batch in batches for sample in batch.failed] == [2]


def test_a_pair_that_is_smaller_than_it_was_is_rejected() -> None:
    """Height and width have changed places: there are as many bytes, and other pixels in a region."""
    high = entry.encoded(np.zeros((4, 12, 3), np.uint8), np.zeros((2, 6, 3), np.uint8))

    def read_at(offset: int, length: int) -> bytes:
        return high[offset : offset + length]

    entry.read(len(high), read_at, [(0, 0, 12, 4)], scale=2, small=False)
    with pytest.raises(Rejected, match="has 12 x 4 pixels"):
        entry.read(len(high), read_at, [(0, 0, 4, 12)], scale=2, small=False)


def test_mistakes_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = packed(tmp_path, "tar")
    with pytest.raises(
        UserError, match=r"pairs/0000.pair is a pair at a scale of 2; --scale is 4"
    ):
        opened(target, scale=4)
    os.rename(tmp_path / "data/train/LR", tmp_path / "LR")
    command = [str(tmp_path / "to"), "--from", str(tmp_path / "data"), "--pairs", "raw"]
    assert pack.main(command) == 2
    assert "train has no small images beside its large ones" in capsys.readouterr().err
    assert pack.main([*command, "--format", "folder"]) == 2
    for flags, said in (
        (
            ["--pairs", "raw", "--scale", "0"],
            "--scale got 0: input should be greater than or equal to 2\n",
        ),
        (["--scale", "3"], "--scale is of --pairs; give both, or neither\n"),
        (
            ["--pairs", "raw", "--from", "s3://key@there/x"],
            "copy s3://there/x here first\n",
        ),
        (["--pairs", "raw", "--from", str(target)], f"and {target} has train as tar\n"),
        (
            ["--pairs", "raw", "--source", "lmdb"],
            "or --pairs out where it has one image an entry\n",
        ),
    ):
        capsys.readouterr()
        assert (
            pack.main([str(tmp_path / "to"), "--from", str(tmp_path / "data"), *flags])
            == 2
        )
        assert capsys.readouterr().err.endswith(said)
