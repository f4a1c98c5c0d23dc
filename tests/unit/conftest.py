"""Fixtures that several files of unit tests share."""

import os
from pathlib import Path
from typing import Any

import pytest

from saturate.system import storage
from tests.unit.folders import cache, root  # noqa: F401


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage that fails is tried again at once, as often as in a run."""
    monkeypatch.setattr(storage, "PAUSES_S", (0.0,) * len(storage.PAUSES_S))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """tests.unit.clip_kinds.Made of every kind, for reading only: they take seconds to encode."""
    # with PyAV, which few of these tests need
    from tests.unit.clip_kinds import KINDS, Made

    return Made(tmp_path_factory.mktemp("kinds"), KINDS)


@pytest.fixture
def prompt_ran(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that suites and the tuner start have imported PyTorch already; torchrun's ranks too."""
    from benchmarks import _suite, max_batch, planted
    from saturate.run import tune
    from saturate.run._reasons import reason
    from tests.end_to_end.runs import importable, meeting

    def ran(command: list[str], log: Path, limit_s: float) -> tuple[str, str]:
        _, *words = command
        ranks: list[dict[str, str]] = [{}]
        if "torch.distributed.run" in words:
            count = words.index("--nproc-per-node") + 1
            ranks = meeting(int(words[count]))
            words = words[count + 1 :]
        env = importable(os.environ)
        processes = [
            runner.python(*words, env=env | rank, cwd=Path.cwd()) for rank in ranks
        ]
        try:
            codes = [process.wait(limit_s) for process in processes]
        finally:
            said = "".join(process.out + process.err for process in processes)
            log.write_text(said, encoding="utf-8")
        return reason(max(codes), said)

    for module in (_suite, max_batch, planted, tune):
        monkeypatch.setattr(module, "ran", ran)


COCO_IMAGES = 13


@pytest.fixture(scope="session")
def coco_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a set in COCO's layout, for reading only: 8 images to train on, COCO_IMAGES to validate."""
    from tests.unit.coco_files import write_coco

    splits = {"train2017": 8, "val2017": COCO_IMAGES}
    return write_coco(
        tmp_path_factory.mktemp("coco") / "set", splits=splits, size=(64, 80)
    )


@pytest.fixture(scope="session")
def columns(coco_root: Path) -> Any:
    from saturate.dataset.coco.scan import open_coco

    return open_coco(
        coco_root, "val", keypoints=False, cache=coco_root.parent / "cache"
    )


@pytest.fixture(scope="session")
def people(coco_root: Path) -> Any:
    from saturate.dataset.coco.scan import open_coco

    return open_coco(coco_root, "val", keypoints=True, cache=coco_root.parent / "cache")
