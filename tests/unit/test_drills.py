"""One file and one line: in a copy of the tree something new is added, and the programs know it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from saturate.report.tensorboard import SETTINGS_FILE
from tests.end_to_end.runs import Runner, draw, losses
from tests.unit.drills import ONE_THREAD, add_line, copied, ran
from tests.unit.test_report_tensorboard import points

TOY_LOADER = '''
"""`toy`: Pillow decodes each row in the loader's own thread."""

import io
from collections.abc import Generator, Sequence

import numpy as np
import torch
from PIL import Image

from saturate.contracts import Columns, Feed, Rows
from saturate.loaders._staging import Staged, Staging
from saturate.plan.geometry import upright


class Toy(Staging[Columns]):
    in_flight = 2

    def _staged(self, rows: Sequence[Rows]) -> Generator[Staged]:
        for its in rows:
            drawn = upright(its)
            pixels = np.zeros((len(drawn), *drawn.padded, 3), np.uint8)
            for i in np.flatnonzero(drawn.valid).tolist():
                left, top, right, bottom = drawn.placed[i].tolist()
                image = Image.open(io.BytesIO(self._feed.source.read(int(drawn.ids[i])))).convert("RGB")
                region = image.crop(tuple(drawn.regions[i].tolist()))
                size = right - left, bottom - top
                pixels[i, top:bottom, left:right] = region.resize(
                    size, Image.Resampling.BILINEAR, box=tuple(drawn.windows[i].tolist())
                )
            yield self._stager.stage(torch.from_numpy(pixels), its, its.valid)


def open(feed: Feed[Columns]) -> Toy:
    return Toy(feed)
'''
TOY_SPEC = 'LoaderSpec(name="toy", media=("images",), module="loaders.images.toy", preference=9),'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the project."""
    return copied(tmp_path / "tree")


def test_a_loader_is_one_file_and_one_line(
    runner: Runner, tree: Path, tmp_path: Path
) -> None:
    (tree / "loaders/images/toy.py").write_text(TOY_LOADER, encoding="utf-8")
    add_line(
        tree / "loaders/__init__.py",
        '        LoaderSpec(name="synthetic"',
        TOY_SPEC,
    )
    data = draw(tmp_path / "data", classes=("a", "b"), train=4, val=2)
    small = "--arch shufflenet_v2_x0_5 --image-size 32 --batch-size 4 --epochs 1 --ceilings false --seed 3"
    words = f"--data {data} {small} --loader".split()
    ran(runner, tree, "train.py", *words, "toy", "--output", tmp_path / "toy")
    pillow = "torchvision --reader pil --output pil"
    process = runner(*words, *pillow.split(), env=ONE_THREAD, cwd=tmp_path)
    assert process.wait() == 0, process.err
    assert len(losses(tmp_path / "toy")) == 2
    assert losses(tmp_path / "toy") == losses(tmp_path / "pil")
    # the tables that others read: --help-all, what auto tries first, the doctor, bench
    told = " ".join(
        ran(runner, tree, "train.py", "--help-all").replace("│", "").split()
    )
    assert "torchvision, dali-cpu, dali-gpu, dali-fed, toy" in told
    asked = f"""
from benchmarks.loader import expanded
from saturate.run._probes import loaders
from saturate.run.build import may_open
from saturate.settings.config import parse
from saturate.tasks.classification import KIND
print(may_open(KIND, parse(["--data", {str(data)!r}]), gpu=False)[0], "toy" in loaders().found.split(", "),
      "toy" in expanded("--loaders", ["auto"], 0))
"""
    assert ran(runner, tree, "-c", asked).split() == ["toy", "True", "True"]


HALVED = '''
@dataclass(frozen=True, slots=True, kw_only=True)
class Halved(Augmentation):
    """Some images become half as bright."""

    halved: float = 0.0

    @property
    def on(self) -> bool:
        return self.halved > 0

    def draw(self, seed: int, epoch: int, ids: Array, sizes: Array) -> Array:
        return slot(Op.HALVED, uniforms(seed, epoch, Purpose.HALVED, ids, 1)[:, 0] < self.halved)


