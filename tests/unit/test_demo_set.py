"""The demo's images are as odd as ImageNet's, and colour does not give the class away."""

import numpy as np
import pytest
from PIL import Image

from scripts import demo_set
from tests.unit.folders import contents


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    dest = tmp_path_factory.mktemp("demo") / "set"
    assert demo_set.write(dest, train_per_class=25, val_per_class=2, seed=3, progress=False)
    return dest


def test_every_class_has_every_oddity_of_imagenet(small):
    for name in demo_set.CLASSES:
        modes, kinds, orientations, sizes = set(), set(), set(), []
        for path in (small / "train" / name).iterdir():
            with Image.open(path) as picture:
                picture.load()
                modes.add(picture.mode)
                kinds.add(picture.format)
                orientations.add(picture.getexif().get(0x0112))
                sizes.append(picture.size)
        assert modes == {"RGB", "L", "CMYK"}
        assert kinds == {"JPEG", "PNG"}
        assert None in orientations
        assert orientations & {3, 6, 8}
        assert any(width > height for width, height in sizes)
        assert any(width < height for width, height in sizes)
        assert len(set(sizes)) > 5
        assert 250 <= np.median([min(size) for size in sizes]) <= 450


def test_bytes_do_not_depend_on_the_number_of_processes(small, tmp_path):
    demo_set.write(tmp_path / "one", 2, 1, seed=3, progress=False, processes=1)
    demo_set.write(tmp_path / "three", 2, 1, seed=3, progress=False, processes=3)
    one, three, more = contents(tmp_path / "one"), contents(tmp_path / "three"), contents(small)
    assert one == three
    # A larger set begins with the smaller one.
    assert all(more[name] == data for name, data in one.items() if name.endswith(".JPEG"))


def test_images_differ_by_seed_split_class_and_index(tmp_path):
    for seed in (0, 1):
        demo_set.write(tmp_path / str(seed), 2, 2, seed=seed, progress=False)
    images = [data for name, data in contents(tmp_path).items() if name.endswith(".JPEG")]
    assert len(set(images)) == len(images) == 2 * 2 * 10 * 2


def test_motifs_are_five_shapes_apart_and_not_confusable_by_a_flip():
    def canonical(points, mirror):
        return tuple(sorted((round(mirror * x, 2) + 0.0, round(y, 2)) for x, y in points))

    shapes = {
        name: frozenset(canonical(points, mirror) for mirror in (1, -1))
        for name, points in demo_set.MOTIFS.items()
    }
    assert len(set(shapes.values())) == 10
    for points in map(np.array, demo_set.MOTIFS.values()):
        assert points.shape == (5, 2)
        assert np.abs(points).max() <= 1
        gaps = np.hypot(*(points[:, None] - points[None]).T) + 9 * np.eye(5)
        # the largest radius: shapes that overlap would paint less, and colour would tell
        assert gaps.min() > 2 * 0.23


def histogram_accuracy(pixels: list[np.ndarray], labels: np.ndarray) -> float:
    """Share of the odd images put right by a ridge regression on the even images' colour histograms: 4 x 4 x
    4 joint, 16 bins a channel.
    """
    features = []
    for image in pixels:
        joint = np.bincount((image // 64 @ np.array([16, 4, 1])).ravel(), minlength=64)
        single = [np.bincount(image[..., channel].ravel() // 16, minlength=16) for channel in range(3)]
        features.append(np.sqrt(np.concatenate([joint, *single]) / (image.size / 3)))
    x = np.array(features)
    x = np.hstack([x - x[::2].mean(0), np.ones((len(x), 1))])
    train, wanted = x[::2], np.eye(10)[labels[::2]]
    weights = np.linalg.solve(train.T @ train + 0.1 * np.eye(x.shape[1]), train.T @ wanted)
    return float((np.argmax(x[1::2] @ weights, 1) == labels[1::2]).mean())


def test_colour_does_not_give_the_class_away():
    labels = np.repeat(np.arange(10), 30)
    pixels = [
        demo_set.image(np.random.default_rng([7, n]), int(label))[::3, ::3] for n, label in enumerate(labels)
    ]
    assert histogram_accuracy(pixels, labels) < 0.3  # 10 % is chance

    # The plant: a tint per class must be found, or the line above proves nothing.
    tints = np.random.default_rng(0).integers(0, 256, (10, 3))
    tinted = [(image + tints[label]) // 2 for image, label in zip(pixels, labels, strict=True)]
    assert histogram_accuracy(tinted, labels) > 0.8
