"""The demo's videos are odd, and the class is the motion and nothing else."""

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from scripts import demo_set, demo_videos
from tests.unit.folders import contents

SECONDS = np.arange(24) / 24


def motion(name: str, seed: int, count: int = 4) -> tuple[np.ndarray, np.ndarray]:
    return demo_videos._motion(np.random.default_rng(seed), name, count, SECONDS)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """The files of two classes, 25 each: every oddity, and no others that take as long."""
    folder = tmp_path_factory.mktemp("videos")
    for split in demo_set.SPLITS:
        for name in demo_videos.CLASSES:
            (folder / split / name).mkdir(parents=True)
    for key in [(0, label, index) for label in (0, 7) for index in range(25)]:
        demo_videos._write_one(folder, 3, key)
    return folder


@pytest.mark.parametrize("name", ["circle", "up"])
def test_a_class_has_every_oddity(made, name):
    codecs, rotations, rates, shapes, constant, groups = (set[Any]() for _ in range(6))
    for path in (made / "train" / name).iterdir():
        with av.open(str(path)) as file:
            stream = file.streams.video[0]
            shown: list[Any] = list(file.decode(stream))
            times = [float(frame.pts * frame.time_base) for frame in shown]
            gaps = np.diff(times)
            assert times[0] == 0
            assert 24 <= len(shown) <= 60
            assert gaps.min() > 0.03
            assert 112 <= min(stream.width, stream.height) <= 144
            codecs.add(stream.codec_context.name)
            rotations.add(shown[0].rotation % 360)
            rates.add(round(1 / np.median(gaps)))
            shapes.add(round(stream.width / stream.height, 1))
            constant.add(bool(gaps.max() < 1.1 * gaps.min()))
        with av.open(str(path)) as file:
            keys = [at for at, packet in enumerate(file.demux(video=0)) if packet.size and packet.is_keyframe]
            groups |= {*np.diff(keys).tolist()}
    assert {codec.removeprefix("libvpx-") for codec in codecs} == {"h264", "hevc", "vp9"}
    assert 0 in rotations
    assert rotations & {90, 180, 270}
    assert len(rates) >= 3
    assert len(shapes) >= 3
    assert constant == {True, False}
    assert {12, 24} <= groups


# H.264, four rotated, HEVC, VP9
@pytest.mark.parametrize(("label", "index"), [(7, 0), (0, 6), (0, 18), (7, 6), (7, 18), (7, 9), (7, 21)])
def test_a_player_shows_what_was_drawn(made, label, index):
    rng = np.random.default_rng(np.random.SeedSequence(3, spawn_key=(0, label, index)))
    size, seconds = demo_videos.shape(rng), demo_videos.times(rng)
    name = demo_videos.CLASSES[label]
    (path,) = (made / "train" / name).glob(f"{name}_{index:05d}.*")
    oddity = demo_videos.ODDITIES.get(index)
    # encode() draws before the first frame is; without pictures it draws the same and writes nothing.
    demo_videos.encode(rng, made / f"none{path.suffix}", seconds[:0], [], size, oddity)
    drawn = list(demo_videos.frames(rng, label, seconds, size))
    with av.open(str(path)) as file:
        shown: list[Any] = list(file.decode(video=0))
    assert len(shown) == len(drawn)
    np.testing.assert_allclose([float(frame.pts * frame.time_base) for frame in shown], seconds, atol=1e-3)
    for frame, picture in zip(shown, drawn, strict=True):
        got = np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90)
        assert np.abs(got.astype(int) - picture).mean() < 12


def test_a_set_is_whole_and_does_not_depend_on_the_number_of_processes(made, tmp_path):
    assert demo_videos.write(tmp_path / "one", 2, 1, seed=3, progress=False, processes=1)
    assert demo_videos.write(tmp_path / "two", 2, 1, seed=3, progress=False, processes=2)
    one, two, more = contents(tmp_path / "one"), contents(tmp_path / "two"), contents(made)
    assert one == two
    assert len(one) == 1 + 8 * 3
    assert tuple(sorted(path.name for path in (tmp_path / "one" / "val").iterdir())) == demo_videos.CLASSES
    assert all(data == more[name] for name, data in one.items() if name in more)
    assert len({data for name, data in one.items() if not name.endswith(".json")}) == 24
    assert not demo_videos.write(tmp_path / "one", 2, 1, seed=3, progress=False)
    with pytest.raises(FileExistsError):  # nor does the images' set take the place of the videos'
        demo_set.write(tmp_path / "one", 1, 1, progress=False)


