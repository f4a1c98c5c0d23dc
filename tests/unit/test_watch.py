"""What a run does that is asked to stop and cannot go on: it says what it waits for, gives up, or leaves."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from engine import stop, watch
from engine.checkpoint import Checkpoints, Progress
from engine.distributed import ProcessWorld
from engine.emergency_save import EmergencySave
from engine.ranks import Peers
from engine.stop import Asked, StopRequest
from engine.watch import Watch

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
    for name, seconds in {"SAID_S": 0.3, "GIVES_UP_S": 0.3, "LEAVES_S": 0.6}.items():
        monkeypatch.setattr(watch, name, seconds)
    world = ProcessWorld(torch.device("cpu"))
    world.size = size
    codes: list[int] = []
    made = Watch(
        world=world,
        stop=StopRequest(),
        rescue=lambda: True,
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
        batches = made.batches(loader, 0, 0)
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
    for name in ("blame", "silent"):
        monkeypatch.setattr(made.world, name, lambda: "rank 1 on b does not answer")
    with made.stop.listening(), made.running(), made.steps():
        if asked:
            os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: codes)
    line = capfd.readouterr().err.splitlines()[-1]
    assert codes[0] == (128 + signal.SIGTERM if asked else 2)
    assert HERE in line and line.endswith("its last whole step is saved")
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


class Steps:
    """A network that is trained by hand, in the steps of a rank of two."""

    def __init__(self, folder: Path) -> None:
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.path = folder / "last.pt"
        world = ProcessWorld(torch.device("cpu"))
        world.size = 2
        scaler = SimpleNamespace(state_dict=dict)
        step: Any = SimpleNamespace(
            optimizer=self.optimizer, scaler=scaler, ema=None, graphs=None
        )
        self.step = step
        checkpoints = Checkpoints(
            folder=folder, world=world, module=self.net, step=step, about={}
        )
        self.rescue = EmergencySave(checkpoints, world, accumulate=1)
        self.progress = Progress()

    def forward(self) -> None:
        self.rescue.begin(self.progress)
        self.net(torch.randn(8, 3)).square().sum().backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.progress.step += 1
        self.rescue.done(self.progress)

    def state(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.net.state_dict().items()}

    def check(self, step: int, state: dict[str, torch.Tensor]) -> None:
        """Require that what was saved is this step."""
        found = torch.load(self.path, weights_only=True)
        assert found["progress"]["step"] == step
        for name, value in state.items():
            assert torch.equal(found["model"][name], value)


def test_the_last_whole_step_is_saved(tmp_path: Path) -> None:
    """In the middle of one: with the running statistics that it began with."""
    run = Steps(tmp_path)
    for _ in range(3):
        run.forward()
        run.update()
    whole = run.state()
    run.forward()
    assert not torch.equal(whole["1.running_mean"], run.state()["1.running_mean"])
    assert run.rescue.save(best=0.5)
    run.check(3, whole)
    assert torch.load(run.path, weights_only=True)["progress"]["best"] == 0.5
    later = threading.Thread(target=run.update, daemon=True)
    later.start()
    later.join(0.3)
    assert later.is_alive(), "the optimiser waits from then on"
    run.rescue._moving.release()
    later.join()


def test_a_step_that_cannot_be_finished_is_undone(tmp_path: Path) -> None:
    """What is not finite, or not of training, is not saved."""
    run = Steps(tmp_path)
    run.forward()
    run.update()
    whole = run.state()
    run.forward()
    run.rescue.undo()
    assert all(torch.equal(value, whole[name]) for name, value in run.state().items())
    run.rescue.end()
    assert not run.rescue.save(best=0.5)
    run.rescue._moving.release()
    run.forward()
    next(run.net.parameters()).data[0, 0] = torch.nan
    assert not run.rescue.save(best=0.5) and not run.path.exists()


def test_a_step_that_the_device_hangs_in(tmp_path: Path) -> None:
    """The host is past it, and its forward pass has moved the buffers."""
    run = Steps(tmp_path)
    run.forward()
    run.update()
    whole = run.state()
    run.forward()
    pending = SimpleNamespace(query=lambda: False)
    run.rescue.done(Progress(step=2))
    run.rescue._whole[-1] = (Progress(step=2), pending)
    assert run.rescue.save(best=0.5)
    run.check(1, whole)


@pytest.mark.parametrize("launched", [True, False])
def test_a_replay_is_not_saved_in_its_middle(tmp_path: Path, launched: bool) -> None:
    """No hook of the optimiser's is called in one; while its batch is waited for, a step can be saved."""
    run = Steps(tmp_path)
    run.step.graphs = SimpleNamespace()
    run.forward()
    if launched:
        run.rescue.hold_launch()
    saving = threading.Thread(target=run.rescue.save, kwargs={"best": 0.5}, daemon=True)
    saving.start()
    saving.join(0.3 if launched else 5.0)
    assert saving.is_alive() is launched
    if launched:
        run.rescue.done(Progress(step=1))
        saving.join(5.0)
    found = torch.load(run.path, weights_only=True)["progress"]["step"]
    assert found == int(launched)


class Gone:
    """A store whose process is no more."""

    def clone(self) -> Gone:
        return self

    def set(self, *_: str) -> None:
        raise dist.DistNetworkError("Broken pipe")

    multi_get = set


def test_a_store_that_has_gone_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Else a rank would go on with nobody to watch it."""
    made, codes = watched(monkeypatch, size=2)
    peers = Peers.__new__(Peers)
    peers.__dict__.update(
        rank=1, size=2, hosts=["a", "b"], store=Gone(), _of_thread=Gone(), _beats=0
    )
    made.world._peers = peers
    with made.stop.listening(), made.running(), made.steps():
        until(lambda: codes)
    assert codes[0] == 2
    line = f"{HERE} cannot reach the others: rank 0 on a does not answer; its last whole step is saved"
    assert capfd.readouterr().err.splitlines()[0] == f"train.py: {line}"


@pytest.mark.parametrize("lives", [True, False], ids=["all-live", "one-is-dead"])
@pytest.mark.parametrize("where", ["first-step", "slow"])
def test_ranks_that_may_be_slow(
    monkeypatch: pytest.MonkeyPatch, where: str, lives: bool
) -> None:
    made, codes = watched(monkeypatch, size=2)
    made.world.timeout_s = 0.3
    monkeypatch.setattr(
        made.world, "silent", lambda: "" if lives else "rank 1 on b does not answer"
    )
    with made.running(), made.slow() if where == "slow" else made.steps():
        time.sleep(1.2)
    assert bool(codes) == (not lives)
