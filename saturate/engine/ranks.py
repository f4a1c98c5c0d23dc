"""The other ranks of a run: how they meet, which of them is lost, and what a rank waits for.

Each rank beats once a second through a store, in a thread of its own, and watches the beats of the next rank;
whoever misses them tells all. So a lost host is found while the main thread computes or hangs, and a rank that
is merely busy for minutes is not taken for lost.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import torch.distributed as dist

from saturate.contracts import PeerLost, UserError

Answer = TypeVar("Answer")

BEAT_S = 1.0
"""How often a rank says that it lives."""
SILENT_S = 30.0
"""Seconds without a beat, or without an answer of the store, after which a rank or the store is lost. A library
may keep the interpreter's lock from the beating thread for seconds."""
ANSWERS_S = 8.0
"""Seconds in which the store must answer a rank that asks who has gone."""
CLOSED_S = 5.0
"""Seconds that a rank waits for its own `end` once the store has gone. Rank 0 or torchrun keeps the store and may
end first; after these seconds it is lost."""
LOOK_S = 0.1
"""Seconds between two looks for the store, or at what it holds."""
MISTAKE_KEY = "mistake"
"""Key in the store: the error line of a rank that ended before all had met."""
WHY = "its own line or its host's log says why"
GONE = (
    "Connection reset by peer",
    "Connection closed by peer",
    "Broken pipe",
    "Timed out waiting",
    "NCCL communicator was aborted",
)
"""Words of errors of gloo or NCCL when a rank does not answer. Ranks vote by gloo in every step."""


def is_lost_peer(error: BaseException) -> bool:
    """Whether an error says that another rank's process is no more, or does not answer."""
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in GONE)


def store_listens(address: str, port: int, until: float) -> bool:
    """Whether the store takes connections before `until`, in seconds of time.monotonic.

    torch itself would say pages of each attempt.
    """
    while time.monotonic() < until:
        with (
            suppress(OSError),
            socket.create_connection((address, port), timeout=2.0),
        ):
            return True
        time.sleep(LOOK_S)
    return False


def _torchrun_has_store() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


