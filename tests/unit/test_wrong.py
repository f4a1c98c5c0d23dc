"""What a classifier got wrong: matrix, calibration, files; results.csv; trackers."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from saturate.contracts import Pixels, Source, UserError
from saturate.report import sinks
from saturate.report.pictures import augmented
from saturate.system import fonts
from saturate.system.drawing import sheet
from saturate.tasks import _tables
from saturate.tasks._classification_report import (
    TITLE,
    ValidationFiles,
    calibration_error,
    confusion,
    drawn_matrix,
)
from saturate.tasks._predictions import (
    Answers,
    Collected,
    by_class,
    summed_up,
    write_answers,
)
from saturate.tasks.classification import MeanPrecision, TopK
from scripts import serve_example
from tests.unit.test_classification import batch_of
from tests.unit.test_meter import alone
from tests.unit.test_report_reporter import RESULT, Told

CLASSES = ("ant", "bee", "cat")
LABELS = torch.tensor([0, 0, 1, 1, 2, 2])
LOGITS = torch.tensor(
    [[4.0, 0, 0], [0, 3, 0], [0, 5, 0], [0, 1, 0], [0, 9, 0], [0, torch.nan, 0]]
)


class Pictures(Source):
    """A source of one colour a sample."""

    files = False
    read_delay_s = 0.0

    def __len__(self) -> int:
        return len(LABELS)

    def name(self, sample: int) -> str:
        return f"/photos/{sample}.png"

    def read(self, sample: int) -> bytes:
        buffer = io.BytesIO()
        Image.new("RGB", (40, 30), (40 * sample, 0, 0)).save(buffer, "PNG")
        return buffer.getvalue()

    def check(self, sample: int, size: int) -> None:
        pass


def answers(
    logits: torch.Tensor = LOGITS,
    labels: torch.Tensor = LABELS,
    *,
    binary: bool = False,
) -> Answers:
    collected = Collected(binary=binary)
    collected.add(
        np.arange(len(labels)),
        logits,
        labels,
        torch.ones(len(labels), dtype=torch.bool),
    )
    return collected.answers(alone())


def table(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode())))


@pytest.mark.parametrize(
    "name",
    ["a, b", 'a "b"', '"a"', "a\nb", "a\rb", "a\r\nb\r", " a ", "a\tb", "a;b", "a'b"],
)
def test_a_name_is_read_back_from_csv(name: str) -> None:
    rows = [{"path": one, name: "x", "class": one} for one in (name, "plain")]
    content = _tables.written(rows)
    assert [*csv.DictReader(io.StringIO(content.decode(), newline=""))] == rows
    assert content.endswith(b"\nplain,x,plain\n")


@pytest.mark.parametrize(
    "name",
    ["=cmd|' /C calc'!A0", "\r\n=1", "\uff1d1"],
)
def test_a_name_is_no_formula_of_a_spreadsheet(name: str) -> None:
    """In a CSV alone: what programs read has names as they are. A number is a number, also of a class."""
    rows = [{"path": "a.jpg", name: name, "share": -0.5, "class": "-1"}]
    quoted = [{"path": "a.jpg", f"'{name}": f"'{name}", "share": -0.5, "class": "-1"}]
    assert _tables.written(rows, "csv") == _tables.written(quoted, "csv")
    assert json.loads(_tables.written(rows, "jsonl")) == rows[0]
    assert (
        pyarrow.parquet.read_table(
            io.BytesIO(_tables.written(rows, "parquet"))
        ).to_pylist()
        == rows
    )


@pytest.mark.parametrize("form", _tables.FORMATS)
def test_a_name_that_is_no_utf8_is_escaped_in_every_file(form: str) -> None:
    rows = [{"path": "bad\udcff.jpg", "cl\udcff": 3, "class": "\ud800é"}]
    text = [{"path": "bad\\xff.jpg", "cl\\xff": 3, "class": "\\ud800é"}]
    assert _tables.written(rows, form) == _tables.written(text, form)
    assert serve_example.inert("=\udcff") == "'=\\xff"


@pytest.mark.parametrize(
    ("likeliest", "labels", "said"),
    [
        ([1, 1, 1], [0, 1, 2], {"learning": {"one_answer": "bee"}}),
        ([1, 1, 2], [0, 1, 2], {}),
        ([1, 1, 1], [1, 1, 1], {}),  # which is right
    ],
)
def test_a_network_that_gives_one_answer(
    likeliest: list[int], labels: list[int], said: dict[str, Any]
) -> None:
    logits = torch.eye(3)[likeliest]
    found = ValidationFiles(classes=CLASSES, source=Pictures()).extras(
        answers(logits, torch.tensor(labels))
    )
    assert {name: found[name] for name in found.keys() & {"learning"}} == said


def test_what_is_predicted_is_counted_by_class() -> None:
    four = answers(torch.eye(3)[[2, 2, 0, 1]] * 9, torch.zeros(4).long())
    four.finite[3] = False
    found = {"extras": {"answers": four}}
    assert summed_up(found, CLASSES, several=False) == "cat 2, ant 1"
    several = torch.tensor([[3.0, 3.0, -9.0], [-9.0, 9.0, -9.0]])
    both = {"extras": {"answers": answers(several, torch.zeros(2).long(), binary=True)}}
    said = "at a probability of 0.5 and above: bee 2, ant 1"
    assert summed_up(both, CLASSES, several=True) == said
    unsure = answers(-torch.ones(2, 3), torch.zeros(2).long(), binary=True)
    none = summed_up({"extras": {"answers": unsure}}, CLASSES, several=True)
    assert none == "at a probability of 0.5 and above: nothing"
    many = [f"{number}" for number in range(21)]
    assert by_class(np.arange(21), many).endswith(", and 1 other classes")


def test_answers_that_nobody_has_collected_are_a_mistake(tmp_path: Path) -> None:
    asked: Any = None
    with pytest.raises(UserError, match="collects no answers"):
        write_answers(tmp_path, {}, asked, CLASSES)


def test_files_say_what_went_wrong() -> None:
    assert confusion(answers(), 3).tolist() == [[1, 1, 0], [0, 2, 0], [0, 1, 0]]
    extras = ValidationFiles(classes=CLASSES, source=Pictures()).extras(answers())
    matrix = table(extras["files"]["confusion.csv"])
    assert matrix[2] == {"label": "cat", "ant": "0", "bee": "1", "cat": "0"}
    odd = ValidationFiles(classes=("label", "bee", "cat"), source=Pictures())
    row = table(odd.extras(answers())["files"]["confusion.csv"])[0]
    assert row == {"": "label", "label": "1", "bee": "1", "cat": "0"}
    by_class = table(extras["files"]["classes.csv"])
    assert [*by_class[0].items()] == [
        *(
            ("class", "ant"),
            ("samples", "2"),
            ("accuracy", "0.5"),
            ("mostly_taken_for", "bee"),
            ("times", "1"),
        )
    ]
    rows = table(extras["files"]["val_predictions.csv"])
    assert [row["path"] for row in rows] == [
        f"/photos/{sample}.png" for sample in range(6)
    ]
    assert (rows[1]["label"], rows[1]["class"], rows[1]["error"]) == ("ant", "bee", "")
    assert rows[5]["class"] == "" and "no number" in rows[5]["error"]
    shown = {"val/confusion", "val/mistakes", "val/predictions"}
    assert extras["images"].keys() == shown
    # two mistakes, the surest first: sample 4 at 99.9 %, then sample 1; five times as large as 40 x 30
    picture = extras["images"]["val/mistakes"][0]
    assert (picture[80, 100, 0], picture[80, 208 + 100, 0]) == (160, 40)
    assert (picture[-2:] == 255).all(), "the last line is whole"
    # of six samples the first, in the first row, is right, and the second wrong
    picture = extras["images"]["val/predictions"][0]
    assert (picture[80, 100, 0], picture[80, 208 + 100, 0]) == (0, 40)
    of_answers = picture[158 + 25 : 158 + 50].astype(int)
    blue, orange = (8, 81, 156), (166, 54, 3)
    for colour, tile in ((blue, of_answers[:, :208]), (orange, of_answers[:, 208:])):
        assert (tile == colour).all(axis=2).any()
    picture = extras["images"]["val/confusion"][0, :, :, 0]
    # the names of a row, the number of a white cell that is outlined
    for inked in (picture[500:800, :196], picture[500:800, 201:499]):
        rows_of_ink = np.flatnonzero((inked < 128).any(axis=1))
        assert rows_of_ink.size and abs(rows_of_ink.mean() - 150) < 5
    assert (picture[500, 200:1100] < 255).all()


@pytest.mark.parametrize(
    ("classes", "cell", "margin"), [(3, 300, 200), (80, 20, 200), (101, 8, TITLE)]
)
def test_a_confusion_has_titles_at_its_axes_and_names_up_to_a_hundred_classes(
    classes: int, cell: int, margin: int
) -> None:
    picture = drawn_matrix(np.eye(classes), [f"name {at}" for at in range(classes)])
    end = margin + classes * cell
    assert picture.size == (end + 4, end + 4)
    ink = np.asarray(picture)[:, :, 0] < 128
    for axis in (ink, ink.T):
        title = np.flatnonzero(axis[:end, :TITLE].any(axis=1))
        assert title.size and abs(title.mean() - (margin + end) / 2) < 6
        names = np.split(axis[margin:end, TITLE : margin - 1], classes)
        assert {bool(name.any()) for name in names} == {margin > TITLE}


def test_a_confusion_tells_right_from_wrong_by_its_colours() -> None:
    """In cells of 450 pixels behind a margin of 200: what is sure is full, what is never is white."""
    matrix = np.array([[3, 1], [0, 4]])
    pixels = np.asarray(drawn_matrix(matrix, ["a", "b"])).astype(int)
    cells = [
        [pixels[220 + 450 * row, 220 + 450 * at] for at in (0, 1)] for row in (0, 1)
    ]
    blue, orange = np.array((8, 81, 156)), np.array((166, 54, 3))
    for found, full, share in (
        (cells[0][0], blue, 0.75),
        (cells[0][1], orange, 0.25),
        (cells[1][0], orange, 0.0),
        (cells[1][1], blue, 1.0),
    ):
        assert np.abs(found - (255 - share * (255 - full))).max() <= 1


def test_files_of_earlier_weights_go(tmp_path: Path) -> None:
    """Where the best weights make no mistake, and where the network says nothing of any sample."""
    told = Told(tmp_path)
    validated = ValidationFiles(classes=CLASSES, source=Pictures())
    right = torch.nn.functional.one_hot(LABELS).float()
    left = []
    for step, each in enumerate(
        (answers(), answers(right), answers(LOGITS[:0], LABELS[:0]))
    ):
        files = validated.extras(each)["files"]
        told.reporter.validated(RESULT, files=files, step=step, epoch=step)
        left.append({*files} & {path.name for path in tmp_path.iterdir()})
    told.reporter.close()
    assert left == [{*files}, {*files} - {"mistakes.png"}, set()]


RARE = ("\u24b6", "\u24b7 b", "c \u24b8")
"""Names with letters that matplotlib's first font has not, and one of its others has."""
PLACES = ("class 1", "class 2", "class 3")


