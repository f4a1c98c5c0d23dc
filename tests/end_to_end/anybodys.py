"""A training program that is not ours, and knows nothing of us: what tests/end_to_end/test_why.py measures.

    python anybodys.py name=value ...

Each name is one of DEFAULTS. Times are slept, so that a busy machine changes little, and figures can be worked out by
hand.
"""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

DEFAULTS: dict[str, Any] = {
    "read_ms": 0.0,  # slept for each sample
    "spin_ms": 0.0,  # computed for each sample
    "slow_rank_ms": 0.0,  # slept for each sample by rank 1 alone
    "step_ms": 0.0,  # slept in each step
    "workers": 1,
    "samples": 4000,
    "batch": 8,
    "steps": 100_000,
    "start": "",  # of the workers: fork, spawn or forkserver
    "persistent": 0,
    "begin_ms": 0.0,  # slept by each worker as it begins
    "loop": "plain",
    "ranks": "",  # how the second one is started: again (by sys.argv, as Lightning does), spawn
    "save": "",  # a file that each step is written to
    "fail": 0,  # exit code at the 40th step
    "log": "",  # a file for what each step begins with
    "alike": 0,  # 1: all batches are
}


class Data(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, asked: dict[str, Any]) -> None:
        self.asked = asked

    def __len__(self) -> int:
        return int(self.asked["samples"])

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        slept_ms = self.asked["read_ms"]
        if os.environ.get("RANK") == "1":
            slept_ms += self.asked["slow_rank_ms"]
        if slept_ms:
            time.sleep(slept_ms / 1e3)
        ends = time.thread_time() + self.asked["spin_ms"] / 1e3
        while time.thread_time() < ends:
            pass
        return torch.ones(3, 4, 4), 0 if self.asked["alike"] else number % 10


def begun(begin_ms: float, _: int) -> None:
    time.sleep(begin_ms / 1e3)


def loader_of(asked: dict[str, Any]) -> DataLoader[tuple[torch.Tensor, int]]:
    return DataLoader(
        Data(asked),
        asked["batch"],
        num_workers=asked["workers"],
        persistent_workers=bool(asked["persistent"]),
        multiprocessing_context=asked["start"] or None,
        worker_init_fn=functools.partial(begun, asked["begin_ms"]),
    )


class Program:
    def __init__(self, asked: dict[str, Any]) -> None:
        self.asked = asked
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.net: Any = nn.Sequential(nn.Flatten(), nn.Linear(48, 10))
        if "WORLD_SIZE" in os.environ:
            torch.distributed.init_process_group("gloo")
            self.net = nn.parallel.DistributedDataParallel(self.net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), 1e-3, momentum=0.9)
        self.other = torch.optim.Adam(self.net.parameters(), 1e-3)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.999)
        if asked["loop"] == "scaler":
            self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        self.loader = loader_of(asked) if asked["persistent"] else None
        self.steps = 0

    def batches(self) -> Any:
        # made anew for each epoch, unless it is to keep its workers
        loader = self.loader or loader_of(self.asked)
        loop = self.asked["loop"]
        if loop == "watch":
            from saturate import why

            data = Data(self.asked)
            size = self.asked["batch"]
            endless = (
                torch.stack([data[number][0] for number in range(size)])
                for _ in itertools.count()
            )
            return ((x, torch.zeros(size).long()) for x in why.watch(endless))
        if loop == "held":  # an iterator that is never begun anew
            return iter(loader)
        if loop == "ahead":  # as accelerate does
            return self.ahead(loader)
        return loader

    def ahead(self, loader: Any) -> Any:
        waiting = iter(loader)
        batch = next(waiting)
        for following in waiting:
            yield batch
            batch = following

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        asked = self.asked
        assert float(x.mean()) == 1.0, "a batch that the loop has changed came again"
        if asked["log"]:
            weights = sum(float(one.sum()) for one in self.net.parameters())
            rate = self.optimizer.param_groups[0]["lr"]
            with open(asked["log"], "a") as file:
                print(weights, rate, float(torch.rand(1)), sep="\t", file=file)
        time.sleep(asked["step_ms"] / 1e3)
        loss = nn.functional.cross_entropy(self.net(x), y)
        loop = asked["loop"]
        if loop == "by hand":
            for parameter, grad in zip(
                self.net.parameters(),
                torch.autograd.grad(loss, [*self.net.parameters()]),
                strict=True,
            ):
                parameter.data -= 1e-3 * grad
        elif loop == "scaler":
            # every second step has a gradient that is no number, and is skipped
            scale = float("inf") if self.steps % 2 else 1.0
            self.scaler.scale(loss * scale).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update(new_scale=2.0)
            self.optimizer.zero_grad()
        else:
            loss.backward()
            if loop != "accumulate" or self.steps % 4 == 3:
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.schedule.step()
            if loop == "two optimizers":
                self.other.step()
        x.mul_(2.0)
        self.steps += 1
        if asked["save"]:
            torch.save(self.steps, asked["save"])
        if asked["fail"] and self.steps == 40:
            print("my own words", file=sys.stderr)
            sys.exit(asked["fail"])

    def train(self) -> None:
        while self.steps < self.asked["steps"]:
            for x, y in self.batches():
                self.step(x, y)
                if self.steps == self.asked["steps"]:
                    break


def spawned(rank: int, asked: dict[str, Any]) -> None:
    os.environ["RANK"] = str(rank)
    Program(asked).train()


def main() -> None:
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    asked = {
        name: type(value)(given.get(name, value)) for name, value in DEFAULTS.items()
    }
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    if asked["ranks"] == "again" and "RANK" not in os.environ:
        os.environ |= place | {"RANK": "0"}
        subprocess.Popen([sys.executable, *sys.argv], env=os.environ | {"RANK": "1"})
    if asked["ranks"] == "spawn":
        os.environ |= place
        torch.multiprocessing.start_processes(spawned, (asked,), nprocs=2)
        return
    Program(asked).train()


if __name__ == "__main__":
    main()
    print("came to its end")
