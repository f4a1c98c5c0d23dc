"""Every source keeps the contract; loaders give its batches, or refuse it in one line."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contracts import Feed, Source, Split, UserError
from dataset.coco.scan import open_coco
from dataset.open import are_files, open_splits
from dataset.pairs.columns import source_of
from dataset.scan import file_tree
from dataset.stores import SOURCES, SourceModule, source_named, what_holds
from dataset.stores.folder import Folder
from loaders import LOADERS, default_loader, open_loader
from plan.boxes import DetectionPlan, DetectionPolicy
from settings.config import build
from tests.conformance import placed, scenes, sources, toy
from tests.conformance.checks import raises
from tests.conformance.scenes import CPU, Backend, Scene
from tests.conformance.sources import LAYOUTS
from tests.unit.coco_files import write_coco
from tests.unit.folders import fill
from tests.unit.test_splits import Console

WRITTEN = {
    f"{'ab'[place % 2]}/{name}.jpg": content
    for place, (name, content) in enumerate(scenes.small(8).items())
}
WRITTEN["b/two\nlines.jpg"] = WRITTEN.pop("b/small-007.jpg")
OTHER = {**WRITTEN, "a/small-000.jpg": scenes.small(9)["small-008"]}


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "toy", "tests.conformance.toy")


@pytest.fixture(params=sorted({*SOURCES, "toy"}))
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    if not sources.here(found):
        pytest.skip(f"without {sources.MAY_LACK[found]}")
    return found


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
    "columns": sources.columns_and_bytes_agree,
    "order": sources.names_ascend,
    "size": sources.another_size_is_refused,
    "processes": sources.processes_and_threads_read_alike,
    "files": sources.samples_are_files_where_it_says_so,
}


def test_every_source_of_the_table_is_tested() -> None:
    assert {*SOURCES} == {*LAYOUTS}


@pytest.mark.parametrize("check", CHECKS)
def test_a_source_keeps_the_contract(kind: str, check: str, tmp_path: Path) -> None:
    CHECKS[check](stored(kind, tmp_path / "data")(), WRITTEN)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("of", ["folder", "tar"])
def test_a_source_of_pairs_keeps_the_contract(
    of: str, check: str, tmp_path: Path
) -> None:
    """It has the large images of any source, of files or not; here one patch of each."""
    split = stored(of, tmp_path / "data")()
    pairs = source_of(split.source, np.arange(len(split.columns)))
    CHECKS[check](replace(split, source=pairs), WRITTEN)


def test_a_copy_opens_nothing_before_it_reads(kind: str, tmp_path: Path) -> None:
    sources.a_copy_opens_nothing(
        stored(kind, tmp_path / "data")(), WRITTEN, tmp_path / "data"
    )


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


def test_a_module_says_what_its_source_is(kind: str, tmp_path: Path) -> None:
    module: SourceModule = source_named(kind)
    data = tmp_path / "data"
    data.mkdir()
    assert "train" in module.missing(data, "train")
    split = stored(kind, data)()
    assert not module.missing(data, "train") and "val" in module.missing(data, "val")
    assert split.source.files is module.FILES and module.HOLDS
    if kind not in (
        "tar",
        "arrow",
    ):  # of these columns the source is another one, tried with COCO's
        assert module.source(split.columns, 0.5).read_delay_s == 0.5


def test_all_sources_have_one_fingerprint(tmp_path: Path) -> None:
    prints = {
        kind: stored(kind, tmp_path / kind)().columns.fingerprint
        for kind in filter(sources.here, SOURCES)
    }
    assert len(set(prints.values())) == 1, prints


PLANTS: list[tuple[str, Callable[[Any], Source]]] = [
    ("names", sources.OneName),
    ("names", sources.TwoLines),
    ("bytes", sources.Neighbour),
    ("columns", sources.Neighbour),
    ("size", sources.Deaf),
    ("size", sources.Nameless),
    ("processes", sources.OneProcess),
    ("processes", sources.OneThread),
]


def raised(check: Callable[..., Any], *arguments: Any) -> bool:
    """Whether a check fails, be it that it is not refused what should be, or that a plant breaks."""
    try:
        return raises(check, *arguments)
    except (pytest.fail.Exception, TypeError, AttributeError, UserError):
        return True


@pytest.mark.parametrize(("check", "plant"), PLANTS)
def test_a_fault_is_refused(
    check: str, plant: Callable[[Any], Source], tmp_path: Path
) -> None:
    split = stored("folder", tmp_path / "data")()
    assert raised(
        CHECKS[check], replace(split, source=plant(split.columns)), {**WRITTEN}
    ), f"{check} lets it pass"


def test_faults_around_a_source_are_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    open_ = stored("folder", data)
    split = open_()
    for plant in (sources.Eager, sources.Locked):
        assert raised(
            sources.a_copy_opens_nothing,
            replace(split, source=plant(split.columns)),
            WRITTEN,
            data,
        )
    assert raised(
        sources.columns_and_bytes_agree,
        sources.with_sizes_of_neighbours(split),
        WRITTEN,
    )
    assert raised(
        sources.reads_take_as_long_as_asked,
        lambda **how: replace(split, source=sources.Hasty(split.columns, **how)),
    )
    assert raised(sources.the_fingerprint_is_of_the_data, open_, open_)
    drawn = lambda **_: replace(  # noqa: E731
        split, columns=replace(split.columns, fingerprint=os.urandom(4).hex())
    )
    assert raised(sources.the_fingerprint_is_of_the_data, drawn, drawn)
    for faulty in (sources.NoPaths, sources.Paths):
        source = faulty(split.columns, {})
        assert raised(
            sources.samples_are_files_where_it_says_so,
            replace(split, source=source),
            WRITTEN,
        )
    gone = replace(split, source=sources.Nameless(split.columns))
    assert raised(sources.what_is_gone_is_named, gone, WRITTEN, LAYOUTS["folder"])


def test_names_in_another_order_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such as a source lists them that writes them itself."""

    def written(labels: dict[bytes, int], made: Path) -> None:
        names = sorted(labels, reverse=True)
        file_tree.write_file_list(names, made, [labels[name] for name in names])

    monkeypatch.setattr(file_tree, "write_labelled", written)
    assert raised(sources.names_ascend, stored("toy", tmp_path / "data")(), WRITTEN)


