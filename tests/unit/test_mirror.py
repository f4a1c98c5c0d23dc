"""A run's folder and its URL: which of the two is newer, whose it is, and what happens where nobody answers."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from saturate.contracts import UserError
from saturate.dataset.stores import claim, mirror, remote
from saturate.dataset.stores.claim import Claim
from saturate.engine.checkpoint import Checkpoints
from saturate.engine.distributed import ProcessWorld
from saturate.system import processes, storage
from tests.unit.folders import contents, refused

OTHER = Claim(run="other", holder="elsewhere 1", number=1)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds that tests can wait for, and no processes of their own."""
    for name, value in {"SETTLED_S": 0.05, "LOOK_S": 0.02, "RENEWED_S": 0.2}.items():
        monkeypatch.setattr(claim, name, value)
    monkeypatch.setattr(remote, "PAUSES_S", (0.01, 0.02, 0.04))
    monkeypatch.setattr(remote, "apart", lambda work: work())
    monkeypatch.setattr(processes, "Beside", lambda _: Renewing())


class Renewing:
    """Renews nothing: a test does so itself."""

    def kill(self) -> None:
        pass


class Places:
    """A run's folder on some hosts, and the folder that is its URL."""

    def __init__(self, path: Path) -> None:
        self.folder = path / "here" / "run"
        self.elsewhere = path / "elsewhere" / "run"
        self.bucket = path / "bucket" / "run"
        self.url = f"file://{self.bucket}"
        for folder in (self.folder, self.elsewhere):
            folder.mkdir(parents=True)

    def begin(self, folder: Path | None = None, **how: bool) -> Any:
        return mirror.mirrored(
            self.url, folder or self.folder, **{"resuming": True, **how}
        )

    def names(self) -> set[str]:
        return {path.name for path in self.bucket.iterdir() if path.name[0] != "."}


@pytest.fixture
def places(tmp_path: Path, quick: None) -> Places:
    return Places(tmp_path)


