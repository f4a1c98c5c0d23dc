"""--predict says of each file what a validation would, whatever the number of ranks, and guesses nothing."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

from saturate.run import export
from saturate.run._export_check import BEST, in_both
from saturate.run._preprocessing import ClipFraming, Images
from scripts import serve_example
from tests.end_to_end.conftest import CLASSES
from tests.end_to_end.runs import ROOT, Runner, draw, kept, rows, summary
from tests.unit.coco_files import write_coco
from tests.unit.video_files import make

HERE = ("--workers 0 --ceilings false",)
TRAINED = ("--loader torchvision --batch-size 12 --precision fp32",)
BROKEN = {
    "cut.jpg": "its pixels cannot be decoded",
    "notes.txt": "no known image format (starts with 68 69)",
}


@pytest.fixture(scope="module")
def home(of_module: Runner) -> Runner:
    """A folder with data/, run/ of a classifier trained on it, and photos/, of which two are broken."""
    runner = of_module
    draw(runner.cwd / "data", classes=CLASSES, train=12, val=5)
    network = (
        "--arch squeezenet1_1 --image-size 32 --val-image-size 48 --val-crop-share 0.9",
    )
    runner("--data data", *HERE, *TRAINED, *network, "--epochs 1 --output run").done()
    photos = runner.cwd / "photos"
    (photos / "one").mkdir(parents=True)
    for name in CLASSES:
        image = Image.open(runner.cwd / "data" / "val" / name / "000.jpg").resize(
            (64, 64)
        )
        image.save(photos / "one" / f"{name}, seen.png")
        image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(
            photos / f"{name} mirrored.png"
        )
    (photos / "cut.jpg").write_bytes(
        (runner.cwd / "data/val/red/001.jpg").read_bytes()[:600]
    )
    (photos / "notes.txt").write_text("hi")
    return runner


def predicted(run: Runner, *flags: object, ranks: int = 1) -> Path:
    """Predict, and return the table."""
    output = f"predicted-{len(run.started)}"
    for process in run.ranks(ranks, *HERE, "--output", output, *flags):
        assert process.wait() == 0, process.err
    return run.cwd / output / "predictions.csv"


def test_answers_are_those_of_the_validation(home: Runner) -> None:
    flags = ("--predict data/val --resume run/last.pt",)
    one, two = (predicted(home, *flags, ranks=ranks) for ranks in (1, 2))
    assert "20/20" in home.started[-2].out, "a bar of two ranks ends at its end"
    table = rows(one)
    for alone, shared in zip(
        table, rows(two), strict=True
    ):  # a kernel's last bit depends on a row's place
        assert (alone["path"], alone["class"]) == (shared["path"], shared["class"])
        assert float(alone["probability"]) == pytest.approx(
            float(shared["probability"]), abs=3e-6
        )
    validated = {
        row["path"].rpartition("val/")[2]: float(row["probability"])
        for row in rows(home.cwd / "run" / "val_predictions.csv")
    }
    for row in table:  # the two loaders' pixels may differ by their rounding
        found = validated[row["path"].rpartition("val/")[2]]
        assert found == pytest.approx(float(row["probability"]), abs=0.02)
    counts = Counter(row["class"] for row in table).most_common()
    listed = ", ".join(f"{name} {count}" for name, count in counts)
    for process in home.started[-2:-1]:
        assert f"\n{listed}\n" in process.out
    right = sum(row["path"].split("/")[2] == row["class"] for row in table)
    assert (
        len(table) == 20
        and right / 20 == summary(home.cwd / "run")["validation"]["top1"]
    )
    shares = [float(table[0][f"probability{more}"]) for more in ("", "_2", "_3", "_4")]
    assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(
        1, abs=1e-5
    )


OF_A_STRANGER = """
from torch import nn
open("ran", "w").close()
def net(num_classes):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, num_classes))
"""


def test_a_checkpoint_runs_no_code(home: Runner) -> None:
    """It names a module that lies in the folder of now; --arch is the user's word that it may run."""
    (home.cwd / "strangers.py").write_text(OF_A_STRANGER)
    content = kept(home.cwd / "run" / "last.pt")
    linear = torch.nn.Linear(3, len(CLASSES)).state_dict()
    content |= {
        "arch": "strangers:net",
        "model": {f"2.{name}": value for name, value in linear.items()},
    }
    torch.save(content, home.cwd / "gift.pt")
    refused = ": its network is built by a function, 'strangers:net', and no file of weights has code run: "
    for flags in (("--predict photos",), ("--data data --evaluate true",)):
        assert refused in home(*HERE, *flags, "--resume gift.pt").mistake()
    assert not (home.cwd / "ran").exists()
    trusted = ("--arch strangers:net",)
    assert (
        len(rows(predicted(home, "--predict data/val --resume gift.pt", *trusted)))
        == 20
    )


