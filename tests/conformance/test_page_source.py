"""The source that docs/data.md shows keeps the contract, as it stands there."""

from __future__ import annotations

import importlib.util
import re
import sys
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from contracts import Split
from dataset.coco.scan import open_coco
from dataset.open import open_splits
from dataset.stores import SOURCES
from settings.config import build
from tests.conformance import sources
from tests.conformance.test_sources import CHECKS, WRITTEN
from tests.unit.coco_files import write_coco
from tests.unit.test_splits import Console

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
NAME = "source_of_the_page"


@pytest.fixture(scope="module", autouse=True)
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The last block is a module, and a line of the table."""
    *_, code = re.findall(
        r"^```python\n(.*?)^```",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    file = tmp_path_factory.mktemp("page") / f"{NAME}.py"
    file.write_text(code, encoding="utf-8")
    spec: Any = importlib.util.spec_from_file_location(NAME, file)
    sys.modules[NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[NAME])
    SOURCES["zip"] = NAME
    yield
    del SOURCES["zip"], sys.modules[NAME]


def pack(archive: Path, files: sources.Files) -> None:
    with zipfile.ZipFile(archive, "w") as file:
        for name, content in files.items():
            file.writestr(name, content)


def opened(data: Path) -> dict[str, Split]:
    settings = build({"data": data, "manifest_dir": data.parent / "cache"}).data
    return open_splits(settings, loader="torchvision", console=Console())


def test_the_source_of_the_page_keeps_the_contract(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for place in ("train", "val"):
        pack(data / f"{place}.zip", WRITTEN)
    split = opened(data)["train"]
    sources.a_copy_opens_nothing(opened(data)["val"], WRITTEN, data)
    for check in CHECKS.values():
        check(split, WRITTEN)
    module = sys.modules[NAME]
    assert module.missing(data, "test") == "test.zip"
    sources.reads_take_as_long_as_asked(
        partial(module.open, data, "train", cache=tmp_path / "cache")
    )


def test_the_source_of_the_page_has_images_of_detection(tmp_path: Path) -> None:
    data = write_coco(tmp_path / "coco").resolve()
    how: dict[str, Any] = {"keypoints": False, "cache": tmp_path / "cache"}
    folder = open_coco(data, "train", **how)
    images = data / "train2017"
    pack(
        data / "train2017.zip",
        {file.name: file.read_bytes() for file in images.iterdir()},
    )
    columns = open_coco(data, "train", source="zip", **how)
    assert columns.fingerprint == folder.fingerprint
    source = sys.modules[NAME].source(columns)
    for sample in range(len(columns)):
        assert source.read(sample) == Path(folder.path(sample).decode()).read_bytes()