def save(folder: Path, step: int, epoch: int = 0, *, date_s: int = 0) -> None:
    """Leave what a run has at a step, all of one date."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"progress": {"step": step, "epoch": epoch}}, folder / "last.pt")
    for name in ("best.pt", f"step-{step}.pt"):
        (folder / name).write_text(f"{step} {epoch}")
    for path in folder.iterdir():
        os.utime(path, (date_s, date_s))


@pytest.mark.parametrize("dates", [(1000, 9000), (9000, 1000), (5000, 5000)])
@pytest.mark.parametrize(
    ("here", "there", "newer"),
    [
        ((300, 0), (20, 0), "here"),
        ((20, 0), (300, 0), "there"),
        ((100, 1), (100, 0), "here"),  # a validation lies between
        ((100, 0), (100, 1), "there"),
        ((100, 0), (100, 0), "here"),
        (None, (20, 0), "there"),
        ((20, 0), None, "here"),
    ],
)
def test_the_step_decides_and_no_date(
    here: Any, there: Any, newer: str, dates: tuple[int, int], places: Places
) -> None:
    for folder, steps, date_s in zip(
        (places.folder, places.bucket), (here, there), dates, strict=True
    ):
        if steps:
            save(folder, *steps, date_s=date_s)
    before = contents(places.folder)
    steps = here if newer == "here" else there
    with places.begin():
        content = torch.load(places.folder / "last.pt")["progress"]
        assert (content["step"], content["epoch"]) == steps
        assert (places.folder / "best.pt").read_text() == f"{steps[0]} {steps[1]}"
    aside = [*places.folder.parent.glob("run.before-*")]
    assert len(aside) == (newer == "there" and here is not None)
    assert not aside or contents(aside[0]) == before, "what is overwritten is kept"
    assert torch.load(places.bucket / "last.pt")["progress"]["step"] == steps[0]
    if newer == "there":
        assert f"step-{there[0]}.pt" in places.names()
        assert not (places.folder / ".fetched").exists()


@pytest.mark.parametrize("damage", ["cut", "turned", "text"])
@pytest.mark.parametrize("damaged", ["here", "there"])
def test_a_damaged_checkpoint_is_older_than_any(
    damaged: str, damage: str, places: Places
) -> None:
    save(places.folder, 300)
    save(places.bucket, 300)
    sides = {"here": places.folder, "there": places.bucket}
    path = sides[damaged] / "last.pt"
    content = bytearray(path.read_bytes())
    content[content.index(b"progress")] ^= 1
    broken = {"cut": content[: len(content) // 2], "turned": content, "text": b"300"}
    path.write_bytes(bytes(broken[damage]))
    with places.begin():
        assert torch.load(places.folder / "last.pt")["progress"]["step"] == 300
    aside = places.folder.with_name("run.before-1") / "last.pt"
    assert not aside.exists() or aside.read_bytes() == broken[damage]
    assert torch.load(places.bucket / "last.pt")["progress"]["step"] == 300


def test_an_upload_that_broke_off(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but last.pt went, and the folder's last.pt is the newest of all."""
    tried = mirror.Mirror._tried

    def cut(self: Any, name: str, *words: str) -> None:
        if name == "last.pt" and words[0] == fails:
            raise OSError(5, "connection reset")
        tried(self, name, *words)

    monkeypatch.setattr(mirror.Mirror, "_tried", cut)
    fails = ""

    def breaks_off() -> None:
        nonlocal fails
        with places.begin() as upload:
            save(places.folder, 100)
            upload()
            # of the same date and size: what is uploaded goes by neither
            save(places.folder, 900)
            fails = "put_file"

    assert "cannot be written: connection reset" in refused(breaks_off)
    assert (places.bucket / "best.pt").read_text() == "900 0"
    assert torch.load(places.bucket / "last.pt")["progress"]["step"] == 100
    fails = ""
    with places.begin():
        assert torch.load(places.folder / "last.pt")["progress"]["step"] == 900
    # and a fetch that breaks off leaves the folder as it is
    fails = "get_file"
    save(places.elsewhere, 7)
    before = contents(places.elsewhere)
    (places.elsewhere / ".claim").write_text((places.folder / ".claim").read_text())
    said = refused(lambda: places.begin(places.elsewhere).__enter__())
    assert "cannot be read: connection reset" in said
    left = contents(places.elsewhere)
    assert {name: left[name] for name in before} == before
    fails = ""
    with places.begin(places.elsewhere):
        assert contents(places.elsewhere)["best.pt"] == b"900 0"


