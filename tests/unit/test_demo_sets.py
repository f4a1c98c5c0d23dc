"""The programs that draw a demo's set: whole folders, and pictures that stay the same."""

from __future__ import annotations

import platform
import shutil
from importlib import import_module
from pathlib import Path

import pytest

from scripts import _sets, demo_superres
from tests.unit.folders import JPEG, contents, fill


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


@pytest.mark.parametrize(
    "name",
    [
        "scripts.demo_superres",
        *(f"benchmarks.{name}_set" for name in ("patch", "video", "link")),
    ],
)
def test_files_of_a_user_are_never_removed(name: str, tmp_path: Path) -> None:
    """Neither in a set that is asked for with other counts, nor where they come while one is drawn."""
    fill(tmp_path / "from", {"a/0.jpg": JPEG, "b/0.jpg": JPEG})
    program = import_module(name)

    def drawn(to: Path, count: int) -> int:
        words = {
            "scripts.demo_superres": [to, "--train", count, "--val", 1],
            "benchmarks.patch_set": [to, "--patches", 16, "--count", count],
            "benchmarks.video_set": [to, "--count", count, "--size", 64, 96],
            "benchmarks.link_set": [tmp_path / "from", to, "--count", count],
        }
        code: int = program.main([*map(str, words[name])])
        return code

    made = tmp_path / "made"
    assert drawn(made, 2) == 0
    sample = next(path for path in sorted(made.rglob("*")) if path.is_file())
    (sample.parent / "labels.txt").write_text("mine")
    before = contents(made)
    assert drawn(made, 3) == 2 and contents(made) == before

    # files of others where a set is written, and files that come meanwhile
    later = tmp_path / "later"
    beside = f".later.{platform.node()}.partial"
    fill(tmp_path, {f"{beside}/mine.txt": b"1", f"{beside}/later/half": b"1"})
    assert drawn(later, 2) == 0 and contents(tmp_path / beside) == {"mine.txt": b"1"}
    assert not [*later.rglob("half")]
    shutil.rmtree(tmp_path / beside)
    shutil.rmtree(later)
    later.mkdir()
    with pytest.raises(OSError, match="not empty"), _sets.whole(later):
        fill(later, {"mine.txt": b"1"})
    assert contents(later) == {"mine.txt": b"1"}


@pytest.mark.parametrize("name", ["set", "coco", "superres", "videos"])
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
