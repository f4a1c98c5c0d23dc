"""Images that EXIF turns, with --exif shown: what a viewer shows is trained on, in every loader and task."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from saturate.contracts import Array, Feed, Pixels
from saturate.dataset.coco.columns import Instances
from saturate.dataset.images.columns import TURN_OF, as_shown
from saturate.dataset.stores.folder import Folder
from saturate.loaders import open_loader
from saturate.loaders.images.transforms import Transform
from saturate.plan import geometry
from saturate.plan.augment import Augment, Erase
from saturate.plan.boxes import DetectionPlan, DetectionPolicy
from saturate.plan.geometry import composed, turned_pixels
from saturate.plan.targets import packed
from tests.conformance import pictures
from tests.conformance.placed import epoch_is_the_plans
from tests.conformance.scenes import Backend, Scene, scene
from tests.unit.coco_files import counts, document, opened, write, write_coco

ORIENTATIONS = range(1, 9)
OUTWARD = {turn: {5: 6, 6: 5}.get(turn, turn) for turn in range(geometry.TURNS)}
"""A turn -> the one that undoes it."""


def stored(shown: Array, orientation: int) -> bytes:
    """A lossless file whose viewer shows these pixels."""
    pixels = turned_pixels(shown, OUTWARD[int(TURN_OF[orientation])])
    exif = Image.Exif()
    exif[pictures.EXIF_ORIENTATION] = orientation
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG", exif=exif)
    return buffer.getvalue()


def test_turns_are_a_viewers() -> None:
    shown = pictures.photograph(1, 5, 7)
    for orientation in ORIENTATIONS:
        with Image.open(io.BytesIO(stored(shown, orientation))) as image:
            assert np.array_equal(np.asarray(ImageOps.exif_transpose(image)), shown), (
                orientation
            )
    for first in range(geometry.TURNS):
        for then in range(geometry.TURNS):
            both = int(composed(*np.array([[first], [then]], np.uint8))[0])
            wanted = turned_pixels(turned_pixels(shown, first), then)
            assert np.array_equal(turned_pixels(shown, both), wanted), (first, then)


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Photographs as they are shown, stored in all eight ways."""
    shown = {f"way-{way}": pictures.photograph(way, 80, 100) for way in ORIENTATIONS}
    made = scene(
        tmp_path_factory.mktemp("turned"),
        {
            name: stored(pixels, way)
            for way, (name, pixels) in zip(ORIENTATIONS, shown.items(), strict=True)
        },
    )
    contents = tuple(pictures.png(shown[name]) for name in made.names)
    return replace(made, manifest=as_shown(made.manifest), bytes_of=contents)


@pytest.mark.parametrize("training", [True, False], ids=["training", "validation"])
def test_what_is_shown_is_delivered(
    backend: Backend, turned: Scene, training: bool
) -> None:
    feed = turned.feed(backend.device, batch_size=4, image_size=40, training=training)
    assert turned.samples == 8
    assert not epoch_is_the_plans(backend.open, feed, turned, backend.pixel_difference)


def darkened(image: Array, rng: np.random.Generator) -> Array:
    """Make the upper half black."""
    image[: len(image) // 2] = 0
    return image


@pytest.mark.parametrize("what", ["output", "region"])
def test_a_function_of_the_users_gets_what_is_shown(turned: Scene, what: str) -> None:
    transforms = {what: Transform(f"{__name__}:darkened")}
    levels = Pixels(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    feed = turned.feed(image_size=40, transforms=transforms, pixels=levels)
    with open_loader("torchvision", feed) as loader:
        images = torch.cat([one.images.clone() for one in loader.batches(0, 0)])
    assert len(images) == len(ORIENTATIONS)
    assert (images[:, :, :18] == 0).all()
    assert (images[:, :, 22:].mean((1, 2, 3)) > 0.1).all()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A detection set, and the same one with its pictures stored in all eight ways, all of them as PNG."""
    plain, turned = (
        write_coco(tmp_path_factory.mktemp(name) / "data", splits={"train2017": 16})
        for name in ("a", "b")
    )
    for place, path in enumerate(sorted((plain / "train2017").iterdir())):
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
        path.write_bytes(pictures.png(pixels))
        (turned / "train2017" / path.name).write_bytes(stored(pixels, 1 + place % 8))
    told = document(plain, "train2017")
    sizes = {image["id"]: (image["height"], image["width"]) for image in told["images"]}
    for one in told["annotations"][::2]:  # half of the masks are run lengths
        x, y, w, h = map(int, one["bbox"])
        mask = np.zeros(sizes[one["image_id"]], bool)
        mask[y : y + h // 2, x : x + w] = True
        one["segmentation"] = {"counts": counts(mask), "size": list(mask.shape)}
    for root in (plain, turned):
        write(root, "train2017", told)
    return plain, turned


def batches(columns: Instances, backend: Backend, policy: DetectionPolicy) -> list[Any]:
    plan = DetectionPlan(columns, policy, seed=3, batch_size=4)
    targets = {"masks": True, "keypoints": True, "centred": policy.centred}
    feed = Feed(
        plan=plan,
        source=Folder(columns),
        columns=columns,
        targets=lambda rows: packed(columns, rows, **targets),
        device=backend.device,
        workers=1,
        pixels=Pixels(dtype=backend.dtype),
    )
    with backend.open(feed) as loader:
        return [
            (
                batch.images.float().cpu().numpy().copy(),
                {**batch.host},
                batch.sizes.cpu().numpy().copy(),
            )
            for batch in loader.batches(0, 0)
        ]


@pytest.mark.parametrize(
    ("augment", "keypoints"), [("flip", True), ("lsj", False), ("ssd", False)]
)
def test_boxes_masks_and_keypoints_turn_with_the_pixels(
    backend: Backend, both: tuple[Path, Path], augment: Any, keypoints: bool
) -> None:
    """Annotations are of what is shown: both sets are the same to a detector, and lose the same pixels."""
    longer = None if augment == "ssd" else 120
    erased = Augment((Erase(erase=1.0),))
    policy = DetectionPolicy(
        augment=augment, size=96, longer=longer, flip=0.5, colours=erased
    )
    plain, turned = (
        as_shown(opened(root, keypoints=keypoints, exif=exif))
        for root, exif in zip(both, ("stored", "shown"), strict=True)
    )
    assert (
        turned.rejected == 0
        and turned.warnings == []
        and plain.exif is None
        and turned.exif is not None
    )
    for (expected, wanted, sizes), (images, targets, its) in zip(
        batches(plain, backend, policy), batches(turned, backend, policy), strict=True
    ):
        assert np.array_equal(sizes, its)
        for name, values in wanted.items():
            assert np.array_equal(values, targets[name]), name
        assert len(wanted["boxes"]) > 0
        assert (
            np.abs(images - expected).mean() * 255 * 0.225
            < 0.2 + backend.repeat_difference
        )


def test_stored_is_the_default_and_says_what_it_leaves_out(
    both: tuple[Path, Path],
) -> None:
    """Orientations 2 to 4 fit the stored size too: they are taken, and counted; 5 to 8 are left out."""
    columns = opened(both[1])
    assert len(columns) == 8 and len(columns.image_id) == 8
    (line,) = columns.warnings
    assert (
        "EXIF asks viewers to turn 14 of 16 images: 6 taken as stored, as torchvision does"
        in line
    )
    assert (
        "and 8 left out, whose annotations are of the size shown; --exif shown turns them"
        in line
    )
    text = (columns.folder / "rejected.txt").read_text().splitlines()
    assert len(text) == 8 and all("--exif shown takes it" in one for one in text)