def test_a_copy_that_breaks_off_on_a_disk_leaves_the_last_one_whole(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder may be a URL, such as file:///mnt/share/run."""
    copyfile = shutil.copyfile

    def torn(here: str, there: str) -> None:
        copyfile(here, there)
        if "last.pt" in there and fails:
            os.truncate(there, 100)
            raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(shutil, "copyfile", torn)
    fails = False
    with suppress(UserError), places.begin() as upload:
        save(places.folder, 100)
        (places.folder / "profile").mkdir()
        (places.folder / "profile" / "trace.json").write_text("{}")
        upload()
        save(places.folder, 900)
        fails = True
    assert torch.load(places.bucket / "last.pt")["progress"]["step"] == 100
    assert (places.bucket / "profile" / "trace.json").read_text() == "{}"
    assert places.names() == {
        "best.pt",
        "last.pt",
        "profile",
        "step-100.pt",
        "step-900.pt",
    }


# -- whose it is ---------------------------------------------------------------


def test_another_run_in_the_folder_is_refused_and_both_are_named(
    places: Places,
) -> None:
    with places.begin() as own:
        save(places.folder, 900)
        own()
        first = own.held.run
    for path in places.bucket.iterdir():
        path.unlink()
    with places.begin(places.elsewhere) as other:
        save(places.elsewhere, 100)
        second = other.held.run
    before = contents(places.folder), contents(places.bucket)
    said = refused(lambda: places.begin().__enter__())
    assert first in said and second in said and "name another URL" in said
    (places.folder / ".claim").unlink()
    assert f"{second}, and its folder" in refused(lambda: places.begin().__enter__())
    left = contents(places.folder), contents(places.bucket)
    before[0].pop(".claim")
    assert left == before
    # without --resume auto as ever
    fresh = places.folder.with_name("fresh")
    fresh.mkdir()
    said = refused(lambda: places.begin(fresh, resuming=False).__enter__())
    assert "holds a run; continue it with --resume auto" in said


def test_a_claim_that_nobody_renews_is_taken_over(
    places: Places, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """By a run that goes on, which is the same, and by one that begins; no clock is asked."""
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(storage, "_notified", set())
    OTHER.put(places.url)
    with places.begin() as upload:
        assert (upload.held.run, upload.held.number) == ("other", 2)
    assert capfd.readouterr().err.count("another run is writing there (other on") == 1
    replace(OTHER, number=3).put(places.url)
    with places.begin(places.elsewhere, resuming=False) as upload:
        assert upload.held.run != "other" and upload.held.number == 4
    # what has ended, or was begun from here, is not waited for
    monkeypatch.setattr(claim, "RENEWED_S", 1e9)
    with places.begin(places.elsewhere) as upload:
        left = upload.held
    replace(left, number=left.number, ended=False).put(places.url)
    with places.begin(places.elsewhere) as upload:
        assert (upload.held.run, upload.held.number) == (left.run, left.number + 1)


@pytest.fixture
def renewed(places: Places) -> Iterator[threading.Event]:
    """Another host that renews its claim until the event."""
    ended = threading.Event()

    def renew() -> None:
        count = 0
        while not ended.wait(0.01):
            count += 1
            replace(OTHER, renewals=count).put(places.url)
        replace(OTHER, ended=True).put(places.url)

    OTHER.put(places.url)
    thread = threading.Thread(target=renew)
    thread.start()
    yield ended
    ended.set()
    thread.join()


@pytest.mark.parametrize("resuming", [True, False])
def test_a_run_that_lives_keeps_its_url(
    resuming: bool,
    places: Places,
    renewed: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claim, "RENEWED_S", 1e9)
    monkeypatch.setattr(claim, "GRACE_S", 0.2)
    said = refused(lambda: places.begin(resuming=resuming).__enter__())
    assert "another run is writing there (other on elsewhere); wait for its end" in said
    assert not contents(places.folder)


def test_a_predecessor_that_is_ending_is_waited_for(
    places: Places, renewed: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "RENEWED_S", 1e9)
    monkeypatch.setattr(claim, "GRACE_S", 1e9)
    threading.Timer(0.3, renewed.set).start()
    with places.begin() as upload:
        assert (upload.held.run, upload.held.number) == ("other", 2)


def at_once(url: str, monkeypatch: pytest.MonkeyPatch, *, all_have_put: bool) -> int:
    """Return how many of four runs that begin at once hold a URL."""
    barrier = threading.Barrier(4)
    held = []

    def begin(n: int) -> None:
        barrier.wait()
        new = Claim(run=f"{n}", holder=f"host{n} {n}", number=1)
        held.append(claim._holds(url, new, None))

    if all_have_put:
        monkeypatch.setattr(time, "sleep", lambda _: barrier.wait())
    threads = [threading.Thread(target=begin, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(held)


def test_of_runs_that_begin_at_once_one_holds(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system whose put replaces whatever is there: all have put when the first one reads."""
    assert at_once(places.url, monkeypatch, all_have_put=True) == 1


def test_a_run_whose_place_was_taken_uploads_nothing_more(places: Places) -> None:
    """Such as on a host that was asleep for an hour."""
    run = places.begin()
    upload = run.__enter__()
    save(places.folder, 100)
    upload()
    replace(OTHER, number=2).put(places.url)
    save(places.bucket, 200)
    before = contents(places.bucket)
    save(places.folder, 300)
    for ends in (upload, lambda: run.__exit__(None, None, None)):
        with pytest.raises(storage.Superseded, match="other on elsewhere has taken"):
            ends()
    assert contents(places.bucket) == before


def test_an_evaluation_claims_nothing_and_uploads_its_own_files(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the run, whose files a newer folder here does not replace."""
    monkeypatch.setattr(claim, "RENEWED_S", 1e9)
    OTHER.put(places.url)
    save(places.bucket, 100)
    save(places.folder, 300)
    with places.begin(trains=False):
        (places.folder / "evaluate").mkdir()
        (places.folder / "evaluate" / "summary.json").write_text("{}")
    assert (places.bucket / "best.pt").read_text() == "100 0"
    assert (places.bucket / "evaluate" / "summary.json").exists()


@pytest.mark.parametrize("protocol", ["http", "https", "HTTPS", "S3", "github", "x"])
def test_what_cannot_be_written_to_is_refused(protocol: str, tmp_path: Path) -> None:
    url = f"{protocol}://user:secret@host/run"
    said = refused(lambda: mirror.mirrored(url, tmp_path, resuming=True).__enter__())
    assert (
        f"{protocol}:// cannot be written to; name a folder, or a URL of s3://" in said
    )
    assert "secret" not in said and not contents(tmp_path)


# -- who does not answer -------------------------------------------------------


def test_uploads_go_on_while_files_come_and_go(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = mirror.Mirror._tried

    def cut(self: Any, name: str, *words: str) -> None:
        if name == "best.pt":
            (self.folder / "step-1.pt").unlink(missing_ok=True)
        tried(self, name, *words)

    monkeypatch.setattr(mirror.Mirror, "_tried", cut)
    with places.begin() as upload:
        save(places.folder, 1)
        upload()
        assert places.names() == {"best.pt", "last.pt"}
        for path in places.folder.glob("*.pt"):
            path.unlink()
        (places.folder / ".hidden").mkdir()
        (places.folder / ".hidden" / "file").touch()
        upload()
        assert not places.names()


class Silent:
    """A server that takes connections, and then `answer`s."""

    def __init__(self, answer: Any = lambda _: None) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self._answer = answer
        self._taken: list[socket.socket] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                end, _ = self.listener.accept()
                self._taken.append(end)
                self._answer(end)

    def ask(self, hurry: processes.Stop) -> bytes:
        with remote.watched("s3://b/run", hurry):
            with socket.create_connection(self.listener.getsockname()) as end:
                end.sendall(bytes(1 << 16))
                return end.recv(9, socket.MSG_WAITALL)


def test_a_silent_storage_is_said_and_in_a_hurry_given_up(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(remote, "WARN_S", 0.1)
    monkeypatch.setattr(remote, "SILENT_S", 0.3)
    hurry = processes.Stop()
    threading.Timer(1.0, hurry.now).start()
    with pytest.raises(OSError, match="no answer"):
        remote.apart(partial(Silent().ask, hurry))
    line = "s3://b/run has not answered for 0 s, and is waited for"
    assert capfd.readouterr().err.count(line) == 1


def test_a_slow_storage_is_waited_for_even_in_a_hurry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes longer than SILENT_S as a whole, and a byte comes now and then."""

    def slowly(end: socket.socket) -> None:
        for _ in range(9):
            time.sleep(0.15)
            end.sendall(b"x")

    monkeypatch.setattr(remote, "SILENT_S", 1.0)
    hurry = processes.Stop()
    hurry.now()
    assert remote.apart(partial(Silent(slowly).ask, hurry)) == b"x" * 9


def test_bytes_that_come_are_counted() -> None:
    before = remote._moved()
    sends = Silent(lambda end: end.sendall(bytes(1 << 16)))
    with socket.create_connection(sends.listener.getsockname()) as end:
        end.recv(1 << 16, socket.MSG_WAITALL)
        assert remote._moved() >= before + (1 << 16)


def test_a_silent_storage_is_given_up_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a hurry nothing more is asked of it, and its failure ends no run that was stopped."""
    monkeypatch.setattr(remote, "SILENT_S", 0.3)
    server, asked = Silent(), []
    upload = mirror.Mirror(url="s3://b/run", folder=tmp_path)

    def silent() -> bytes:
        return server.ask(upload._hurry)

    def apart(work: Any) -> Any:
        asked.append(work)
        return apart_from_it(silent)

    apart_from_it = remote.apart
    monkeypatch.setattr(remote, "apart", apart)
    (tmp_path / "last.pt").touch()
    upload.hurry()
    for _ in range(2):
        with pytest.raises(storage.StorageFault, match="cannot be written: no answer"):
            upload()
    upload.end()
    assert len(asked) == 1


class Hanging:
    """An upload whose storage answers once it is `open`, or not at all."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.begun = threading.Event()
        self.seen: list[set[str]] = []  # files, each time an upload ends
        self.error: UserError | None = None
        self.folder = Path()

    def __call__(self) -> None:
        self.begun.set()
        assert self.open.wait(60)
        if self.error is not None:
            raise self.error
        self.seen.append({path.name for path in self.folder.glob("*.pt")})

    def hurry(self) -> None:
        self.error = storage.StorageFault("--output s3://b/run: no answer; stays")
        self.open.set()


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    upload = Hanging()
    upload.folder = tmp_path
    return Checkpoints(
        folder=tmp_path,
        world=ProcessWorld(torch.device("cpu")),
        module=torch.nn.Linear(1, 1),
        step=MagicMock(),
        about={},
        keep=9,
        upload=upload,
    )


def write(checkpoints: Checkpoints, step: int) -> None:
    checkpoints.write("last.pt", {"progress": {"step": step}})
    checkpoints.wait()  # as the next one would


def test_no_write_waits_for_an_upload(checkpoints: Checkpoints) -> None:
    upload: Any = checkpoints.upload
    for step in (1, 2, 3):
        write(checkpoints, step)
        assert checkpoints.saved == step
        assert upload.begun.wait(60) and not upload.seen
    upload.open.set()
    checkpoints.finish()
    # once more for what came meanwhile, and once in the end
    names = {"last.pt", *(f"step-{step:09}.pt" for step in (1, 2, 3))}
    assert upload.seen == [names] * 3


def test_a_run_that_is_stopped_gives_a_silent_storage_up(
    checkpoints: Checkpoints, capfd: pytest.CaptureFixture[str]
) -> None:
    """It ends as one that was stopped, which is started again, and not with a mistake; and a run that is over does
    not."""
    write(checkpoints, 1)
    checkpoints.finish(stopped=True)
    assert (
        "no answer; stays, and --resume auto there uploads it" in capfd.readouterr().err
    )
    with pytest.raises(UserError, match="no answer"):
        checkpoints.finish()


def test_a_disk_that_fails_for_seconds_at_the_end_has_the_last_checkpoint(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the first or the second try after that of training, which the job files would not start again."""
    replaced, fails = storage.replace, [1, 1, 1]

    def replace(*words: Any) -> None:
        if fails:
            raise OSError(errno.EIO * fails.pop(), "input/output error")
        replaced(*words)

    monkeypatch.setattr(storage, "replace", replace)
    monkeypatch.setattr(storage, "ENDING_S", (0, 0))
    write(checkpoints, 1)
    assert len(fails) == 2
    checkpoints.finish(stopped=True)
    assert checkpoints.saved == 1 and not fails


def test_a_run_whose_place_was_taken_is_stopped(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    try:
        upload: Any = checkpoints.upload
        upload.error = storage.Superseded("another run has this one's place")
        upload.open.set()
        write(checkpoints, 1)
        assert stopped.wait(60)
        monkeypatch.setattr(upload, "hurry", lambda: None)
        with pytest.raises(storage.Superseded):
            checkpoints.finish(stopped=True)
    finally:
        signal.signal(signal.SIGTERM, before)
