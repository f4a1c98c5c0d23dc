"""saturate.run.folders: whoever is killed leaves nothing for long, and two do not write one folder."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from saturate.contracts import UserError
from saturate.run.folders import whole

WRITER = """
import sys, time
from pathlib import Path
from saturate.run.folders import whole
with whole(Path(sys.argv[1])) as fresh:
    (fresh / "half").write_text("x")
    print("writes", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has begun to write tmp_path/set."""
    command = [sys.executable, "-c", WRITER, str(tmp_path / "set")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writes\n"
        yield process
        process.kill()


def test_what_a_killed_process_has_left_goes_with_the_next_one(
    writer: subprocess.Popen[str], tmp_path: Path
) -> None:
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    (left,) = tmp_path.iterdir()
    assert [path.name for path in left.rglob("half")] == ["half"]
    with whole(tmp_path / "set") as fresh:
        (fresh / "file").write_text("y")
    assert os.listdir(tmp_path) == ["set"]
    assert os.listdir(tmp_path / "set") == ["file"]


def test_a_folder_that_another_process_is_writing(
    writer: subprocess.Popen[str], tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="set: another run is writing there"):
        with whole(tmp_path / "set"):
            pass
    assert sorted(tmp_path.rglob("*")) == before
    with whole(tmp_path / "other"):
        pass
    assert (tmp_path / "other").is_dir()
