"""The other ranks of a run: how they meet, and which of them has gone, or is waited for."""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from contracts import UserError

Found = TypeVar("Found")

BEAT_S = 1.0
"""How often a rank says that it lives."""
ANSWERS_S = 8.0
"""Seconds in which the store of what ranks have said must answer; rank 0 has it, or torchrun."""
LOOK_S = 0.1
MISTAKE = "mistake"
"""Key of the line with which a rank has ended before all had joined."""
LOG = "its own line or its host's log says why"
GONE = (
    "Connection reset by peer",
    "Connection closed by peer",
    "Broken pipe",
    "Timed out waiting",
    "NCCL communicator was aborted",
)
"""Words in an error of gloo's, by which ranks vote in every step, or NCCL's, when a rank does not answer."""


def is_gone(error: BaseException) -> bool:
    """Whether an error says that another rank's process is no more, or does not answer."""
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in GONE)


def _torchrun_has_store() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


class Peers:
    """All ranks of a run that have met, each on its host. A rank `beat`s from a thread of its own."""

    def __init__(self, *, rank: int, size: int, timeout_s: float) -> None:
        """Meet the others by the variables that torchrun sets. Raises UserError after `timeout_s`."""
        self.rank = rank
        self.size = size
        self.timeout_s = timeout_s
        self.host = socket.gethostname()
        self.store = self._store()
        self._of_thread = self.store.clone()
        self._beats = 0
        self._gathered = 0
        self.store.set(f"beat/{rank}", "0 ")
        self.hosts = [os.environ.get("MASTER_ADDR", "localhost")] * size
        self.hosts = [host.decode() for host in self.meet("host", self.host.encode())]

    def beat(self, waits: str) -> str:
        """Say that this rank lives, and what its main thread waits for: "" for nothing of its own.

        Returns "", or who does not answer where the store has gone, with the process that has it.
        """
        self._beats += 1
        said = f"{self._beats} {waits}"
        told = self._asked(lambda: [self._of_thread.set(f"beat/{self.rank}", said)])
        return self._no_store() if told is None else ""

    def end(self, line: str) -> None:
        """End the others where they wait to `meet` this rank, which ends with a line."""
        self._asked(lambda: [self.store.clone().set(MISTAKE, line)])

    def silent(self) -> str:
        """Return which ranks have gone or are stopped, "" where all live. It takes some seconds."""
        looked = self._asked(self._look)
        return self._no_store() if looked is None else looked[0]

    def blame(self) -> str:
        """Return which ranks have gone or are stopped, else what the others say that they wait for."""
        looked = self._asked(self._look)
        if looked is None:
            return self._no_store()
        silent, waits = looked
        return silent or waits or "all ranks live, and do not meet"

    def _asked(self, question: Callable[[], Found]) -> Found | None:
        """Return the store's answer; None where it has gone, or does not answer."""
        found: list[Found] = []

        def ask() -> None:
            with suppress(RuntimeError):  # DistNetworkError is one
                found.append(question())

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(ANSWERS_S)
        return found[0] if found else None

    def _no_store(self) -> str:
        keeper = (
            f"torchrun on {self.hosts[0]}" if _torchrun_has_store() else self._named(0)
        )
        return f"{keeper} does not answer"

    def _look(self) -> tuple[str, str]:
        """Return which ranks do not answer, and what the others wait for."""
        keys = [f"beat/{rank}" for rank in range(self.size)]
        store = self.store.clone()
        before = store.multi_get(keys)
        time.sleep(3 * BEAT_S)
        after = store.multi_get(keys)
        others = [rank for rank in range(self.size) if rank != self.rank]
        silent = [self._named(rank) for rank in others if before[rank] == after[rank]]
        does = "does" if len(silent) == 1 else "do"
        silence = f"{', '.join(silent)} {does} not answer" if silent else ""
        waits = {rank: after[rank].decode().partition(" ")[2] for rank in others}
        waiting = [
            f"{self._named(r)} waits for {what}" for r, what in waits.items() if what
        ]
        return silence, "; ".join(waiting)

    def _named(self, rank: int) -> str:
        return f"rank {rank} on {self.hosts[rank]}"

    def _store(self) -> Any:
        address = os.environ.get("MASTER_ADDR", "localhost")
        port = int(os.environ.get("MASTER_PORT", "29500"))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        has_it = self.rank == 0 and not _torchrun_has_store()
        if not has_it and not self._is_there(address, port):
            raise self._alone([0], f"at {address}:{port}")
        try:
            store = dist.TCPStore(
                address,
                port,
                self.size,
                has_it,
                timedelta(seconds=self.timeout_s),
                wait_for_workers=False,
            )
        except RuntimeError as error:
            if has_it and "EADDRINUSE" in str(error):
                raise UserError(
                    f"MASTER_PORT {port} is taken on {self.host}; set another"
                ) from None
            raise self._alone([0], f"at {address}:{port}") from None
        # an earlier attempt's keys may lie in a store of torchrun's
        return dist.PrefixStore(f"saturate/{attempt}", store)

    def _is_there(self, address: str, port: int) -> bool:
        """Wait for who has the store; torch itself would say pages of each attempt."""
        until = time.monotonic() + self.timeout_s
        while time.monotonic() < until:
            with (
                suppress(OSError),
                socket.create_connection((address, port), timeout=2.0),
            ):
                return True
            time.sleep(LOOK_S)
        return False

    def meet(self, name: str, value: bytes = b"") -> list[bytes]:
        """Wait until every rank has called this with `name`, and return their values in rank order.

        Raises UserError after the time-out, or where the store has gone.
        """
        until = time.monotonic() + self.timeout_s
        keys = [f"{name}/{rank}" for rank in range(self.size)]
        try:
            self.store.set(keys[self.rank], value)
            while not self.store.check(keys):
                if self.store.check([MISTAKE]):
                    raise UserError(self.store.get(MISTAKE).decode())
                if time.monotonic() > until:
                    ranks = range(self.size)
                    missing = [r for r in ranks if not self.store.check([keys[r]])]
                    raise self._alone(missing, f"and {LOG}")
                time.sleep(LOOK_S)
            found: list[bytes] = self.store.multi_get(keys)
        except RuntimeError:  # DistNetworkError is one
            raise UserError(f"{self._no_store()}; {LOG}") from None
        return found

    def gather(self, value: object) -> list[Any]:
        """Return every rank's picklable value, as ProcessWorld.gather does; some MiB at most.

        Needs no process group. Raises UserError as `meet` does.
        """
        self._gathered += 1
        values = self.meet(f"value/{self._gathered}", pickle.dumps(value))
        read = f"read/{self._gathered}"
        if self.rank == 0:
            # after a mistake it leaves at once, and may take the store with it
            self.meet(read)
        else:
            self.store.set(f"{read}/{self.rank}", b"")
        return [pickle.loads(each) for each in values]

    def _alone(self, missing: list[int], where: str) -> UserError:
        named = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        waited = f"rank {self.rank} on {self.host} has waited {self.timeout_s / 60:.3g} minutes"
        return UserError(
            f"{waited} (--timeout-minutes) for rank {named} of {self.size}, which has not come, {where}"
        )
