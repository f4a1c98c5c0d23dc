"""The other ranks of a run: how they meet, which of them is lost, and what a rank waits for.

Each rank beats once a second through a store, in a thread of its own, and watches the beats of the next rank;
whoever misses them tells all. So a lost host is found while the main thread computes or hangs, and a rank that
is merely busy for minutes is not taken for lost. The same thread hears of a mistake that ends another rank, and
ends this one with its exit code.

What all ranks wait for is one key, which rank 0 sets: the store is one thread of one process, so nothing here
may cost it more than a few requests a rank (docs/scale.md).
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import torch.distributed as dist

from saturate.contracts import PeerLost, UserError
from saturate.system import exit_codes

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
RANKS_A_LOOK = 512
"""Ranks that look every LOOK_S; where there are more, each looks less often, since the store has time for some ten
thousand looks a second.
"""
ALONE_AFTER_S = 5.0
"""Seconds that a rank which has met a mistake has for saying it and closing, before others that wait for it leave."""
MISTAKE_KEY = "mistake"
"""Key in the store: rank, host, exit code and line of the first mistake that ends a rank; "" before."""
RESUME = "go on with --resume auto"
WHY = "its own line or its host's log says why"
GONE = (
    "Connection reset by peer",
    "Connection closed by peer",
    "Connection refused",
    "remote process exited",
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


def _missing(store: dist.Store, keys: list[str]) -> list[int]:
    """Return which ranks' keys the store has not."""
    return [rank for rank, key in enumerate(keys) if not store.check([key])]


