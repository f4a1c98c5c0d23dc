"""Two folds are trained on photos of which some labels were changed; `saturate photos` names these, and `saturate try`
answers as --predict does.
"""

from __future__ import annotations

import io
import json
import signal
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from tests.end_to_end.runs import Process, Runner, draw, rows, until

pytest.importorskip("cleanlab")
pytest.importorskip("cleanvision")
SMALL = (
    "--arch tests.end_to_end.networks:tiny --image-size 32 --batch-size 8 --workers 0 --loader torchvision "
    "--precision fp32 --epochs 8 --lr 0.05 --val-every 8 --ceilings false --val-share 0.5"
)

NAMED = "--arch shufflenet_v2_x0_5"
"""A network whose checkpoints say what it is."""


def asked(url: str, content: bytes, name: str = "a.jpg") -> tuple[int, str]:
    """Send a file as a browser's form does; return the code and the page."""
    head = f'--XX\r\nContent-Disposition: form-data; name="photo"; filename="{name}"\r\n\r\n'
    body = head.encode() + content + b"\r\n--XX--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=XX"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as got:
            return got.status, got.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def large() -> bytes:
    """Return a PNG of 51 megapixels, in few bytes."""
    content = io.BytesIO()
    Image.new("1", (8_500, 6_000)).save(content, "PNG")
    return content.getvalue()


def address(process: Process) -> str:
    until(
        lambda: "answers until" in process.out or process.poll() is not None,
        120,
        "a page",
    )
    return process.out.split()[0]


def is_the_same_evaluation(train: Runner, photos: Path) -> None:
    """Check that photos of the list may be deleted behind a training, and the list itself may not."""
    words = (SMALL, "--data", photos, "--leave-out", "photos.csv", "--output", "left")
    assert train(*words, NAMED, "--epochs", 1).wait() == 0
    (photos / rows(train.cwd / "photos.csv")[0]["photo"]).unlink()
    evaluate = "--evaluate", "--data", photos, "--resume", "left/best.pt"
    again = train(*evaluate, "--output", "again", "--workers", 0)
    assert again.wait() == 0 and "has no file" in again.out, again.err
    validated, evaluated = (
        json.loads((train.cwd / folder / "summary.json").read_text())["validation"]
        for folder in ("left", "again")
    )
    assert evaluated["samples"] == validated["samples"]
    (train.cwd / "photos.csv").rename(train.cwd / "moved.csv")
    lost = train(*evaluate, "--output", "lost", "--workers", 0)
    assert lost.wait() == 2 and "--leave-out photos.csv" in lost.err, lost.err
    (train.cwd / "moved.csv").rename(train.cwd / "photos.csv")


@pytest.mark.slow
def test_labels_that_were_changed_and_answers(train: Runner) -> None:
    tmp_path = train.cwd
    drawn = draw(tmp_path / "drawn", classes=("cat", "dog", "eel"), train=60, val=2)
    photos = tmp_path / "PHOTOS"
    (drawn / "train").rename(photos)
    rng = np.random.default_rng(1)
    names = sorted(path.relative_to(photos) for path in photos.rglob("*.jpg"))
    changed: dict[str, str] = {}
    for at in rng.permutation(len(names))[: len(names) // 20]:
        others = sorted({"cat", "dog", "eel"} - {names[at].parent.name})
        new = Path(others[rng.integers(2)], f"changed{at}.jpg")
        (photos / names[at]).rename(photos / new)
        changed[str(new)] = names[at].parent.name
    for fold in range(2):
        words = ("--val-fold", fold, "--output", tmp_path / f"f{fold}")
        assert train(SMALL, "--data", photos, *words).wait() == 0
    command = train.python("-m", "saturate", "photos", photos, "--run", "f0", "f1")
    assert command.wait() == 0, command.err
    found = [row for row in rows(tmp_path / "photos.csv") if row["why"][:5] == "label"]
    listed = [row["photo"] for row in found]
    scores = [float(row["score"]) for row in found]
    assert scores == sorted(scores), "the likeliest first"
    # 9 were changed. The number of cores changes sums in their last digits, and so what is learnt: 8 of 8 that are
    # listed are right on two cores, 6 of 6 on one
    right = changed.keys() & {*listed}
    print(len(right), "of", len(listed), "listed are right")
    assert len(right) >= max(4, 0.7 * len(listed)), (listed, changed)
    assert all(
        row["beside"] == changed.get(row["photo"], row["beside"]) for row in found
    )
    is_the_same_evaluation(train, photos)
    assert (
        "of 180 that the runs have validated" in (tmp_path / "photos.html").read_text()
    )
    new = drawn / "val"
    predict = train(
        "--predict", new, "--resume", "left/best.pt", "--output", "new", "--workers 0"
    )
    assert predict.wait() == 0
    process = train.python("-m", "saturate", "try", "left/best.pt", "--port", 0)
    url = address(process)
    assert urllib.request.urlopen(url).status == 200
    for row in rows(tmp_path / "new/predictions.csv")[:3]:
        code, page = asked(url, Path(row["path"]).read_bytes())
        share = f"{100 * float(row['probability']):.1f}"
        assert (code, f"<b>{row['class']}</b> {share} %" in page) == (200, True)
    for content, sentence in (
        (b"no image at all", "no known image format"),
        (b"", "empty file"),
        (large(), "has 8500 x 6000 pixels, more than 50 megapixels"),
        (Path(row["path"]).read_bytes()[:600], "cannot be"),
    ):
        code, page = asked(url, content)
        assert code == 400 and sentence in page, sentence
    own = {"Host": url.removeprefix("http://"), "Content-Length": "-1"}
    for headers, code in (
        ({"Host": "evil.example"}, 403),
        (own | {"Origin": "http://evil.example"}, 403),
        (own | {"Origin": url}, 413),
        (own | {"Content-Length": "many"}, 413),
    ):
        request = urllib.request.Request(url, b"", headers=headers)
        with pytest.raises(urllib.error.HTTPError, match=str(code)):
            urllib.request.urlopen(request)
    listening = psutil.Process(process.pid).net_connections("inet")
    assert {one.laddr.ip for one in listening if one.status == "LISTEN"} == {
        "127.0.0.1"
    }
    process.send(signal.SIGINT)
    assert process.wait() == 130 and not process.err


def test_a_checkpoint_that_is_none(train: Runner) -> None:
    process = train.python("-m", "saturate", "try", "none.pt")
    assert process.wait() == 2 and "none.pt" in process.err
