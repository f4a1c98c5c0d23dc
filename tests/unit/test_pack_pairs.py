"""scripts.pack --pairs: a large and its small image as one entry, the same patches to training."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contracts import UserError
from dataset.pairs import entry
from dataset.scan.manifest import Rejected
from plan.patches import HIGH
from scripts import pack
from tests.conformance import sources
from tests.unit.superres_files import feed_of, lengths_read, opened, write, write_small
from tests.unit.test_superres_loader import passed


def packed(tmp_path: Path, form: str) -> Path:
    sources.required(form)
    for split in ("train", "val"):
        folder = tmp_path / "data" / split
        write_small(folder / "LR", write(folder / "HR", 6, even=True), 2)
    target = tmp_path / "packed"
    command = [str(target), "--from", str(tmp_path / "data"), "--format", form]
    command += ["--pairs", "raw", "--manifest-dir", str(tmp_path / "cache")]
    assert pack.main(command) == 0 and pack.main(command) == 0
    return target


@pytest.mark.parametrize("form", ["tar", "lmdb", "arrow"])
def test_pairs_give_the_patches_of_their_files(form: str, tmp_path: Path) -> None:
    """Training and validation show the small images that were stored, with several patches of each."""
    target = packed(tmp_path, form)
    whole: dict[str, Any] = {"patch": None, "batch_size": 1}
    for split, patches, how in (("train", 3, {}), ("val", 1, whole)):
        files = passed(
            feed_of(opened(tmp_path / "data", split, patches=patches), **how)
        )
        for workers in (0, 2):
            pairs = opened(target, split, patches=patches)
            assert not pairs.columns.made
            again = passed(feed_of(pairs, workers=workers, **how))
            for one, other in zip(files, again, strict=True):
                assert torch.equal(one.images, other.images)
                assert torch.equal(one.targets[HIGH], other.targets[HIGH])


def test_of_a_raw_pair_the_rows_of_a_patch_alone_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = opened(packed(tmp_path, "tar"))
    asked = lengths_read(monkeypatch)
    assert all(batch.valid.all() for batch in passed(feed_of(split)))
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
    batches = passed(feed_of(split, batch_size=2))
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
    with pytest.raises(UserError, match=r"is a pair at a scale of 2; --scale is 4"):
        opened(target, scale=4)
    os.rename(tmp_path / "data/train/LR", tmp_path / "LR")
    for flags, said in (
        ([], "train has no small images beside its large ones"),
        (["--format", "folder"], "--pairs goes to --format lmdb, tar or arrow"),
        (["--from", "s3://key@there/x"], "copy s3://there/x here first"),
        (["--from", str(target)], "has train as tar; leave one of them out"),
        (["--source", "lmdb"], "has train as lmdb; leave one of them out"),
    ):
        command = [str(tmp_path / "to"), "--from", str(tmp_path / "data")]
        capsys.readouterr()
        assert pack.main([*command, "--pairs", "raw", *flags]) == 2
        assert said in capsys.readouterr().err
