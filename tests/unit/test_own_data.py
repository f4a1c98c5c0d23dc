"""Settings of the data that come with a checkpoint hold for its own data: compared by content, not by a path."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from saturate.dataset.model_classes import ModelClasses
from saturate.dataset.open import open_splits
from saturate.dataset.val_split import sketched
from saturate.run import pack
from saturate.settings.config import FACTS_OF, build
from saturate.tasks.initial_state import Start
from tests.unit.folders import JPEG, fill
from tests.unit.test_splits import Console

CLASSES = ("daisy", "rose", "tulip")


def photos(root: Path, first: int, *, below: str = "", each: int = 10) -> Path:
    """Write so many images of each class; names and sizes in bytes are those of any other such set."""
    return fill(
        root,
        {
            f"{below}{name}/{at:04}.jpg": JPEG + b"%09d" % (first + 1000 * place + at)
            for place, name in enumerate(CLASSES)
            for at in range(each)
        },
    )


class Run:
    """A training of photos with --val-share 0.2, and evaluations with its checkpoint."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        self.cache = {"manifest_dir": tmp_path / "cache"}
        self.data = tmp_path / "photos"
        if not self.data.exists():
            photos(self.data, 0)
        config = build({"data": self.data, "val_share": 0.2, **settings, **self.cache})
        splits = open_splits(config.data, loader="torchvision", console=Console())
        self.train, self.val = (
            {split.source.read(i) for i in range(len(split.columns))}
            for split in splits.values()
        )
        columns = splits["train"].columns
        self.content = {
            "config": config.flat(),
            "arch": "resnet18",
            "classes": list(columns.classes),
            "manifest": columns.fingerprint,
            **sketched(columns, None),
        }

    def evaluated(self, **flags: Any) -> tuple[set[bytes], Start]:
        """Return the bytes of the images that an evaluation with these flags validates, and its start."""
        words = {"evaluate": True, **flags}
        config = build({**words, **self.cache})
        start = Start.from_config(
            config, words, self.content, path=None, origin="--resume a.pt"
        )
        trained = start.trained_on(self.content)

        def opened(config: Any) -> Any:
            return open_splits(
                config.data,
                loader="torchvision",
                evaluate=True,
                model=ModelClasses(names=CLASSES, origin="--resume a.pt"),
                trained=trained if config.data.val_share else None,
                console=Console(),
            )

        start, splits = start.on_its_data(opened)
        val = splits["val"]
        return {val.source.read(i) for i in range(len(val.columns))}, start


def everything(root: Path) -> set[bytes]:
    return {path.read_bytes() for path in root.rglob("*.jpg")}


@pytest.fixture(params=["sketch", "older"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """A checkpoint of now, or one of before, which has no sketch and is compared by names and sizes."""
    run = Run(tmp_path)
    assert 2 <= len(run.val) <= 12 and run.train.isdisjoint(run.val)
    if request.param == "older":
        for name in ("sketch", "share_rule"):
            del run.content[name]
        del run.content["config"]["val_group"]
    return run


def test_its_own_data_keep_the_share(run: Run) -> None:
    found, start = run.evaluated()
    assert found == run.val and start.messages == []
    assert run.evaluated(data=run.data)[0] == run.val
    moved = run.data.rename(run.data.parent / "moved")
    assert run.evaluated(data=moved)[0] == run.val


def test_a_hold_out_is_scored_whole(run: Run) -> None:
    holdout = photos(run.data.parent / "holdout", 50_000, each=11)
    found, start = run.evaluated(data=holdout)
    assert found == everything(holdout) and len(found) == 33
    (line,) = start.messages
    assert "--val-share 0.2" in line and f"--data {holdout}, which is not what" in line
    # what is given is what holds
    given, start = run.evaluated(data=holdout, val_share=0.2)
    assert 0 < len(given) < 20 and not any(
        "left out" in line for line in start.messages
    )
    assert run.evaluated(data=run.data, val_share=None)[0] == everything(run.data)


def test_a_hold_out_with_train_and_val_is_not_refused(run: Run) -> None:
    holdout = photos(run.data.parent / "holdout", 50_000, below="train/")
    photos(holdout, 70_000, below="val/")
    found, start = run.evaluated(data=holdout)
    assert found == everything(holdout / "val") and len(start.messages) == 1


def test_a_packed_hold_out_is_not_refused(run: Run) -> None:
    """Also of a run with --source folder."""
    run.content["config"]["source"] = "folder"
    holdout = photos(run.data.parent / "holdout", 50_000, below="train/")
    photos(holdout, 70_000, below="val/")
    target = run.data.parent / "tar"
    words = [str(target), "--from", str(holdout), "--format", "tar"]
    assert pack.main([*words, "--manifest-dir", str(run.cache["manifest_dir"])]) == 0
    found, start = run.evaluated(data=target)
    assert found == everything(holdout / "val")
    assert "--source folder" in start.messages[0]


def test_settings_of_stores_and_lists_do_not_follow_to_folders(run: Run) -> None:
    holdout = photos(run.data.parent / "holdout", 50_000, below="val/")
    for own in (
        {"label_key": "species", "source": "tar"},
        {"lmdb_label": "prefix"},
        {"multi_label": True},
    ):
        run.content["config"] |= {"val_share": None, **own}
        assert run.evaluated(data=holdout)[0] == everything(holdout)
        run.content["config"] |= dict.fromkeys(own)
        run.content["config"] |= {"source": "auto", "multi_label": False}


def test_other_data_at_the_same_path(tmp_path: Path) -> None:
    """Names and sizes are the same, so that nothing but what is in the files tells."""
    run = Run(tmp_path)
    shutil.rmtree(run.data)
    photos(run.data, 50_000)
    found, start = run.evaluated(rescan=True)
    assert found == everything(run.data) and len(found) == 30
    assert "which is not what it was trained on" in start.messages[0]


def test_data_that_have_grown_are_still_its_own(tmp_path: Path) -> None:
    run = Run(tmp_path)
    photos(run.data, 0, each=40)
    found, start = run.evaluated()
    assert run.val < found and found.isdisjoint(run.train) and start.messages == []


def test_a_share_with_groups_comes_again(tmp_path: Path) -> None:
    names = [f"{c}/{at % 9}/{at}.jpg" for c in CLASSES for at in range(30)]
    files = {name: JPEG + b"%09d" % at for at, name in enumerate(names)}
    fill(tmp_path / "photos", files)
    run = Run(tmp_path, val_group="folder", val_seed=4)
    assert run.evaluated()[0] == run.val
    assert run.evaluated(data=run.data)[0] == run.val


def test_settings_of_the_data_are_those_that_say_what_of_it_is_read() -> None:
    """A resume names each as a reason why the data differ."""
    of_data = {name for name, facts in FACTS_OF.items() if facts.of_data}
    assert {"val_share", "val_seed", "val_group", "source", "label_key"} < of_data
    for name in of_data:
        assert FACTS_OF[name].resume in ("scanned", "located"), name
