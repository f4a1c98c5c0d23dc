"""Every source keeps the contract; loaders give its batches, or refuse it in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from saturate.contracts import Feed, Source, Split, UserError
from saturate.dataset.open import are_files, open_splits
from saturate.dataset.pairs.columns import source_of
from saturate.dataset.stores import SOURCES, SourceModule, source_named
from saturate.loaders import LOADERS, open_loader
from saturate.settings.config import build
from tests.conformance import scenes, sources
from tests.conformance.scenes import Scene
from tests.conformance.sources import LAYOUTS
from tests.unit.folders import fill
from tests.unit.test_splits import Console

WRITTEN = {
    f"{'ab'[place % 2]}/{name}.jpg": content
    for place, (name, content) in enumerate(scenes.small(8).items())
}
WRITTEN["b/two\nlines.jpg"] = WRITTEN.pop("b/small-007.jpg")
OTHER = {**WRITTEN, "a/small-000.jpg": scenes.small(9)["small-008"]}


@pytest.fixture(params=sorted(SOURCES))
def kind(request: pytest.FixtureRequest) -> str:
    return sources.required(request.param)


Open = Callable[..., Split]


def stored(kind: str, data: Path, files: sources.Files = WRITTEN) -> Open:
    """What opens these files as a split of a source, once they are laid out."""
    data.mkdir(exist_ok=True)
    LAYOUTS[kind].write(data, "train", files)
    return partial(source_named(kind).open, data, "train", cache=data.parent / "cache")


def data_set(kind: str, data: Path) -> Path:
    for place in ("train", "val"):
        LAYOUTS[kind].write(data, place, WRITTEN)
    return data


def opened(data: Path, source: str) -> dict[str, Split]:
    config = build(
        {"data": data, "manifest_dir": data.parent / "cache", "source": source}
    )
    return open_splits(config.data, loader="torchvision", console=Console())


CHECKS: dict[str, Callable[[Split, sources.Files], None]] = {
    "names": sources.names_tell_samples_apart,
    "bytes": sources.bytes_are_those_written,
    "ranges": sources.ranges_end_with_their_entry,
    "parts": sources.parts_are_of_the_whole,
    "columns": sources.columns_and_bytes_agree,
    "order": sources.names_ascend,
    "size": sources.another_size_is_refused,
    "processes": sources.processes_and_threads_read_alike,
    "files": sources.samples_are_files_where_it_says_so,
}


def test_a_source_keeps_the_contract(kind: str, tmp_path: Path) -> None:
    split = stored(kind, tmp_path / "data")()
    sources.a_copy_opens_nothing(split, WRITTEN, tmp_path / "data")
    for check in CHECKS.values():
        check(split, WRITTEN)
    module: SourceModule = source_named(kind)
    assert split.source.files is module.FILES and module.HOLDS
    assert not module.missing(tmp_path / "data", "train")
    assert "test" in module.missing(tmp_path / "data", "test")


@pytest.mark.parametrize("of", ["folder", "tar"])
def test_a_source_of_pairs_keeps_the_contract(of: str, tmp_path: Path) -> None:
    """The large images lie in any source, of files or not; here one patch of each."""
    split = stored(of, tmp_path / "data")()
    pairs = source_of(split.source, np.arange(len(split.columns)))
    for check in CHECKS.values():
        check(replace(split, source=pairs), WRITTEN)


def test_what_is_gone_is_named(kind: str, tmp_path: Path) -> None:
    sources.what_is_gone_is_named(
        stored(kind, tmp_path / "data")(), WRITTEN, LAYOUTS[kind]
    )


def test_fingerprint_and_delay(kind: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    open_ = stored(kind, tmp_path / "data")
    sources.the_fingerprint_is_of_the_data(
        open_, stored(kind, tmp_path / "other" / "data", OTHER)
    )
    sources.reads_take_as_long_as_asked(open_)


def test_auto_takes_the_one_that_holds_the_data(kind: str, tmp_path: Path) -> None:
    data = data_set(kind, tmp_path / "data")
    for source in ("auto", kind):
        splits = opened(data, source)
        holders = {type(split.source).__module__ for split in splits.values()}
        shards = kind in ("tar", "arrow")
        assert holders == {
            "saturate.dataset.stores.shards" if shards else SOURCES[kind]
        }
        assert not shards or f".{kind}:" in splits["val"].source.name(0)
        assert splits["val"].columns.classes == ("a", "b")
        settings = build({"data": data, "source": source}).data
        assert are_files(settings, "images") is source_named(kind).FILES


def test_what_no_source_is_chosen_for(tmp_path: Path) -> None:
    both = data_set("tar", data_set("folder", tmp_path / "both"))
    assert opened(both, "tar")["train"].source.files is False
    with pytest.raises(
        UserError, match="choose one with --source folder or --source tar"
    ):
        opened(both, "auto")
    # one of shards is no folder of images; but one of images alone is, as detection has them
    for name, lacking in (("0.tar", "class folders in train/"), ("0.jpg", "")):
        fill(tmp_path / name, {f"train/{name}": b""})
        assert source_named("folder").missing(tmp_path / name, "train") == lacking


class Held(Source):
    """The bytes of another source, in memory."""

    files = False
    read_delay_s = 0.0

    def __init__(self, source: Source) -> None:
        self.contents = [source.read(sample) for sample in range(len(source))]

    def __len__(self) -> int:
        return len(self.contents)

    def name(self, sample: int) -> str:
        return f"sample {sample}"

    def read(self, sample: int) -> bytes:
        return self.contents[sample]

    def check(self, sample: int, size: int) -> None:
        assert len(self.contents[sample]) == size


def same_batches(open_: scenes.Open, feed: Feed, other: Feed) -> None:
    with open_(feed) as one, open_(other) as two:
        for a, b in zip(one.batches(0, 0), two.batches(0, 0), strict=True):
            assert torch.equal(a.images, b.images) and not (a.failed or b.failed)
            np.testing.assert_array_equal(a.ids, b.ids)
            for name, value in a.targets.items():
                assert torch.equal(value, b.targets[name]), name


NAMES = sorted(name for name, spec in LOADERS.items() if spec.media != ("pairs",))


@pytest.mark.parametrize("name", NAMES)
def test_a_loader_takes_bytes_or_says_which_does(
    name: str, small: Scene, quick_clips: Scene
) -> None:
    """What opens files itself refuses at once; what does not gives the batches that it gives of files."""
    images = "images" in LOADERS[name].media
    feed = (small if images else quick_clips).feed(batch_size=5, training=False)
    other = replace(feed, source=Held(feed.source))
    if LOADERS[name].opens_files:
        with pytest.raises(UserError, match="torchvision" if images else "pyav"):
            open_loader(name, other)
        return
    same_batches(partial(open_loader, name), feed, other)