def mistake(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    said = str(caught.value)
    assert "\n" not in said
    return said


def test_auto_takes_the_one_that_holds_the_data(kind: str, tmp_path: Path) -> None:
    data = data_set(kind, tmp_path / "data")
    for source in ("auto", kind):
        splits = opened(data, source)
        holders = [
            getattr(split.source, "container", split.source)
            for split in splits.values()
        ]
        module = "dataset.stores.shards" if kind in ("tar", "arrow") else SOURCES[kind]
        assert {type(holder).__module__ for holder in holders} == {module}
        assert module == SOURCES[kind] or f".{kind}:" in splits["val"].source.name(0)
        assert splits["val"].columns.classes == ("a", "b")
        settings = build({"data": data, "source": source}).data
        assert are_files(settings, "images") is source_named(kind).FILES


def test_auto_refuses_when_two_fit(tmp_path: Path) -> None:
    data = data_set("toy", data_set("folder", tmp_path / "data"))
    assert (
        "train can be read as folder and as toy; choose one with --source folder or --source toy"
        in mistake(lambda: opened(data, "auto"))
    )
    assert opened(data, "toy")["train"].source.files is False


def test_a_folder_of_something_else_is_no_folder_of_images(tmp_path: Path) -> None:
    """Such as one of shards; but one of images alone is, for detection has no class folders."""
    for name, lacking in (
        ("0.tar", "class folders in train/"),
        ("0.jpg", ""),
        ("ant/0.tar", ""),
    ):
        fill(tmp_path / name.replace("/", "-"), {f"train/{name}": b""})
        assert (
            source_named("folder").missing(tmp_path / name.replace("/", "-"), "train")
            == lacking
        )


def test_what_is_not_there(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    assert f"has no train/ folder; it must be {what_holds('auto')}" in mistake(
        lambda: opened(data, "auto")
    )
    assert f"{source_named('folder').HOLDS}; or " in what_holds(
        "auto"
    ) and toy.HOLDS in what_holds("auto")
    assert f"has no train.toy; it must be {toy.HOLDS}" in mistake(
        lambda: opened(data, "toy")
    )
    assert (
        "--source got 'lmbd', which is unknown; known: auto, folder, list, lmdb, tar, arrow, toy"
        in mistake(lambda: opened(data, "lmbd"))
    )
    config = build({"data": data, "source": "toy"})
    said = mistake(
        lambda: open_splits(
            config.data, content="videos", loader="pyav", console=Console()
        )
    )
    assert "--source toy is for images; videos are files" in said


def held(columns: Any, folder: Source) -> toy.Memory:
    return toy.Memory(
        columns,
        {columns.entry(sample): folder.read(sample) for sample in range(len(columns))},
    )


def same_batches(open_: scenes.Open, feed: Feed, other: Feed) -> None:
    with open_(feed) as one, open_(other) as two:
        for a, b in zip(one.batches(0, 0), two.batches(0, 0), strict=True):
            assert torch.equal(a.images, b.images) and not (a.failed or b.failed)
            np.testing.assert_array_equal(a.ids, b.ids)
            for name, value in a.targets.items():
                assert torch.equal(value, b.targets[name]), name


def test_batches_of_another_sample_are_refused(small: Scene) -> None:
    feed = small.feed(batch_size=5, training=False)
    assert raises(
        same_batches,
        partial(open_loader, "torchvision"),
        feed,
        replace(feed, source=sources.Neighbour(feed.columns)),
    )


NAMES = sorted(name for name, spec in LOADERS.items() if spec.media != ("pairs",))


@pytest.mark.parametrize("name", NAMES)
def test_a_loader_takes_bytes_or_says_which_does(
    name: str, small: Scene, quick_clips: Scene
) -> None:
    """What opens files itself refuses at once; what does not gives the batches that it gives of files."""
    images = "images" in LOADERS[name].media
    feed = (small if images else quick_clips).feed(batch_size=5, training=False)
    other = replace(feed, source=held(feed.columns, feed.source))
    if LOADERS[name].opens_files:
        said = mistake(lambda: open_loader(name, other))
        assert name in said and (
            "dali-fed" in said and "torchvision" in said if images else "pyav" in said
        )
        return
    same_batches(partial(open_loader, name), feed, other)


def test_what_auto_is_of_bytes() -> None:
    images = [default_loader("images", gpu=gpu, files=False) for gpu in (False, True)]
    videos = [default_loader("videos", gpu=gpu, files=False) for gpu in (False, True)]
    assert images == ["torchvision", "dali-fed"] and videos == ["pyav", "pyav"]
    assert default_loader("images", gpu=True) == "dali-gpu"


@pytest.mark.parametrize("name", ["torchvision", "dali-fed"])
def test_images_of_detection_come_from_a_source(name: str, tmp_path: Path) -> None:
    """The annotations are a file; columns, targets and pixels are those of the folder."""
    data = write_coco(
        tmp_path / "coco", splits={"train2017": 8, "val2017": 4}, size=(64, 80)
    ).resolve()
    how: dict[str, Any] = {"keypoints": False, "cache": tmp_path / "cache"}
    folder = open_coco(data, "train", **how)
    for place in ("train2017", "val2017"):
        files = {
            f"{place}/{file.name}": file.read_bytes()
            for file in (data / place).iterdir()
        }
        sources.write_toy(data, place, files)
        for file in (data / place).iterdir():
            file.unlink()
        (data / place).rmdir()
    config = build({"data": data, "manifest_dir": tmp_path / "cache"})
    split = open_splits(
        config.data, content="instances", loader=name, console=Console()
    )["train"]
    assert split.columns.fingerprint == folder.fingerprint and isinstance(
        split.source, toy.Memory
    )
    plan = DetectionPlan.of(
        folder,
        DetectionPolicy(augment="flip", size=60, longer=100, flip=0.5),
        seed=3,
        batch_size=4,
    )
    feed = Feed(
        plan=plan,
        source=split.source,
        columns=split.columns,
        targets=placed.packed,
        device=CPU,
        workers=1,
    )
    stored_in = tmp_path / "again"
    for path, content in toy.every(data).items():
        file = stored_in / os.fsdecode(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    files_again = Folder(replace(folder, root=stored_in))
    same_batches(
        Backend(name=name).open, feed, replace(feed, source=files_again, columns=folder)
    )