def drawn(classes: tuple[str, ...]) -> list[Any]:
    extras = ValidationFiles(classes=classes, source=Pictures()).extras(answers())
    batch = replace(batch_of(torch.arange(3)), images=torch.zeros(3, 3, 40, 60))
    shown = augmented(batch, Pixels(), classes)
    return [*extras["images"].values(), sheet(shown)]


def test_names_are_places_where_no_font_has_their_letters_and_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fonts, "others", list)
    for found, wanted in zip(drawn(RARE), drawn(PLACES), strict=True):
        assert (found == wanted).all()
    assert fonts.line("\u24b6.jpg", 150, 18)[0] == "?.jpg"
    told = Told(tmp_path, classes=(*RARE, "d"))
    told.reporter.close()
    (said,) = [at for at in told.stream.getvalue().splitlines() if "fonts-" in at]
    assert "names of 3 classes" in said and "fonts-noto-cjk" in said

    other = str(Path(fonts.path()).with_name("STIXGeneral.ttf"))
    monkeypatch.setattr(fonts, "others", lambda: [other])
    for found, places in zip(drawn(RARE), drawn(PLACES), strict=True):
        assert found.shape == places.shape and (found != places).any()
    assert [fonts.path(name) for name in (*RARE, "d")] == [other] * 3 + [fonts.path()]
    assert fonts.unseen(RARE) is None