def test_what_cannot_be_read_is_a_row_with_an_error(home: Runner) -> None:
    table = rows(predicted(home, "--predict photos --resume run"))
    names = [f"{name} mirrored.png" for name in CLASSES]
    names += [f"one/{name}, seen.png" for name in CLASSES]
    wanted = [f"photos/{name}" for name in sorted([*names, *BROKEN])]
    assert [row["path"] for row in table] == wanted
    broken = [row for row in table if row["error"]]
    found = {row["path"].removeprefix("photos/"): row["error"] for row in broken}
    assert found == BROKEN and not any(row["class"] for row in broken)


def test_a_list_keeps_its_order_and_flips_are_averaged(home: Runner) -> None:
    photos = [f"one/{name}, seen.png" for name in reversed(CLASSES)] + ["gone.jpg"]
    listed = shutil.copytree(home.cwd / "photos", home.cwd / "listed")
    (listed / "list.csv").write_text(
        "path,label\n" + "".join(f'"{one}",x\n' for one in photos)
    )
    mirrored = "".join(f"{name} mirrored.png\n" for name in reversed(CLASSES))
    (listed / "mirrored.txt").write_text(mirrored)
    whole = ("--resume run/last.pt --val-window stretch",)  # which mirrors to itself
    flags = (*whole, "--tta flip")
    seen = rows(predicted(home, "--predict listed/list.csv", *flags))
    assert [row["path"] for row in seen] == photos and "No such file" in seen[-1][
        "error"
    ]
    other = rows(predicted(home, "--predict listed/mirrored.txt", *flags))
    plain = rows(predicted(home, "--predict listed/mirrored.txt", *whole))
    for one, two, alone in zip(seen[:-1], other, plain, strict=True):
        assert one["class"] == two["class"]
        assert float(one["probability"]) == pytest.approx(
            float(two["probability"]), abs=1e-5
        )
        assert float(one["probability"]) != pytest.approx(
            float(alone["probability"]), abs=1e-5
        )


