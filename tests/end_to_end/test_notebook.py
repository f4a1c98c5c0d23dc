"""notebooks/photos.ipynb from its first cell to its last, with fewer photos and epochs."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.end_to_end.runs import ROOT

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
LESS = {
    "--train-per-class 100 --val-per-class 5": "--train-per-class 10 --val-per-class 1",
    "--output runs/photos": "--output runs/photos --epochs 1 --ceilings false --workers 0 "
    "--arch squeezenet1_1 --image-size 32",
    "--output runs/new": "--output runs/new --workers 0",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Jupyter's own packages
def test_cells_do_what_they_say(tmp_path: Path) -> None:
    book = nbformat.read(ROOT / "notebooks/photos.ipynb", 4)
    assert len(book.cells) == 8 and not any(cell.get("outputs") for cell in book.cells)
    for before, after in LESS.items():
        (cell,) = (one for one in book.cells if before in one.source)
        cell.source = cell.source.replace(before, after)
    # the repository, with a runs/ of its own
    for path in ROOT.iterdir():
        if path.name not in ("runs", "notebooks") and not path.name.startswith("."):
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "notebooks").mkdir()
    where = {"metadata": {"path": str(tmp_path / "notebooks")}}
    nbclient.NotebookClient(book, timeout=500, resources=where).execute()
    runs = tmp_path / "runs"
    assert {"best.pt", "best.onnx"} <= {
        path.name for path in (runs / "photos").iterdir()
    }
    with (runs / "new/predictions.csv").open(encoding="utf-8") as file:
        predicted = {row["path"]: row["class"] for row in csv.DictReader(file)}
    assert len(predicted) == 10
    outputs = {cell.id: cell.outputs for cell in book.cells if "outputs" in cell}
    shown = [one for one in outputs["mistakes"] if "image/png" in one.get("data", {})]
    assert len(shown) == 3
    served = "".join(one.get("text", "") for one in outputs["serve"]).splitlines()
    rows = [*csv.DictReader(line for line in served if "," in line)]
    assert len(rows) == 5
    assert all(predicted[row["path"]] == row["class"] for row in rows)