SATURATED = torch.tensor(
    [[18.0, 25, -3, -4, -5, -6], [30, 19, -3, -4, -5, -6], [17.5, 17, 40, -1, -1, -1]]
)
"""Several probabilities of a row are 1 once they are rounded to float32."""
UNDERFLOWN = torch.tensor(
    [[200.0, 0, 50, 20, 10, 90], [0, 200, 130, 20, 10, 90], [0, 1, 2, 300, 4, 5]]
)
"""All probabilities but one of a row are 0 once they are rounded to float32."""


def test_fonts_of_the_machine_are_plain_ones_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("wqy-zenhei.ttc", "NotoSansCJK-Bold.ttc", "x.ttf", "msyh.ttc"):
        (tmp_path / name).touch()
    best = tmp_path / "deep" / "Noto Sans CJK-Regular.ttc"
    best.parent.mkdir()
    best.touch()
    monkeypatch.setattr(fonts, "FOLDERS", (str(tmp_path), str(tmp_path / "gone")))
    names = [Path(file).name for file in fonts.others.__wrapped__()]
    assert names == [best.name, "wqy-zenhei.ttc", "msyh.ttc"]
    assert fonts.lacking("a", str(best)) == 1, "what is no font draws nothing"


@pytest.mark.parametrize("kind", ["images", "sets"])
@pytest.mark.parametrize(("logits", "binary"), [(SATURATED, True), (UNDERFLOWN, False)])
def test_answers_are_in_the_order_of_logits(
    logits: torch.Tensor, binary: bool, kind: str
) -> None:
    """Also where their probabilities are alike: files, matrix and ECE are of the class that top-1 counts."""
    labels = logits.argmax(dim=1)
    batch = batch_of(labels)
    metric: Any = TopK(torch.device("cpu"), binary=binary)
    if kind == "sets":
        batch.targets["wanted"] = torch.nn.functional.one_hot(labels, 6).float()
        metric = MeanPrecision(6)
    # an auxiliary head answers too
    metric.update((logits, -logits), batch)
    found: Any = metric.result(alone())
    told = found["extras"]["answers"]
    assert found.get("top1", 1.0) == 1.0
    assert told.classes[:, :3].tolist() == logits.topk(3).indices.tolist()
    assert confusion(told, 6).trace() == 3 and calibration_error(told) < 1e-6