@pytest.mark.parametrize("seed", range(5))
def test_each_class_moves_as_it_is_called(seed):
    """Offsets are (x, y) with y downwards; every shape of a video moves alike."""
    for name, axis, signs in (("up", 1, {-1}), ("down", 1, {1}), ("sideways", 0, {-1, 1})):
        offsets, _ = motion(name, seed)
        steps = np.diff(offsets, axis=0)
        assert set(np.unique(np.sign(steps[..., axis]))) <= signs
        assert len(np.unique(np.sign(steps[..., axis]))) == 1
        assert (steps[..., 1 - axis] == 0).all()
    for name, sign in (("grow", 1), ("shrink", -1)):
        offsets, radii = motion(name, seed)
        assert (offsets == 0).all()
        # all but the step where it begins anew
        assert ((np.sign(np.diff(radii, axis=0)) == sign).mean(axis=0) > 0.9).all()
    offsets, radii = motion("circle", seed)
    distance = np.hypot(*np.moveaxis(offsets, -1, 0))
    np.testing.assert_allclose(distance, distance[0, 0])
    offsets, radii = motion("shake", seed)
    assert (np.linalg.matrix_rank(np.moveaxis(offsets, 1, 0), tol=1e-9) == 1).all()  # to and fro on a line
    offsets, radii = motion("still", seed)
    assert (offsets == 0).all()
    assert (radii == radii[0]).all()


def test_a_flip_keeps_every_class():
    """Left to right is the only direction that a left-right flip turns, and one class has both; circles go
    round both ways.
    """
    assert {np.sign(motion("sideways", seed)[0][-1, 0, 0]) for seed in range(20)} == {-1, 1}
    turns = set()
    for seed in range(20):
        (x0, y0), (x1, y1) = motion("circle", seed)[0][:2, 0]
        turns.add(np.sign(x0 * y1 - y0 * x1))
    assert turns == {-1, 1}


def test_sizes_and_places_are_those_of_every_other_class():
    rows = []
    for name in demo_videos.CLASSES:
        radii = np.concatenate([motion(name, seed, count=8)[1][12] for seed in range(200)])
        assert radii.min() >= demo_videos.RADII[0]
        assert radii.max() <= demo_videos.RADII[1]
        rows.append(np.quantile(np.log(radii), [0.1, 0.25, 0.5, 0.75, 0.9]))
    assert np.ptp(rows, axis=0).max() < 0.12


def features(frame: np.ndarray) -> np.ndarray:
    """16 bins of each colour, and how large the differences of neighbours are in eighths of the frame."""
    bins = [np.bincount(frame[..., channel].ravel() // 16, minlength=16) for channel in range(3)]
    edges = [np.abs(np.diff(frame.astype(int), axis=axis)).mean(axis=(axis, 2)) for axis in (0, 1)]
    return np.concatenate(
        [np.sqrt(np.concatenate(bins)), *(part.mean() for edge in edges for part in np.array_split(edge, 8))],
        axis=None,
    )


def ridge_accuracy(features: np.ndarray, labels: np.ndarray) -> float:
    x = (features - features[::2].mean(0)) / (features[::2].std(0) + 1e-6)
    x = np.hstack([x, np.ones((len(x), 1))])
    train, wanted = x[::2], np.eye(8)[labels[::2]]
    weights = np.linalg.solve(train.T @ train + 30 * np.eye(x.shape[1]), train.T @ wanted)
    return float((np.argmax(x[1::2] @ weights, 1) == labels[1::2]).mean())


def test_colours_and_texture_of_a_frame_do_not_give_the_class_away():
    labels = np.repeat(np.arange(8), 50)
    pixels: list[np.ndarray] = []
    for place, label in enumerate(labels):
        pixels += demo_videos.frames(
            np.random.default_rng([7, place]), int(label), np.array([0.5]), (112, 112)
        )
    assert ridge_accuracy(np.array([features(frame) for frame in pixels]), labels) < 0.25  # 12.5 % is chance

    # The plant: a tint per class must be found, or the line above proves nothing.
    tints = np.random.default_rng(0).integers(0, 256, (8, 3))
    tinted = [features((frame + tints[label]) // 2) for frame, label in zip(pixels, labels, strict=True)]
    assert ridge_accuracy(np.array(tinted), labels) > 0.6
