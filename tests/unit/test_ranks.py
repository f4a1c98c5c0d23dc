"""Ranks as threads that meet by a store which counts what it is asked."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.simulate import COME_REQUESTS, GATHER_REQUESTS
from saturate.contracts import UserError
from saturate.engine import ranks
from saturate.engine.ranks import Peers


class Counting:
    """A store in this process. `keys` counts by request the keys that reached it, `looks` has those of each check."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.changed = threading.Condition()
        self.keys: Counter[str] = Counter()
        self.looks: list[int] = []

    def clone(self) -> Counting:
        return self

    def multi_set(self, keys: list[str], values: list[str]) -> None:
        with self.changed:
            self.keys["multi_set"] += len(keys)
            for key, value in zip(keys, values, strict=True):
                self.content[key] = value.encode()
            self.changed.notify_all()

    def set(self, key: str, value: str | bytes) -> None:
        with self.changed:
            self.keys["set"] += 1
            self.content[key] = value if isinstance(value, bytes) else value.encode()
            self.changed.notify_all()

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        with self.changed:
            self.keys["compare_set"] += 1
            if self.content[key].decode() == expected:
                self.content[key] = desired.encode()
            return self.content[key]

    def add(self, key: str, number: int) -> int:
        with self.changed:
            self.keys["add"] += 1
            total = int(self.content.get(key, b"0")) + number
            self.content[key] = str(total).encode()
            return total

    def check(self, keys: list[str]) -> bool:
        with self.changed:
            self.looks.append(len(keys))
            return self.content.keys() >= {*keys}

    def wait(self, keys: list[str]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.content.keys() >= {*keys}, 60)

    def get(self, key: str) -> bytes:
        self.wait([key])
        # those are asked for with each look
        self.keys["get"] += not key.endswith((ranks.MISTAKE_KEY, "attempt"))
        return self.content[key]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.wait(keys)
        self.keys["multi_get"] += len(keys)
        return [self.content[key] for key in keys]


class Prefixed:
    """dist.PrefixStore takes none but torch's."""

    def __init__(self, prefix: str, store: Counting) -> None:
        self._prefix = prefix
        self._store = store

    def clone(self) -> Prefixed:
        return self

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)

        def call(keys: str | list[str], *more: Any) -> Any:
            if isinstance(keys, str):
                return method(f"{self._prefix}/{keys}", *more)
            return method([f"{self._prefix}/{key}" for key in keys], *more)

        return call


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Counting:
    counting = Counting()
    monkeypatch.setattr(Peers, "_connect", lambda _: counting)
    monkeypatch.setattr(ranks.dist, "PrefixStore", Prefixed)
    return counting