def _agent_has_store() -> bool:
    """Whether torchrun, or the agents of --unkillable, have the store."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


class Peers:
    """All ranks of an attempt to run, which have met."""

    def __init__(self, *, rank: int, size: int, timeout_s: float) -> None:
        """Meet the others by the variables that torchrun sets. Raises UserError after `timeout_s`."""
        self.rank = rank
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))
        self.size = size
        self.timeout_s = timeout_s
        self.host = socket.gethostname()
        self.waits = ""  # what the main thread waits for; "" for nothing of its own
        self._look_s = LOOK_S * max(1.0, size / RANKS_A_LOOK)
        self._gathered = 0
        self._ended = threading.Event()
        self._address = os.environ.get("MASTER_ADDR", "localhost")
        self.first_host = self._address  # until it has said its name
        store = self._connect()
        # torchrun's store may hold keys of earlier attempts
        self.store: Any = dist.PrefixStore(self._attempt(store), store)
        # of its own socket: the main thread, or a library, may wait by the other one
        self._aside = self.store.clone()
        self.first_host = self._host_of(0)

    def watch(self, on_end: Callable[[int, str], None]) -> None:
        """Beat from now until `end`. Call `on_end` once, from a thread, where another rank is lost or has met a
        mistake: with the exit code, and a line that says it, "" where the first rank of this host does.
        """
        thread = threading.Thread(target=self._beat, args=[on_end], daemon=True)
        thread.name = "saturate-beat"
        thread.start()

    def end(self) -> None:
        """Beat no more, and call nobody."""
        self._ended.set()

    def fail(self, code: int, line: str) -> tuple[int, str]:
        """Tell all ranks of a mistake that ends this one, unless another one was told before.

        Returns the exit code and the line of the first mistake; "" for a line that the first rank of this host says.
        """
        self.end()
        own = json.dumps([self.rank, self.host, code, line])
        first = self._asked(
            lambda: self._aside.compare_set(MISTAKE_KEY, "", own), ANSWERS_S
        )
        return self._of_mistake((first or own.encode()).decode(), line)

    def all_end(self) -> bool:
        """Wait for seconds until every rank is about to leave; return whether all are.

        Who leaves first may take the store along, or others: torchrun ends them.
        """

        def wait() -> bool:
            self._tell_end()
            self._aside.wait(["all end"])
            return True

        ended = self._asked(wait, ALONE_AFTER_S + 3 * BEAT_S) is True
        self._let_others_read()
        return ended

    def _tell_end(self) -> None:
        """Say that this rank is about to leave."""
        if self._aside.add("ends", 1) == self.size:
            self._aside.set("all end", "")

    def blame(self) -> str:
        """Return which ranks have gone or are stopped, else what the others say that they wait for.

        Where ranks have gone, the caller leaves after it: this rank beats no more.
        """
        blamed = self._asked(self._blamed, ANSWERS_S)
        return self._no_store() if blamed is None else blamed

    def _of_mistake(self, mistake: str, own: str = "") -> tuple[int, str]:
        """Return the exit code of a mistake, and its line on the first rank of each host; `own`: this rank's line."""
        rank, host, code, line = json.loads(mistake)
        if self.local_rank > 0:
            return code, ""
        named = f"rank {rank} on {host}"
        return code, line if line == own or named in line else f"{named}: {line}"

    def _beat(self, on_end: Callable[[int, str], None]) -> None:
        following = (self.rank + 1) % self.size
        beats = missed = 0
        last = ""

        def exchange() -> tuple[str, str]:
            """Beat; return who is lost and the first mistake, or "". The answer shows that the beat has arrived."""
            nonlocal missed, last
            self._aside.set(f"beat/{self.rank}", f"{beats} {self.waits}")
            keys = [f"beat/{following}", "lost", MISTAKE_KEY]
            values = self._aside.multi_get(keys)
            beat, lost, mistake = (value.decode() for value in values)
            # beats are counted, not seconds: this process itself may have been stopped for a while
            missed = missed + 1 if beat == last else 0
            last = beat
            if not lost and missed * BEAT_S >= SILENT_S:
                lost = self._tell(f"{self._named(following)} does not answer")
            return lost, mistake

        while not self._ended.wait(BEAT_S):
            beats += 1
            reply = self._asked(exchange, SILENT_S)
            if reply is None:
                self._ended.wait(CLOSED_S)
            lost, mistake = reply or (self._no_store(), "")
            if mistake:
                # the main thread may have met it too, and closes what it has open
                if not self._ended.wait(ALONE_AFTER_S):
                    self._asked(self._tell_end, ANSWERS_S)
                    on_end(*self._of_mistake(mistake))
                return
            if lost and not self._ended.is_set():
                self._let_others_read()
                line = f"rank {self.rank} on {self.host} cannot go on: {lost}"
                on_end(exit_codes.FAILED, f"{line}; {RESUME}")
                return

    def _tell(self, lost: str) -> str:
        """Tell all ranks who is lost. The first text stays and is returned: ranks that leave because of it are not
        lost.
        """
        stored: str = self._aside.compare_set("lost", "", lost).decode()
        return stored

    def _let_others_read(self) -> None:
        """Give the others the time to read who is lost, or that all end, where the store ends with this process."""
        if self.rank == 0 and not _agent_has_store():
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
        if not _agent_has_store():
            return f"rank 0 on {self.first_host} does not answer"
        if "TORCHELASTIC_RUN_ID" in os.environ:
            return f"torchrun on {self.first_host} does not answer"
        return f"the store of --unkillable at {self._address} does not answer"

    def _blamed(self) -> str:
        """Return which ranks do not answer, which all are told; else what the others wait for."""
        keys = [f"beat/{rank}" for rank in range(self.size)]
        before = self._aside.multi_get(keys)
        time.sleep(3 * BEAT_S)
        after = self._aside.multi_get(keys)
        others = [rank for rank in range(self.size) if rank != self.rank]
        silent = [self._named(rank) for rank in others if before[rank] == after[rank]]
        if silent:
            does = "does" if len(silent) == 1 else "do"
            self._ended.set()  # the main thread says it, and leaves
            lost = self._tell(f"{', '.join(silent)} {does} not answer")
            self._let_others_read()
            return lost
        waits = {rank: after[rank].decode().partition(" ")[2] for rank in others}
        waiting = [
            f"{self._named(r)} waits for {what}" for r, what in waits.items() if what
        ]
        return "; ".join(waiting) or "all ranks live, and do not meet"

    def _host_of(self, rank: int) -> str:
        return str(json.loads(self._aside.get(f"came/{rank}"))[1])

    def _named(self, rank: int) -> str:
        return f"rank {rank} on {self._host_of(rank)}"

    def _connect(self) -> dist.Store:
        """Return the store by which the ranks meet."""
        address = self._address
        port = int(os.environ.get("MASTER_PORT", "29500"))
        has_it = self.rank == 0 and not _agent_has_store()
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

    def gather(self, value: object = None) -> list[Any]:
        """Wait until every rank has called this; return their picklable values in rank order, some MiB at most.

        Needs no process group. Raises UserError after the time-out or for another rank's mistake, and PeerLost where
        the store has gone.
        """
        self._gathered += 1
        name = f"value/{self._gathered}"
        keys = [f"{name}/{rank}" for rank in range(self.size)]
        with self._reaching():
            self.store.set(keys[self.rank], pickle.dumps(value))
            if self.rank == 0:
                self._await(keys)
                self.store.set(name, pickle.dumps(self.store.multi_get(keys)))
            self._await([name])
            return [pickle.loads(each) for each in pickle.loads(self.store.get(name))]

    def first(self, value: object) -> Any:
        """Return rank 0's value on every rank, a copy on the others. Raises as `gather` does."""
        self._gathered += 1
        name = f"value/{self._gathered}"
        with self._reaching():
            if self.rank == 0:
                self.store.set(name, pickle.dumps(value))
                return value
            self._await([name])
            return pickle.loads(self.store.get(name))

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Turn errors of the store inside into PeerLost."""
        try:
            yield
        except RuntimeError:  # DistNetworkError is one
            raise PeerLost(f"{self._no_store()}; {WHY}") from None

    def _await(self, keys: list[str]) -> None:
        """Wait until the store has `keys`: one of rank 0's, or rank 0 for one of each rank."""
        until = time.monotonic() + self.timeout_s
        if self.rank > 0:
            until += ALONE_AFTER_S  # rank 0 says which rank it waits for
        while not self.store.check(keys):
            if mistake := self.store.get(MISTAKE_KEY):
                raise UserError(self._of_mistake(mistake.decode())[1])
            if time.monotonic() > until:
                raise self._alone(_missing(self.store, keys), f"and {WHY}")
            time.sleep(self._look_s)

    def _attempt(self, store: Any) -> str:
        """Wait for every rank of this attempt; return the attempt's name.

        torchrun's store may hold keys of earlier attempts, and its agents count restarts each for itself. So
        rank 0 names the attempt by its uuid, and makes a key of the uuid of each process that has come. Another rank
        comes to the newest attempt; it has met them once the key of its own uuid is there.
        """
        process = uuid4().hex
        attempt = ""
        keys: list[str] = []
        if self.rank == 0:
            store.multi_set([f"{process}/lost", f"{process}/{MISTAKE_KEY}"], ["", ""])
            store.set("attempt", process)

        def all_have_come() -> bool:
            nonlocal attempt, keys
            if not store.check(["attempt"]):
                return False
            named = store.get("attempt").decode()
            if named != attempt:
                attempt = named
                keys = [f"{attempt}/came/{rank}" for rank in range(self.size)]
                store.set(f"{attempt}/beat/{self.rank}", "0 ")
                store.set(keys[self.rank], json.dumps([process, self.host]))
            if self.rank == 0 and store.check(keys):
                came = map(json.loads, store.multi_get(keys))
                listed = [f"{attempt}/met/{name}" for name, _ in came]
                store.multi_set(listed, [""] * self.size)
            return bool(store.check([f"{attempt}/met/{process}"]))

        until = time.monotonic() + self.timeout_s
        while time.monotonic() < until:
            have_come = self._asked(all_have_come, SILENT_S)
            if have_come is None:
                raise PeerLost(f"{self._no_store()}; {WHY}")
            if have_come:
                return attempt
            time.sleep(self._look_s)
        missing = self._asked(lambda: _missing(store, keys), ANSWERS_S)
        raise self._alone(missing or [0], f"and {WHY}")

    def _alone(self, missing: list[int], behind: str) -> UserError:
        named = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        waited = f"rank {self.rank} on {self.host} has waited {self.timeout_s / 60:.3g} minutes"
        return UserError(
            f"{waited} (--timeout-minutes) for rank {named} of {self.size}, which has not come, {behind}"
        )
