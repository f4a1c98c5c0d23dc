"""The programs that draw a demo's set: whole folders, and pictures that stay the same."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from scripts import (
    _sets,
    demo_coco,
    demo_set,
    demo_superres,
    demo_textures,
    demo_videos,
)
from tests.unit.folders import contents


def test_a_foreign_folder_is_refused_in_one_line_and_an_interrupt_leaves_nothing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program, name = demo_superres, demo_superres.SET.name
    (tmp_path / "mine.txt").write_text("{}")
    before = contents(tmp_path)
    assert program.main([str(tmp_path), "--train", "1", "--val", "1"]) == 2
    assert program.main([str(next(tmp_path.iterdir()))]) == 2
    assert program.main([str(tmp_path / "set"), "--val", "0"]) == 2
    messages = capsys.readouterr().err.splitlines()
    assert len(messages) == 3 and all(line.startswith(f"{name}: ") for line in messages)
    assert str(tmp_path) in messages[0] and "at least one" in messages[2]

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_sets, "track", interrupted)
    assert program.main([str(tmp_path / "set")]) == 130
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["set", "coco", "superres", "textures", "videos"])
def test_bytes_depend_on_neither_processes_nor_counts_and_no_two_files_are_alike(
    name: str, tmp_path: Path
) -> None:
    program = import_module(f"scripts.demo_{name}")
    found = []
    for train, processes in ((1, 2), (2, 1)):
        folder = tmp_path / str(train)
        how = {"seed": 3, "progress": False, "processes": processes}
        assert program.write(folder, train, 1, **how)
        drawn = contents(folder).items()
        found.append({k: v for k, v in drawn if not k.endswith(".json")})
    one, more = found
    assert len({*more.values()}) == len(more) == 3 * len(program.SET.classes)
    assert one.items() < more.items(), "a larger set begins with a smaller one"


def moments(pixels: np.ndarray) -> list[float]:
    """Mean level, and means weighted by x and by y: they tell colours and places, and no encoder."""
    levels = pixels.mean(axis=2)
    down, across = (np.linspace(-1, 1, side) for side in levels.shape)
    return [levels.mean(), (levels * across).mean(), (levels * down[:, None]).mean()]


@cache
def pictures() -> dict[str, np.ndarray]:
    def rng(number: int) -> np.random.Generator:
        return np.random.default_rng([7, number])

    seconds = demo_videos.times(rng(0), variable=True)
    videos = [
        [*demo_videos.frames(rng(n), n, seconds, demo_videos.shape(rng(n)))]
        for n in range(8)
    ]
    return {
        "set": np.array([moments(demo_set.image(rng(n), n)) for n in range(10)]),
        "textures": np.array(
            [moments(demo_textures.image(rng(n), n)) for n in range(0, 50, 6)]
        ),
        "superres": np.array(
            [moments(demo_superres.picture(rng(n))) for n in range(3)]
        ),
        "coco": np.array(
            [moments(demo_coco.drawn(rng(n), crowd=n == 1)[0]) for n in range(3)]
        ),
        "videos": np.array(
            [moments(video[index]) for video in videos for index in (0, 20)]
        ),
    }


GOLDEN = {
    "set": (
        "200.0 -0.1 -0.4 54.6 0.4 -1.9 41.5 0.1 -0.1 65.2 -1.0 1.9 185.3 4.7 -0.1 194.8 -0.0 -1.5 51.0 "
        "0.4 -1.3 71.2 0.1 -1.5 182.8 -0.0 0.4 213.1 -0.2 -0.3"
    ),
    "textures": (
        "141.4 0.1 0.6 143.2 0.1 -0.2 134.6 0.2 0.2 102.3 -1.4 1.3 119.5 0.8 -0.1 118.4 0.1 0.3 112.2 "
        "-0.3 -0.7 97.9 -0.1 0.3 108.5 0.8 1.0"
    ),
    "superres": "146.0 3.4 -9.3 124.7 0.6 0.4 121.0 -9.4 5.1",
    "coco": "98.8 -13.2 4.5 177.8 0.1 -8.6 37.5 -1.5 0.6",
    "videos": (
        "176.7 6.0 6.3 184.6 -0.8 4.4 70.2 0.9 1.2 62.3 1.8 2.1 200.1 -1.2 0.4 190.0 2.4 11.3 94.3 1.5 "
        "3.0 93.5 0.5 0.7 169.2 -2.7 0.6 169.7 -3.3 0.2 213.9 9.4 4.0 221.2 -8.5 2.0 174.9 3.4 2.9 174.6 "
        "3.4 2.7 61.2 1.5 -3.8 58.7 0.5 3.9"
    ),
}


@pytest.mark.parametrize("kind", GOLDEN)
def test_what_is_drawn_stays_the_same(kind: str) -> None:
    """A demo's figures, and those of the benchmarks on drawn sets, are of these very pictures."""
    expected = np.array(GOLDEN[kind].split(), float).reshape(-1, 3)
    np.testing.assert_allclose(pictures()[kind], expected, atol=0.1)