def at_once(size: int, work: Callable[[int], Any]) -> list[Any]:
    """Return what `work` returns for each rank, each in a thread of its own."""
    found: dict[int, Any] = {}
    threads = [
        threading.Thread(
            target=lambda rank=rank: found.setdefault(rank, work(rank)), daemon=True
        )
        for rank in range(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [found[rank] for rank in range(size)]


def meeting(rank: int, size: int, timeout_s: float = 60.0) -> Peers:
    return Peers(rank=rank, size=size, timeout_s=timeout_s)


def asked_by(size: int, store: Counting) -> dict[str, int]:
    """Return keys that reached the store in requests of coming, a gather, a value of rank 0's, but for looks."""
    found = {}

    def noted(name: str, work: Callable[[int], Any]) -> list[Any]:
        before = store.keys.copy()
        values = at_once(size, work)
        found[name] = (store.keys - before).total()
        return values

    peers: list[Peers] = noted("come", lambda rank: meeting(rank, size))
    values = noted("gather", lambda rank: peers[rank].gather(rank**2))
    assert values == [[rank**2 for rank in range(size)]] * size
    assert noted("first", lambda rank: peers[rank].first(rank + 7)) == [7] * size
    return found


def test_each_rank_costs_the_store_as_much_however_many_there_are(
    store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once looked for the keys of all, every 0.1 s: 16 s of the store's thread with 1,024 ranks."""
    monkeypatch.setattr(ranks, "LOOK_S", 0.001)
    for size in (8, 64):
        store.content.clear()
        found = asked_by(size, store)
        # of each rank: two keys are set, rank 0 reads one and answers by one, and the host of rank 0 is read
        assert found["come"] == 5 * size + 3
        # one is set, rank 0 reads it, and the value of all is read
        assert found["gather"] == 3 * size + 1
        assert found["first"] == size
        # with the looks of who finds at once what it looks for: that for the attempt, its name, and that for all; or
        # that for the value, and that for a mistake
        assert COME_REQUESTS == 5 + 3 and GATHER_REQUESTS == 3 + 2
    # rank 0 alone looks for a key of each rank
    assert {*store.looks} == {1, 8, 64}


class Looked(Exception):
    """A rank has looked once, and waits."""


@pytest.mark.parametrize("size", [8, 512, 1024, 8192])
def test_all_ranks_together_look_ten_thousand_times_a_second_at_most(
    store: Counting, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(Peers, "_attempt", lambda *_: "attempt")
    store.set("attempt/came/0", '["", "a"]')
    store.set(f"attempt/{ranks.MISTAKE_KEY}", "")

    def wait(seconds: float) -> None:
        raise Looked(seconds)

    peers = meeting(1, size)
    monkeypatch.setattr(ranks.time, "sleep", wait)
    before = store.keys.total()
    with pytest.raises(Looked) as looked:
        peers.first(None)
    (seconds,) = looked.value.args
    assert store.keys.total() == before and store.looks == [1]
    # that for a mistake, too
    assert 2 * size / seconds < 11_000


def test_a_rank_that_never_comes_is_named_by_rank_0(
    store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here rank 2 of four has met the others, and has not come to what they all wait for next."""
    monkeypatch.setattr(ranks, "BEAT_S", 0.05)
    peers = at_once(4, lambda rank: meeting(rank, 4, 0.5))
    codes: Counter[int] = Counter()

    def wait(rank: int) -> str:
        if rank == 2:
            return ""
        try:
            peers[rank].gather(rank)
        except UserError as error:
            codes[peers[rank].fail(2, str(error))[0]] += 1
            return str(error)
        raise AssertionError

    first, second, _, fourth = at_once(4, wait)
    assert first.startswith("rank 0 on ") and "for rank 2 of 4, which has not" in first
    assert first == second == fourth
    assert codes == {2: 3}


def test_one_mistake_is_said_once_a_host_with_one_code(
    store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks 0 and 1 are on host a, 2 and 3 on host b. Rank 1 fails with 3; the others hear of it as they beat, or meet
    mistakes of their own behind it.
    """
    monkeypatch.setattr(ranks, "BEAT_S", 0.05)
    monkeypatch.setattr(ranks, "ALONE_AFTER_S", 0.2)
    monkeypatch.setattr(ranks.socket, "gethostname", lambda: "?")
    peers = at_once(4, lambda rank: meeting(rank, 4))
    for rank, each in enumerate(peers):
        each.host = "aabb"[rank]
        each.local_rank = rank % 2
    told: dict[int, tuple[int, str]] = {}

    def end(rank: int) -> bytes:
        """Return how many ranks are about to leave when this one does."""
        each = peers[rank]
        if rank in (0, 2):
            each.watch(lambda code, line: told.setdefault(rank, (code, line)))
            while rank not in told:
                time.sleep(0.01)
        else:
            time.sleep(0.1 * rank)
            told[rank] = each.fail(3 if rank == 1 else 2, f"of rank {rank}")
            assert each.all_end()
        return each.store.get("ends")

    ends = at_once(4, end)
    assert told == {
        0: (3, "rank 1 on a: of rank 1"),
        1: (3, ""),
        2: (3, "rank 1 on a: of rank 1"),
        3: (3, ""),
    }
    # who leaves first may take the store along
    assert ends[1] == ends[3] == b"4"