def test_all_labels_of_a_sample_are_told() -> None:
    logits = torch.tensor([[3.0, 2, 1, 4, 5, 6, 7, -1], [-1] * 8])
    batch = batch_of(torch.zeros(2, dtype=torch.long))
    batch.targets["wanted"] = torch.zeros(2, 8)
    metric = MeanPrecision(8)
    metric.update(logits, batch)
    result = metric.result(alone())
    table = result["extras"]["answers"].rows("abcdefgh")
    sure = [
        row[f"class{at}"]
        for row in table[:1]
        for at in ("", "_2", "_3", "_4", "_5", "_6", "_7")
    ]
    assert sure == ["g", "f", "e", "d", "a", "b", "c"]
    told = summed_up(result, "abcdefgh", several=True)
    assert told.endswith(", ".join(f"{name} 1" for name in sure))


def test_a_tracker_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of its name, which it leaves where it ran, is no package."""
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="needs the package wandb: pip install wandb"):
        sinks.require_trackers(["wandb"])


def test_a_tracker_that_fails_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, warned = list[str | None](), list[str]()

    class Away:
        id = "seven"

        def __init__(self, folder: Path, settings: Any, run: str | None) -> None:
            runs.append(run)

        def scalars(self, values: Any, step: int) -> None:
            raise ConnectionError("the server is away\nand more lines")

    monkeypatch.setitem(sinks.TRACKERS, "wandb", Away)
    installed = SimpleNamespace(origin="here")
    monkeypatch.setattr("saturate.report.sinks.find_spec", lambda _: installed)
    about = {"log": ["wandb"], "settings": {}}
    for resumed_at in (None, 1):
        board = sinks.Boards(
            tmp_path, about, enabled=True, purge_step=resumed_at, warn=warned.append
        )
        for step in (1, 2):
            board.scalars({"train/loss": 0.5}, step)
        board.close()
    assert runs == [None, "seven"], "a resume goes on with the tracker's run"
    assert len(warned) == 2
    assert warned[0].startswith(
        "--log wandb: ConnectionError: the server is away; the run goes on without it"
    )