@pytest.mark.parametrize(
    "plant",
    [{"interpolation": "bicubic"}, {}],
    ids=str,
)
def test_an_export_that_frames_otherwise_than_predict_is_refused(
    home: Runner,
    plant: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """PyTorch with the same preprocessing would agree with the file."""
    monkeypatch.setenv("XDG_CACHE_HOME", home.env["XDG_CACHE_HOME"])
    monkeypatch.chdir(home.cwd)
    framing_of = Images.framing_of
    wrong = staticmethod(lambda *of: replace(framing_of(*of), **plant))
    monkeypatch.setattr(Images, "framing_of", wrong)
    made = export.main(["run/last.pt", "--format", "pt2", "--output", "plant.pt2"])
    out = " ".join(capsys.readouterr().out.split())
    assert ("difference from --predict" in out) and made == bool(plant), out


def test_an_export_that_fails_leaves_no_file(
    home: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home.cwd)
    pt2 = ["run/last.pt", "--format", "pt2", "--output"]
    # a disk with room for 8 KiB of the file; in a process of its own, which PyTorch's own writer would end
    limits = {"RLIMIT_FSIZE": 8192}
    ended = home.python("-m", "scripts.export", *pt2, "full/model.pt2", limits=limits)
    assert ended.wait() == 2 and not list(Path("full").iterdir())
    said = "export: full/model.pt2: cannot be written: File too large; choose another"
    assert ended.err == f"{said} --output\n"
    monkeypatch.setenv("XDG_CACHE_HOME", home.env["XDG_CACHE_HOME"])
    for run, said in (zeros, "differ by 1%"), (refuses, "does not run: no such shape"):
        monkeypatch.setitem(export.FORMATS, "pt2", lambda *_, run=run: (b"", run))
        assert export.main([*pt2, "new/wrong.pt2"]) == 1
        assert not list(Path("new").iterdir())
        out = " ".join(capsys.readouterr().out.split())
        assert "is not written" in out and said in out


def refuses(batch: np.ndarray) -> list[np.ndarray]:
    """Fail as a runtime does whose file does not fit its input."""
    raise RuntimeError("no such shape")


def zeros(batch: np.ndarray) -> list[np.ndarray]:
    """Return the logits of a file that computes something else."""
    return [np.zeros((len(batch), len(CLASSES)), np.float32)]


SHARED = ROOT.parent / "shared" / "data"
"""Real images and videos, where they are."""


def real(name: str) -> Path:
    """Return a folder of SHARED; skips where it is not there."""
    if not (SHARED / name).is_dir():
        pytest.skip(f"{SHARED / name} is not there")
    return SHARED / name


RECORDED = ("demo.mp4", "flipping_a_pancake.mkv", "sample_av1.mp4")


@pytest.fixture(scope="module")
def clips(home: Runner) -> Path:
    """Return a checkpoint of a video classifier that has seen six videos."""
    for split, count in (("train", 2), ("val", 1)):
        for label, name in enumerate(("jump", "run", "walk")):
            for i in range(count):
                path = home.cwd / "videos" / split / name / f"{i}.mp4"
                make(
                    path, frames=16 + 4 * label, size=(48, 64), numbers_from=99 * label
                )
    network = ("--task video --arch r3d_tiny --image-size 32 --val-resize 37",)
    views = ("--clip-frames 4 --clip-stride 2 --val-clips 1 --val-crops 1",)
    run = ("--loader pyav --batch-size 3 --epochs 1 --val-every 0 --output clips",)
    home("--data videos", *HERE, *network, *views, *run).done()
    return home.cwd / "clips" / "last.pt"


@pytest.mark.parametrize("recorded", [False, True], ids=["drawn", "recorded"])
def test_an_exported_video_classifier_answers_as_predict_does(
    home: Runner, clips: Path, recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is given the frames that the loader shows, and those that a user of PyAV takes.

    As ONNX: tests/conformance/test_exports.py.
    """
    monkeypatch.chdir(home.cwd)
    monkeypatch.setenv("XDG_CACHE_HOME", home.env["XDG_CACHE_HOME"])
    paths = sorted((home.cwd / "videos" / "val").glob("*/*"))
    if recorded:
        paths = [real("video_sample") / name for name in RECORDED]
    listed = home.cwd / f"{recorded}.csv"
    listed.write_text("".join(f"{path}\n" for path in paths))
    whole, _, samples = export.load(clips, images=listed)
    assert isinstance(whole.framing, ClipFraming)
    assert (whole.framing.frames, whole.framing.stride) == (4, 2)
    _, run = export.as_pt2(whole, {})

    def shares(clip: np.ndarray) -> np.ndarray:
        ((logits,),) = run(clip[None])
        return logits - np.logaddexp.reduce(logits)

    table = rows(predicted(home, "--predict", listed, "--resume clips/last.pt"))
    for row, (clip, _) in zip(table, samples, strict=True):
        found = {
            row[f"class{more}"]: np.log(float(row[f"probability{more}"]))
            for more in ("", "_2", "_3")
        }
        expected = [found[name] for name in sorted(found)]
        with av.open(row["path"]) as video:
            frames = [one.to_ndarray(format="rgb24") for one in video.decode(video=0)]
        middle = (len(frames) - 7) // 2
        plain = np.stack(frames[middle : middle + 7 : 2])
        spread = np.ptp(expected)
        assert np.abs(shares(clip) - expected).max() < 0.01 * spread
        # FFmpeg's own RGB is one to two grey levels off
        assert np.abs(shares(plain) - expected).max() < 0.03 * spread


def detections(folder: Path, names: Path) -> list[tuple[str, str, list[float], float]]:
    """Return file, category, box and score of what a detections.json has, by the names of a file in COCO's format."""
    known = json.loads(names.read_text())
    files = {image["id"]: Path(image["file_name"]).name for image in known["images"]}
    categories = {category["id"]: category["name"] for category in known["categories"]}
    return sorted(
        (
            files[one["image_id"]],
            categories[one["category_id"]],
            one["bbox"],
            one["score"],
        )
        for one in json.loads((folder / "detections.json").read_text())
    )


@pytest.fixture(scope="module")
def detector(home: Runner) -> Path:
    """Return a checkpoint of a detector, trained for two steps, which finds much in any image."""
    data = write_coco(home.cwd / "coco", splits={"train2017": 8, "val2017": 6})
    training = ("--task detection --arch fcos_tiny --image-size 64 --longer-side 96",)
    run = (*training, "--batch-size 4 --lr 0.001")
    home(
        "--data",
        data,
        *HERE,
        *TRAINED,
        *run,
        "--epochs 1 --val-every 0 --output detector",
    ).done()
    content = kept(home.cwd / "detector" / "last.pt")
    content["model"][
        "head.classification_head.cls_logits.bias"
    ].zero_()  # else it finds nothing as yet
    torch.save(content, home.cwd / "detector" / "last.pt")
    return home.cwd / "detector" / "last.pt"


def test_detectors_find_what_the_validation_found(home: Runner, detector: Path) -> None:
    home(
        *HERE,
        "--evaluate true --resume detector/last.pt --output evaluated",
    ).done()
    folder = predicted(home, "--predict coco/val2017 --resume detector/last.pt").parent
    found = detections(folder, folder / "images.json")
    annotations = home.cwd / "coco" / "annotations" / "instances_val2017.json"
    assert found and found == detections(home.cwd / "evaluated", annotations)
    drawn = sorted(path.stem for path in (folder / "drawn").iterdir())
    assert drawn == sorted(path.stem for path in (home.cwd / "coco/val2017").iterdir())
    images = json.loads((folder / "images.json").read_text())["images"]
    assert {Path(image["drawn"]).name for image in images} == {
        f"{name}.jpg" for name in drawn
    }
    listed = json.loads((folder / "images.json").read_text())["categories"]
    names = {one["id"]: one["name"] for one in listed}
    sure = Counter(
        names[one["category_id"]]
        for one in json.loads((folder / "detections.json").read_text())
        if one["score"] >= 0.5
    )
    (line,) = re.findall(
        "found at a score of 0.5 and above: (.*)", home.started[-1].out
    )
    told = dict(part.rsplit(" ", 1) for part in line.split(", ")) if sure else {}
    assert told == {name: f"{count:,}" for name, count in sure.items()}


def test_nothing_below_the_threshold_is_drawn_and_all_is_in_the_file(
    home: Runner, detector: Path
) -> None:
    """A score is never above 1."""
    flags = "--predict coco/val2017 --resume detector/last.pt --score-threshold 1"
    folder = predicted(home, flags).parent
    assert detections(folder, folder / "images.json")
    for path in (folder / "drawn").iterdir():
        again = io.BytesIO()
        with Image.open(home.cwd / "coco/val2017" / path.name) as plain:
            plain.convert("RGB").save(again, "JPEG", quality=90)
        drawn, expected = (np.asarray(Image.open(one)) for one in (path, again))
        # "nothing found" at the top left, in JPEG's first blocks
        assert (drawn[:16] != expected[:16]).any()
        assert np.array_equal(drawn[24:], expected[24:])


@pytest.mark.parametrize("photographs", [False, True], ids=["drawn", "photographs"])
def test_an_exported_detector_finds_what_predict_does(
    home: Runner,
    detector: Path,
    photographs: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", home.env["XDG_CACHE_HOME"])
    paths = sorted((home.cwd / "coco" / "val2017").iterdir())
    if photographs:
        paths = sorted(real("coco_sample/val2017").iterdir())[::4]
    images = home.cwd / f"{photographs}.csv"
    images.write_text("".join(f"{path}\n" for path in paths))
    file = home.cwd / "detector.onnx"
    flags = ["--images", str(images), "--output", str(file)]
    assert export.main([str(detector), *flags]) == 0
    assert "best detections of the file and of --predict" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(file)
    about = session.get_modelmeta().custom_metadata_map
    classes = json.loads(about["classes"])
    assert about["task"] == "detection" and classes[0] == "__background__"

    flags_of_loader = "--resume detector/last.pt --batch-size 1"
    folder = predicted(home, "--predict", images, flags_of_loader).parent
    told = json.loads((folder / "images.json").read_text())
    categories = {one["id"]: one["name"] for one in told["categories"]}
    of_image: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for one in json.loads((folder / "detections.json").read_text()):
        of_image[one["image_id"]].append(one)
    same = total = 0
    for image in told["images"]:
        pixels = np.asarray(Image.open(image["file_name"]).convert("RGB"))
        boxes, labels, scores = session.run(None, {"images": pixels})
        named = [
            classes.index(categories[one["category_id"]])
            for one in of_image[image["id"]]
        ]
        boxes_here = np.array([one["bbox"] for one in of_image[image["id"]]])
        boxes_here[:, 2:] += boxes_here[:, :2]
        scores_here = np.array([one["score"] for one in of_image[image["id"]]])
        predictions = [boxes_here, np.array(named), scores_here]
        best = [each[:BEST] for each in predictions]
        # a class that is no category is none of detections.json
        same += int(in_both(best, [boxes, labels, scores]).sum())
        total += len(best[0])
    assert total >= 5 * BEST
    assert same >= 0.95 * total

    with pytest.raises(SystemExit):
        serve_example.main(str(file), str(paths[0]))
    assert "is of --task detection" in capsys.readouterr().err


def test_what_is_not_exported_is_said(
    home: Runner, detector: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*flags: str, **changed: Any) -> str:
        torch.save(kept(detector) | changed, home.cwd / "changed.pt")
        assert export.main([str(home.cwd / "changed.pt"), *flags]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    flags = ("--images", str(home.cwd / "coco" / "val2017"))
    assert "pt2 is not for detectors" in said("--format", "pt2", *flags)
    assert "neither masks nor keypoints" in said(arch="maskrcnn_resnet50_fpn")
    superres = {"config": {"task": "superres"}, "used": {}, "arch": "srcnn"}
    assert "superres is not exported, classification, detection, video are" in said(
        **superres
    )