class Peers:
    """All ranks of an attempt to run, which have met, each with its host."""

    def __init__(self, *, rank: int, size: int, timeout_s: float) -> None:
        """Meet the others by the variables that torchrun sets. Raises UserError after `timeout_s`."""
        self.rank = rank
        self.size = size
        self.timeout_s = timeout_s
        self.host = socket.gethostname()
        self.waits = ""  # what the main thread waits for; "" for nothing of its own
        self._gathered = 0
        self._ended = threading.Event()
        store = self._connect()
        attempt, self.hosts = self._attempt(store)
        # torchrun's store may hold keys of earlier attempts
        self.store: Any = dist.PrefixStore(attempt, store)

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """Beat from now until `end`, and call `on_lost` once, from a thread, with a text that says who is lost."""
        thread = threading.Thread(target=self._beat, args=[on_lost], daemon=True)
        thread.name = "saturate-beat"
        thread.start()

    def end(self, line: str = "") -> None:
        """Beat no more, and call nobody. With a `line` end the others too, where they wait to `meet` this rank."""
        self._ended.set()
        if line:
            self._asked(lambda: self.store.clone().set(MISTAKE_KEY, line), ANSWERS_S)

    def blame(self) -> str:
        """Return which ranks have gone or are stopped, else what the others say that they wait for.

        Where ranks have gone, the caller leaves after it: this rank beats no more.
        """
        blamed = self._asked(self._blamed, ANSWERS_S)
        return self._no_store() if blamed is None else blamed

    def _beat(self, on_lost: Callable[[str], None]) -> None:
        store = self.store.clone()
        following = (self.rank + 1) % self.size
        beats = missed = 0
        last = ""

        def exchange() -> str:
            """Beat, and return who is lost, or "". The answer shows that the beat has arrived."""
            nonlocal missed, last
            store.set(f"beat/{self.rank}", f"{beats} {self.waits}")
            values: list[bytes] = store.multi_get([f"beat/{following}", "lost"])
            beat, lost = (value.decode() for value in values)
            # beats are counted, not seconds: this process itself may have been stopped for a while
            missed = missed + 1 if beat == last else 0
            last = beat
            if not lost and missed * BEAT_S >= SILENT_S:
                lost = self._tell(store, f"{self._named(following)} does not answer")
            return lost

        while not self._ended.wait(BEAT_S):
            beats += 1
            lost = self._asked(exchange, SILENT_S)
            if lost is None:
                self._ended.wait(CLOSED_S)
                lost = self._no_store()
            if lost and not self._ended.is_set():
                self._let_others_read()
                on_lost(lost)
                return

    def _tell(self, store: dist.Store, lost: str) -> str:
        """Tell all ranks who is lost. The first text stays and is returned: ranks that leave because of it are not
        lost.
        """
        told: str = store.compare_set("lost", "", lost).decode()
        return told

    def _let_others_read(self) -> None:
        """Give the others the time to read who is lost, where the store ends with this process."""
        if self.rank == 0 and not _torchrun_has_store():
            time.sleep(2 * BEAT_S)

    def _asked(self, question: Callable[[], Answer], seconds: float) -> Answer | None:
        """Return the store's answer; None where it has gone, or does not answer in so many seconds."""
        answers: list[Answer] = []

        def ask() -> None:
            with suppress(RuntimeError):  # DistNetworkError is one
                answers.append(question())

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(seconds)
        return answers[0] if answers else None

    def _no_store(self) -> str:
        """Return that the process which has the store does not answer."""
        if _torchrun_has_store():
            return f"torchrun on {self.hosts[0]} does not answer"
        return f"{self._named(0)} does not answer"

    def _blamed(self) -> str:
        """Return which ranks do not answer, which all are told; else what the others wait for."""
        keys = [f"beat/{rank}" for rank in range(self.size)]
        store = self.store.clone()
        before = store.multi_get(keys)
        time.sleep(3 * BEAT_S)
        after = store.multi_get(keys)
        others = [rank for rank in range(self.size) if rank != self.rank]
        silent = [self._named(rank) for rank in others if before[rank] == after[rank]]
        if silent:
            does = "does" if len(silent) == 1 else "do"
            self._ended.set()  # the main thread says it, and leaves
            lost = self._tell(store, f"{', '.join(silent)} {does} not answer")
            self._let_others_read()
            return lost
        waits = {rank: after[rank].decode().partition(" ")[2] for rank in others}
        waiting = [
            f"{self._named(r)} waits for {what}" for r, what in waits.items() if what
        ]
        return "; ".join(waiting) or "all ranks live, and do not meet"

    def _named(self, rank: int) -> str:
        return f"rank {rank} on {self.hosts[rank]}"

    def _connect(self) -> dist.Store:
        """Return the store by which the ranks meet."""
        address = os.environ.get("MASTER_ADDR", "localhost")
        port = int(os.environ.get("MASTER_PORT", "29500"))
        has_it = self.rank == 0 and not _torchrun_has_store()
        until = time.monotonic() + self.timeout_s
        if not has_it and not store_listens(address, port, until):
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
        return dist.PrefixStore("saturate", store)

    def meet(self, name: str, value: bytes = b"") -> list[bytes]:
        """Wait until every rank has called this with `name`, and return their values in rank order.

        Raises UserError after the time-out, and PeerLost where the store has gone.
        """
        until = time.monotonic() + self.timeout_s
        keys = [f"{name}/{rank}" for rank in range(self.size)]
        try:
            self.store.set(keys[self.rank], value)
            while not self.store.check(keys):
                if self.store.check([MISTAKE_KEY]):
                    raise UserError(self.store.get(MISTAKE_KEY).decode())
                if time.monotonic() > until:
                    ranks = range(self.size)
                    missing = [r for r in ranks if not self.store.check([keys[r]])]
                    raise self._alone(missing, f"and {WHY}")
                time.sleep(LOOK_S)
            found: list[bytes] = self.store.multi_get(keys)
        except RuntimeError:  # DistNetworkError is one
            raise PeerLost(f"{self._no_store()}; {WHY}") from None
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

    def _attempt(self, store: dist.Store) -> tuple[str, list[str]]:
        """Wait for every rank of this attempt; return the attempt's name, and each rank's host.

        torchrun's store may hold keys of earlier attempts, and its agents count restarts each for itself. So
        rank 0 names the attempt by its uuid, and lists the uuids of the processes that have come. Another rank
        reads the newest attempt's list; it has met them once its own uuid is there.
        """
        process = uuid4().hex
        attempt = ""

        def everyone() -> list[str]:
            """Return every rank's host; [] while this process is not in the list."""
            nonlocal attempt
            if self.rank == 0 and not attempt:
                store.set(f"{process}/lost", "")
                store.set("attempt", process)
            if not store.check(["attempt"]):
                return []
            named = store.get("attempt").decode()
            if named != attempt:
                attempt = named
                store.set(f"{attempt}/beat/{self.rank}", "0 ")
                came = json.dumps([process, self.host])
                store.set(f"{attempt}/came/{self.rank}", came)
            if self.rank == 0 and store.check(keys()):
                all_came = [json.loads(came) for came in store.multi_get(keys())]
                store.set(f"{attempt}/everyone", json.dumps(all_came))
            if not store.check([f"{attempt}/everyone"]):
                return []
            listed = json.loads(store.get(f"{attempt}/everyone"))
            is_listed = process in (name for name, _ in listed)
            return [host for _, host in listed] if is_listed else []

        def keys() -> list[str]:
            return [f"{attempt}/came/{rank}" for rank in range(self.size)]

        def missing() -> list[int]:
            """Return which ranks have not come."""
            return [rank for rank, key in enumerate(keys()) if not store.check([key])]

        until = time.monotonic() + self.timeout_s
        while time.monotonic() < until:
            hosts = self._asked(everyone, SILENT_S)
            if hosts is None:
                raise PeerLost(
                    "rank 0 or its torchrun has ended before all ranks had come"
                )
            if hosts:
                return attempt, hosts
            time.sleep(LOOK_S)
        who = self._asked(missing, ANSWERS_S) if attempt else None
        raise self._alone(who or [0], f"and {WHY}")

    def _alone(self, missing: list[int], behind: str) -> UserError:
        named = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        waited = f"rank {self.rank} on {self.host} has waited {self.timeout_s / 60:.3g} minutes"
        return UserError(
            f"{waited} (--timeout-minutes) for rank {named} of {self.size}, which has not come, {behind}"
        )
