"""--transforms: a function of the user's in the workers, drawn by the plan and by nothing else."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from saturate.contracts import Array, UserError
from saturate.loaders import open_loader
from saturate.loaders.images.transforms import Transform
from saturate.run.build import may_open
from saturate.settings.config import parse
from saturate.tasks import kind_named
from saturate.tasks.classification import KIND
from tests.conformance import scenes
from tests.conformance.scenes import Scene

HERE = "tests.unit.test_transforms"


def own(image: Array, rng: np.random.Generator) -> Array:
    """Draw from each generator that a function may know."""
    image[0, 0] = rng.integers(256), random.randrange(256), np.random.randint(256)  # noqa: NPY002
    image[0, 1] = int(torch.randint(256, (1,)))
    return image


def smaller(image: Array, rng: np.random.Generator) -> Array:
    return image[1:]


def failing(image: Array, rng: np.random.Generator) -> Array:
    raise ValueError("no such\n  colour")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return scenes.scene(tmp_path_factory.mktemp("transforms"), scenes.small(8))


def images(
    photos: Scene, epoch: int, batch_size: int, workers: int, **transforms: Any
) -> Array:
    """Return the images of an epoch in the order of their samples."""
    feed = photos.feed(
        batch_size=batch_size, image_size=24, workers=workers, transforms=transforms
    )
    with open_loader("torchvision", feed) as loader:
        found = {
            int(sample): batch.images[place].numpy().copy()
            for batch in loader.batches(epoch, 0)
            for place, sample in enumerate(batch.ids)
        }
    return np.stack([found[sample] for sample in sorted(found)])


@pytest.mark.parametrize("what", ["output", "region"])
def test_the_plan_alone_says_what_is_drawn(what: str, photos: Scene) -> None:
    """With any number of workers and samples in a batch, and other images in another epoch."""
    transforms = {what: Transform(f"{HERE}:own")}
    random.seed(1)
    first = images(photos, 0, 4, 2, **transforms)
    random.seed(2)
    np.testing.assert_array_equal(first, images(photos, 0, 2, 0, **transforms))
    assert random.random() == random.Random(2).random(), (
        "the run's own generators are as they were"
    )
    assert (first != images(photos, 0, 4, 0)).any()
    assert (images(photos, 1, 4, 0, **transforms) != first).any()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no.such:own", "No module named 'no'"),
        (f"{HERE}:smaller", r"returned uint8 \(23, 24, 3\) for uint8 \(24, 24, 3\)"),
        (
            f"{HERE}:failing",
            r"raised ValueError: no such colour \(test_transforms.py, line \d+\)",
        ),
    ],
    ids=["no-module", "shape", "raises"],
)
def test_a_mistake_is_told_before_training(name: str, said: str, photos: Scene) -> None:
    with pytest.raises(UserError, match=said):
        images(photos, 0, 4, 2, output=Transform(name))


def test_other_loaders_and_tasks_refuse_it(tmp_path: Path) -> None:
    argv = ["--data", str(tmp_path), "--transforms", f"{HERE}:own"]
    assert may_open(KIND, parse(argv), gpu=True) == ("torchvision",)
    with pytest.raises(UserError, match="--transforms is for --loader torchvision"):
        parse([*argv, "--loader", "dali-fed"])
    for task in ("detection", "video"):
        assert not kind_named(task).reads("transforms")


def test_the_pages_example_changes_colours_as_torch_is_seeded() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
    code, *_ = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    names: dict[str, Any] = {}
    exec(code, names)
    image = np.random.default_rng(0).integers(0, 256, (8, 6, 3), np.uint8)

    def changed(seed: int) -> Array:
        torch.manual_seed(seed)
        found: Array = names["colours"](image, np.random.default_rng(seed))
        assert (found.shape, found.dtype) == (image.shape, image.dtype)
        return found

    assert np.array_equal(changed(1), changed(1))
    assert not np.array_equal(changed(1), changed(2))


def test_the_pages_example_of_albumentations_draws_by_the_samples_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")  # else it asks the network
    library = pytest.importorskip("albumentations")
    page = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
    _, code, *_ = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    names: dict[str, Any] = {}
    exec(code, names)
    image = np.random.default_rng(0).integers(0, 256, (8, 6, 3), np.uint8)
    own = library.Compose(
        [library.RandomBrightnessContrast(p=1), library.GaussNoise(p=1)],
        seed=int(np.random.default_rng(1).integers(2**31)),
    )
    expected = own(image=image)["image"]
    assert expected.shape == image.shape and (expected != image).any()
    # whatever the worker has drawn before
    names["weather"](image, np.random.default_rng(2))
    found = names["weather"](image, np.random.default_rng(1))
    np.testing.assert_array_equal(found, expected)
