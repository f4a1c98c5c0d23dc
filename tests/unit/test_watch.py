"""What a run does that is asked to stop and cannot go on: it says what it waits for, gives up, or leaves."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.distributed as dist

from saturate.engine import ranks, stop, watch
from saturate.engine.distributed import ProcessWorld
from saturate.engine.ranks import Peers
from saturate.engine.stop import Asked, StopRequest
from saturate.engine.watch import Watch

HERE = f"rank 0 on {socket.gethostname()}"


class Hanging:
    """A loader whose second batch does not come."""

    def batches(self, epoch: int, first: int) -> Iterator[Any]:
        yield "a batch"
        while True:
            time.sleep(0.01)

    def awaited(self) -> str:
        return "worker 3, busy with /data/x.jpg"


def watched(monkeypatch: pytest.MonkeyPatch, size: int = 1) -> tuple[Watch, list[int]]:
    """A watch of a run of so many ranks that is quick, and the codes with which it left."""
    for name, seconds in {"WARN_S": 0.3, "GIVES_UP_S": 0.3, "LEAVES_S": 0.6}.items():
        monkeypatch.setattr(watch, name, seconds)
    world = ProcessWorld(torch.device("cpu"))
    world.size = size
    codes: list[int] = []
    made = Watch(
        world=world,
        stop=StopRequest(),
        writing=threading.Lock(),
        leave=codes.append,
    )
    return made, codes


def until(condition: Any) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_batch_that_does_not_come(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is told of; and a run that is alone gives up when it is asked to stop, in its main thread."""
    made, codes = watched(monkeypatch)
    loader: Any = Hanging()
    with made.stop.listening(), made.running(), made.steps():
        batches = made.batches(loader, loader.batches(0, 0))
        assert next(batches, None) is not None
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(Asked):
            next(batches)
    said = capfd.readouterr().err.splitlines()
    assert said[0].startswith(f"train.py: {HERE} has waited ")
    assert said[0].endswith(" for a batch: worker 3, busy with /data/x.jpg")
    assert len(said) == 2 and not codes


@pytest.mark.parametrize("asked", [True, False], ids=["asked-to-stop", "timeout"])
def test_other_ranks_that_do_not_come(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], asked: bool
) -> None:
    """Whatever the main thread hangs in, though no handler of Python's runs there."""
    made, codes = watched(monkeypatch, size=2)
    made.world.timeout_s = 100.0 if asked else 0.3
    monkeypatch.setattr(made.world, "blame", lambda: "rank 1 on b does not answer")
    with made.stop.listening(), made.running(), made.steps():
        for _ in range(watch.WARM_UP):
            made.beat()
        if asked:
            os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: codes)
    line = capfd.readouterr().err.splitlines()[-1]
    assert codes[0] == (128 + signal.SIGTERM if asked else 1)
    assert HERE in line
    assert (
        "cannot meet the others" if asked else "rank 1 on b does not answer"
    ) in line


def test_who_goes_on_or_saves_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made, codes = watched(monkeypatch, size=2)
    made.world.timeout_s = 0.3
    with made.stop.listening(), made.running(), made.steps():
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(20):
            time.sleep(0.05)
            made.beat()
        with made.writing:  # a checkpoint takes its time
            time.sleep(0.8)
            made.world.timeout_s = 100.0
        made.beat()
    assert not codes


def test_a_second_ctrl_c_ends_what_does_not_look(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Soon after the first one it is the same, which torchrun has passed on."""
    monkeypatch.setattr(stop, "ECHO_S", 0.3)
    request = StopRequest()
    with request.listening():
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        time.sleep(0.4)
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2 and said[1] == "train.py: ending now, without a checkpoint"


class Gone:
    """A store whose process is no more."""

    def set(self, *_: str) -> None:
        raise dist.DistNetworkError("Broken pipe")


def peers(rank: int, store: Any) -> Peers:
    """A rank of two that have met by a store."""
    made = Peers.__new__(Peers)
    host = "ab"[rank]
    made.__dict__.update(rank=rank, size=2, host=host, first_host="a", store=store)
    made.__dict__.update(waits="", local_rank=0, _aside=store)
    made._ended = threading.Event()
    return made


def test_a_store_that_has_gone_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Else a rank would go on with nobody to watch it; who was asked to stop has done so."""
    monkeypatch.setattr(ranks, "BEAT_S", 0.01)
    monkeypatch.setattr(ranks, "CLOSED_S", 0.1)
    made, codes = watched(monkeypatch)
    with made.stop.listening(), made.running():
        os.kill(os.getpid(), signal.SIGUSR1)
        until(lambda: made._heard)
        peers(1, Gone()).watch(made.world.on_end)
        until(lambda: codes)
    assert codes[0] == 128 + signal.SIGTERM
    line = "rank 1 on b cannot go on: rank 0 on a does not answer; go on with --resume auto"
    assert capfd.readouterr().err.splitlines()[-1] == f"train.py: {line}"


def test_a_rank_that_does_not_beat_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank is told; one that beats more slowly than the others look, and one that has ended, is not lost."""
    monkeypatch.setattr(ranks, "SILENT_S", 0.5)
    store = dist.HashStore()
    keys = {"beat/0": "0 ", "beat/1": "0 ", "lost": "", ranks.MISTAKE_KEY: ""}
    for key, value in {**keys, "came/1": '["", "b"]'}.items():
        store.set(key, value)
    found: list[str] = []

    def note(code: int, line: str) -> None:
        assert code == 1
        found.append(line)

    monkeypatch.setattr(ranks, "BEAT_S", 0.2)
    slow = peers(1, store)
    slow.watch(note)
    monkeypatch.setattr(ranks, "BEAT_S", 0.1)
    peers(0, store).watch(note)
    time.sleep(1.5)
    assert not found
    slow.end()
    until(lambda: found)
    peers(1, store).watch(note)
    until(lambda: len(found) == 2)
    for line, who in zip(found, ("rank 0 on a", "rank 1 on b"), strict=True):
        lost = "cannot go on: rank 1 on b does not answer; go on with --resume auto"
        assert line == f"{who} {lost}"


@pytest.mark.parametrize("where", ["first-step", "slow"])
def test_ranks_that_may_be_slow(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    made, codes = watched(monkeypatch, size=2)
    made.world.timeout_s = 0.3
    with made.running(), made.slow() if where == "slow" else made.steps():
        time.sleep(1.2)
    assert not codes


def test_first_signal_heard_after_the_watch(capfd: pytest.CaptureFixture[str]) -> None:
    """The main thread hung in a library: it gives up its wait, and the run still says why it ends."""
    request = StopRequest()
    with request.listening(), suppress(Asked), request.may_give_up():
        request.gives_up = True
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("it waits on")
    assert request.signal == signal.SIGINT
    assert "stopping after this step" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_that_act_as_sigterm(number: signal.Signals) -> None:
    request = StopRequest()
    with request.listening():
        os.kill(os.getpid(), number)
        assert request() and request.signal == signal.SIGTERM
    assert signal.getsignal(number) == signal.SIG_DFL
