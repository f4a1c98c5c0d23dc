"""What a program saves while it is measured: its files are in the end those that were there."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from saturate.why import undo

ROOT = Path(__file__).parents[2]
SAVES = {
    "in its place": "write('last.pt')",
    "through a name beside": "write('a.tmp'); os.replace('a.tmp', 'last.pt')",
    "by torch": "torch.save(1, 'last.pt'); torch.save(1, Path('new.pt')); torch.load('new.pt')",
    "a copy of it": "write('last.pt'); shutil.copy2('last.pt', 'best.pt'); shutil.copy('last.pt', 'more.pt')",
    "a link to it": "write('new.pt'); os.link('new.pt', 'more.pt'); os.symlink('new.pt', 'it.pt')",
    "as the newest of several": "os.rename('last.pt', 'last-1.pt'); write('last.pt')",
    "without the oldest": "os.remove('best.pt'); Path('last.pt').unlink(); write('new.pt'); os.remove('new.pt')",
    "in a new folder": "os.makedirs('runs/2'); write('runs/2/new.pt'); write('runs/2/state.json')",
    "in a folder that is renamed": "os.mkdir('tmp-2'); write('tmp-2/new.pt'); os.rename('tmp-2', 'step-2')",
    "without the oldest folder": "shutil.rmtree('step-1'); write('new.pt')",
    "that again, and it": "shutil.rmtree('step-1'); os.makedirs('step-1'); write('step-1/a.pt')",
    "in another folder": "os.chdir('step-1'); write('a.pt'); os.remove('../best.pt')",
    "moved from elsewhere": "write(other + '/x'); shutil.move(other + '/x', 'last.pt')",
    "a name that no checkpoint has": "os.rename('last.pt', 'last.bak'); write('last.pt'); os.remove('last.bak')",
    "over what it has moved": "os.rename('last.pt', 'prev.pt'); write('last.pt'); write('prev.pt')",
    "through a link": "os.symlink('last.pt', 'it.pt'); write('it.pt')",
    "and what says which is the newest": "write('new.pt'); write('last_checkpoint')",
    "and leads to it": "os.mkdir('step-2'); write('step-2/b.pt'); os.symlink('step-2', 'best')",
    "and has the link lead to it": "os.mkdir('s'); write('s/b.pt'); os.remove('newest'); os.symlink('s', 'newest')",
    "and a new link": "write('new.pt'); os.symlink('new.pt', 'tmp'); os.replace('tmp', 'newest')",
    "from what was no checkpoint": "os.rename('notes.txt', 'last.pt')",
    "by a thread": "t = threading.Thread(target=write, args=('last.pt',)); t.start(); t.join()",
    "twice, and then it fails": "write('last.pt'); write('last.pt'); os.remove('none.pt')",
}  # fmt: skip

TORCH = """
import torch
from saturate.why import hooks
hooks.around(torch.serialization, "save", hooks.saved)
torch.save = torch.serialization.save
"""


@pytest.mark.parametrize("how", SAVES)
def test_files_are_those_of_before(how: str, tmp_path: Path) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    other.mkdir()
    for name in ("last.pt", "best.pt", "notes.txt", "step-1/a.pt", "step-1/state.json"):
        file = here / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"old {name}")
        os.utime(file, (1e9, 1e9))
    (here / "last_checkpoint").write_text("last.pt")
    (here / "newest").symlink_to("step-1")
    before = files_of(here)
    assert saved(SAVES[how], here, other, tmp_path) == ("fails" in how)
    assert files_of(here) != before, "the plant saves nothing"
    assert undo.back(tmp_path).undone > 0
    assert files_of(here) == before


def test_two_processes_that_save_one_file(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "last.pt").write_text("old")
    for _ in range(2):
        assert saved("write('last.pt'); write('new.pt')", here, here, tmp_path) == 0
    # of a process that was killed as it wrote
    with next(tmp_path.glob("files-*")).open("a") as file:
        file.write('{"path": "')
    assert undo.back(tmp_path).undone == 2
    assert files_of(here) == {"last.pt": b"old"}
    assert undo.back(tmp_path).undone == 0


def test_what_is_changed_in_place_is_named(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in ("state.bin", "data.npy", "notes.txt"):
        (here / name).write_text("old")
        os.utime(here / name, (1e9, 1e9))
    plant = "open('state.bin', 'r+b').write(b'new'); open('data.npy', 'r+b'); open('notes.txt', 'a').write('x')"
    assert saved(plant, here, here, tmp_path) == 0
    assert undo.back(tmp_path) == undo.Undone(0, [str(here / "state.bin")])
    assert files_of(here)["data.npy"] == b"old"
    # what is written anew behind that is back as it was changed, and named
    plant = "open('data.npy', 'r+b').write(b'new'); write('data.npy')"
    assert saved(plant, here, here, tmp_path) == 0
    assert undo.back(tmp_path) == undo.Undone(1, [str(here / "data.npy")])
    # one that was kept whole before is as it was
    plant = "write('state.bin'); open('state.bin', 'r+b').write(b'x')"
    assert saved(plant, here, here, tmp_path) == 0
    assert undo.back(tmp_path) == undo.Undone(1, [])


def test_a_link_to_a_large_folder_is_not_walked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12,000 folders of data are not opened; a checkpoint is found below a link, and beside one to them."""
    data, here = tmp_path / "data", tmp_path / "here"
    for number in range(12_000):
        (data / f"{number}").mkdir(parents=True)
    (here / "step/rank/0").mkdir(parents=True)
    (here / "data").symlink_to(data)
    (here / "step/rank/0/model.pt").touch()
    (tmp_path / "newest").symlink_to(here)
    opened: list[object] = []
    scandir = os.scandir

    def counted(path: str) -> Iterator[os.DirEntry[str]]:
        opened.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    assert not undo._holds_checkpoint(str(here / "data"))
    assert undo._holds_checkpoint(str(tmp_path / "newest"))
    assert len(opened) < 10


def saved(plant: str, here: Path, other: Path, journals: Path) -> int:
    """Run a program that saves, and return its exit code."""
    program = (
        "import os, shutil, threading; from pathlib import Path; from saturate.why import undo\n"
        f"{TORCH if 'torch' in plant else ''}\n"
        "write = lambda name: Path(name).write_text('new')\n"
        f"other = {str(other)!r}\n"
        f"undo.Journal(Path({str(journals)!r}, f'files-{{os.getpid()}}'))\n"
        f"{plant}\n"
    )
    command = [sys.executable, "-c", program]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=here, env=environment, check=False).returncode


def files_of(folder: Path) -> dict[str, bytes]:
    """Return by path what each file, link and folder has."""
    found = {}
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        if path.is_symlink():
            content = os.fsencode(path.readlink())
        found[str(path.relative_to(folder))] = content
    return found