'''
LINES = [
    (
        "saturate/settings/augmentation.py",
        "    erase: Share",
        '    halved: Share = 0.0\n    """Probability of half."""',
    ),
    ("saturate/plan/draws.py", "    ORDER = 1\n", "    HALVED = 99"),
    ("saturate/plan/ops.py", "    DISTORT = 1,", "    HALVED = 18, 0"),
    ("saturate/plan/augment.py", "AUGMENTATIONS: tuple", HALVED),
    (
        "loaders/_ops.py",
        "    Op.ERASE: _erase,",
        "    Op.HALVED: lambda levels: (levels / 2).floor(),",
    ),
]
"""What an augmentation with an operation of its own needs: file, what comes behind, text."""


def test_an_augmentation_is_a_setting_a_class_and_an_operation(
    runner: Runner, tree: Path
) -> None:
    for name, before, text in LINES:
        add_line(tree / name, before, text)
    table = tree / "saturate/plan/augment.py"
    table.write_text(
        table.read_text(encoding="utf-8").replace("(Auto, ", "(Halved, Auto, "),
        encoding="utf-8",
    )
    drawn = """
import numpy as np, torch
from saturate.loaders._ops import operated
from saturate.models import Native
from saturate.settings.config import parse
from saturate.tasks._plans import augment
config = parse(["--halved", "0.5", "--grayscale", "1"])
ids = np.arange(400)
made = augment(config.augmentation, Native(8, (0.5,) * 3, (0.5,) * 3))
ops = made.draw(3, 0, ids, np.full((400, 2), 8))
levels = torch.full((400, 8, 8, 3), 201, dtype=torch.uint8)
found = operated(levels, ops, lambda values: [torch.from_numpy(np.ascontiguousarray(one)) for one in values])
print(sorted({*found.unique().tolist()}), 150 < int((found[:, 0, 0, 0] == 99).sum()) < 250)
"""
    # grey of 100 and of 201: weights that sum to 0.9999, rounded down
    assert ran(runner, tree, "-c", drawn).split() == ["[99.0,", "200.0]", "True"]
    assert "--halved" in ran(runner, tree, "train.py", "--help-all")


FACT = """
    Fact("host.answer", "of all", Curve("host/answer", "answers", "the answer"), Line("answer", "is {}"),
    of=lambda values: 42, over_ranks=sum, column="answer"),
"""


def test_a_fact_is_one_line(runner: Runner, tree: Path, tmp_path: Path) -> None:
    add_line(tree / "saturate/report/facts.py", '    Fact("finished"', FACT)
    data = draw(tmp_path / "data", classes=("a", "b"), train=4, val=2)
    run = tmp_path / "run"
    small = "--arch shufflenet_v2_x0_5 --image-size 32 --batch-size 4 --epochs 1 --ceilings false --log-every 1"
    words = f"--data {data} {small} --loader torchvision --output {run}".split()
    said = ran(runner, tree, "train.py", *words)
    assert "\nanswer            is 42\n" in said
    assert json.loads((run / "summary.json").read_text())["host"] == {"answer": 42}
    (row,) = csv.DictReader((run / "results.csv").read_text().splitlines())
    assert row["answer"] == "42"
    assert {value for _, value in points(run, "host/answer")} == {42.0}
    shown = (run / SETTINGS_FILE).read_bytes()
    assert b"^host/answer$" in shown and b"the answer" in shown
    cell = '<th scope="row">answer</th><td>is 42</td>'
    assert cell in (run / "report.html").read_text()
    asked = "from saturate.report.facts import table; print(*table(), sep='\\n')"
    row_of_docs = "| `host.answer` | of all | sum | `host/answer` | the answer | answer | answer |"
    assert row_of_docs in ran(runner, tree, "-c", asked)


UNUSED = [
    "saturate/tasks/detection.py",
    "saturate/tasks/superres.py",
    "saturate/tasks/video.py",
    "saturate/dataset/stores/arrow.py",
    "saturate/dataset/stores/lmdb.py",
    "saturate/dataset/stores/tar.py",
    "saturate/dataset/videos/scan.py",
    "loaders/images/dali_fed.py",
    "loaders/pairs/paired.py",
    "loaders/videos/pyav.py",
]
"""What a run of a ResNet on class folders has no use for."""


def test_what_a_run_does_not_use_is_not_imported(
    runner: Runner, tree: Path, tmp_path: Path
) -> None:
    for name in UNUSED:
        path = tree / name
        text = path.read_text(encoding="utf-8")
        first = "from __future__ import annotations\n"
        assert first in text, name
        planted = text.replace(first, f"{first}raise ImportError('{name}')\n")
        path.write_text(planted, encoding="utf-8")
    data = draw(tmp_path / "data", classes=("a", "b"), train=4, val=2)
    small = "--arch resnet18 --image-size 32 --batch-size 4 --epochs 1 --ceilings false"
    words = f"--data {data} --source folder --loader torchvision {small}".split()
    ran(runner, tree, "train.py", *words, "--output", tmp_path / "run")
    assert len(losses(tmp_path / "run")) == 2
