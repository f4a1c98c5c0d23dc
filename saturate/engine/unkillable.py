"""Runs that go on without their checkpoint when ranks die (--unkillable).

A rank is two processes. The agent, which the user has started, forks the trainer and lends it memory for two
snapshots of the run's state. To a trainer nothing is new: each generation of trainers is a run of its own, which
resumes from a snapshot as it would from last.pt.

    a trainer dies      its agent ends the generation, and every agent kills its trainer
    an agent dies       its trainer dies with it; the agent that watches it ends the generation
    an agent comes      it ends the generation, unless it is a spare
    a new generation    agents join, and the first to see all names them; each forks a trainer with its rank
                        in the new world. Rank 0 has the newest snapshot, and sends it to the others as it would
                        last.pt.

Agents agree through torch's TCPStore at MASTER_ADDR:MASTER_PORT: torchrun's, or a process that rank 0's agent
has started and that outlives it. Where it does not answer, the agents of the first host that is left start one there.

Of agents that cannot reach each other those go on which have a strict majority of the hosts of the last
generation, or half of them and the lock of a shared --output. The others end.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import json
import mmap
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TextIO
from uuid import uuid4

import psutil

from saturate.engine import slurm
from saturate.engine.ranks import store_listens
from saturate.engine.stop import SIGNALS, notify
from saturate.system import exit_codes, processes

if TYPE_CHECKING:
    from torch.distributed import Store

    from saturate.engine.distributed import ProcessWorld

FLAG = "--unkillable"
SPARE = "--warm-spare true"
PLACE_BYTES = 4096
"""The most that a trainer's place takes: a pipe takes so much at once."""
ANOTHER_ENDED = 75
"""Exit code of a trainer for its agent: another rank has ended, and this one has nothing to say."""
FAULTY = 76
"""Exit code of a trainer for its agent: its device computes wrongly, and the rank does not come back."""
ENDS = (
    exit_codes.DONE,
    exit_codes.MISTAKE,
    exit_codes.NOT_FINITE,
    *(exit_codes.of_signal(number) for number in SIGNALS.values()),
    *(-number for number in SIGNALS),
)
"""Exit codes of a trainer that end the run: finished, which ranks are together, a user's mistake, not finite, asked
to stop.
"""
LOOK_S = 0.1
BEAT_S = 1.0
SILENT_S = 3.0
"""Seconds without a beat after which an agent counts as dead, and without an answer after which the store's host does.
"""
JOIN_S = 3.0
"""Seconds that a generation waits for agents of the one before that are not known to be lost."""
MOVES_S = 10.0
"""Seconds in which the next host starts a store, once that of another one is lost."""
ALONE_S = 30.0
"""Seconds after which agents end that have neither a majority nor the lock."""
CLAIM_S = 120.0
"""Seconds that a trainer waits for the lock of --output, which a host that is cut off holds: NFS takes 90."""
FIRST_S = 600.0
"""Seconds that the first generation waits for them."""
ANSWER_S = 20.0
"""Seconds in which the store must answer."""
GONE_S = 60.0
"""Seconds without a beat of any agent after which the store ends."""
NAMED_AT = 3
"""Deaths of a trainer behind the same step after which its samples are named."""
NAMED = 8
"""Samples that are named at most."""
FRUITLESS = 5
"""Generations in a row without a snapshot after which a trainer's error ends the run."""
LOCK = ".unkillable"
"""File in --output that agents of half of the hosts lock."""
NOT_YET = b"-"
"""In the store in place of the run's exit code."""
PR_SET_PDEATHSIG = 1


class Memory:
    """Two snapshots in memory that an agent shares with its trainers. While one is written the other is whole.

    A snapshot's number is above those of all earlier ones, and the same on each rank: the generation in the
    upper 32 bits, the count within it in the lower.
    """

    def __init__(self) -> None:
        files = [os.memfd_create("snapshot") for _ in range(5)]
        paths = [Path(f"/proc/self/fd/{file}") for file in files]
        *self._paths, self._modules, self._lock, self._samples = paths
        shared = memoryview(mmap.mmap(-1, 48)).cast("q")
        # int64 [2], the number of each; 0: there is none, or it is being written
        self._numbers = shared[:2]
        # int64 [1], that of this generation's first, also for a trainer which was forked before it
        self._least = shared[2:3]
        # int64 [3]: the step that the trainer is in, 0 before the first; that of its last death, and how often in a row
        self._deaths = shared[3:]
        self.is_warm = False  # --warm-spare

    @property
    def newest(self) -> int:
        """Return the number of the newest snapshot, 0 where there is none."""
        return max(self._numbers)

    @property
    def path(self) -> Path | None:
        """Return the newest snapshot as a file, None where there is none."""
        place = list(self._numbers).index(self.newest)
        return self._paths[place] if self.newest else None

    def begin(self, generation: int, newest: int) -> None:
        """Make the snapshot with the number `newest`, where it is here, the first one of a generation; forget
        others.
        """
        self._lock.write_text("")
        self._deaths[0] = 0
        self._least[0] = generation << 32
        for slot, number in enumerate(self._numbers):
            self._numbers[slot] = self._least[0] if number == newest > 0 else 0

    def write(self, save: Callable[[BinaryIO], object]) -> None:
        """Replace the older snapshot by what `save` writes into a file."""
        if not self.has_grown:
            self._modules.write_text("\n".join(sys.modules))
        slot = list(self._numbers).index(min(self._numbers))
        self._numbers[slot] = 0
        with self._paths[slot].open("wb") as file:
            save(file)
        self._numbers[slot] = max(self.newest, self._least[0]) + 1

    def enter(
        self, step: int, ids: Iterable[int], name_of: Callable[[int], str]
    ) -> None:
        """Say that the trainer takes this step, with these samples among others. Those of a step behind which it has
        died before are kept by their names.
        """
        is_new = step != self._deaths[0]
        self._deaths[0] = step
        if step == self._deaths[1] and self._deaths[2] >= NAMED_AT - 1:
            names = [] if is_new else self._samples.read_text().splitlines()
            names += [name_of(sample) for sample in ids if sample >= 0]
            self._samples.write_text("\n".join(names))

    def count_death(self) -> str:
        """Count a death of the trainer; return what to say of the third one behind the same step, else ""."""
        step, before, count = self._deaths
        if not step:
            return ""
        self._deaths[1] = step
        self._deaths[2] = count = count + 1 if step == before else 1
        if count < NAMED_AT:
            return ""
        names = self._samples.read_text().splitlines()
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        named = ", ".join(names[:NAMED])
        return f"; {count} deaths behind step {step}, with {named}{more}"

    @property
    def has_grown(self) -> bool:
        """Whether this generation has left a snapshot."""
        return self.newest > self._least[0]

    @property
    def lock(self) -> Path | None:
        """Return the file that agents may lock, None where this generation has none."""
        name = self._lock.read_text()
        return Path(name) if name else None

    def share(self, folder: Path, world: ProcessWorld) -> None:
        """Let the agents lock a file in rank 0's `folder`, where all ranks see it. All call it together."""
        path = folder.resolve() / LOCK
        # a mark that is new: a folder of another host may have the file of an earlier run
        mark = world.first(lambda: uuid4().hex)
        if world.rank == 0:
            with suppress(OSError):
                path.write_text(mark)
        world.gather(None)
        sees = False
        with suppress(OSError):
            sees = path.read_text() == mark
        if all(world.gather(sees)):
            self._lock.write_text(str(path))

    def import_modules(self) -> None:
        """Import what a trainer had imported at the first snapshot of a generation."""
        for name in self._modules.read_text().splitlines():
            # one that a library has made by itself; a trainer says what it lacks
            with suppress(Exception):
                importlib.import_module(name)


memory: Memory | None = None
"""That of this trainer's agent; None in a run without --unkillable."""
began_s: float | None = None
"""When this process was told to be a trainer, in seconds of time.time; None in a run without --unkillable."""


def begin(words: Sequence[str], rehearse: Callable[[Any], object]) -> None:
    """Become an agent where `words`, a command line, have --unkillable; this returns in its trainers alone.

    A warm spare calls `rehearse` with its torch.device, where that is a GPU, before it waits.
    """
    if any(word.startswith(FLAG) for word in words):
        Agent(words, rehearse).run()


def another_has_ended() -> None:
    """End this trainer, since another rank has ended: its agent starts it anew. Returns without an agent."""
    if memory is not None:
        os._exit(ANOTHER_ENDED)


def patience_s() -> float:
    """Return the seconds that a trainer waits for --output: none in the first generation, or without an agent."""
    return CLAIM_S if memory is not None and memory.newest else 0.0


class Agent:
    """The process that outlives a rank's trainers. It has one thread and has not started CUDA, since it forks."""

    def __init__(self, words: Sequence[str], rehearse: Callable[[Any], object]) -> None:
        slurm.set_variables()
        self.size = int(os.environ.get("WORLD_SIZE", 1))
        rank = os.environ.get("RANK", "0")
        # in the order of the ranks that they were started with; a container may have one's name and number again
        self.name = f"rank {rank:>4} on {socket.gethostname()}, {time.time_ns()}"
        # this host's as the store sees it, and that of the store
        self._address = "", ""
        self.store = self._meet(" ".join(words) if rank == "0" else None)
        self.memory = Memory()
        self.generation = 0
        self._members: list[str] = []  # of this generation
        self._addresses: dict[str, str] = {}  # of their hosts
        self._lock: TextIO | None = None
        self._trainer = 0
        # a process that waits to become the next trainer, and the pipe by which it is told its place; 0: there is none
        self._spare = self._tells = 0
        self._rehearse = rehearse
        self.memory.is_warm = SPARE in " ".join(words).replace("=", " ").lower()
        self._says_memory = True
        self._asked = 0  # the signal that has come
        self._fruitless = 0  # generations
        self._beaten_s = 0.0
        # whose last beat that was, and when it was new
        self._heard: tuple[str, bytes] = "", b""
        self._heard_s = 0.0

    def run(self) -> None:
        """Return in each trainer. The agent itself leaves with the exit code of the run."""
        for number in SIGNALS:
            signal.signal(number, self._pass_on)
        while True:
            try:
                while not self._trains(self._join()):
                    self._end_generation()
                return
            except RuntimeError:
                self._kill()
                self._move()

    # -- a generation ----------------------------------------------------------------------------------------

    def _join(self) -> list[str]:
        """Return the members of a generation that this agent is one of, in the order of their ranks.

        Then the newest snapshot of all, if there is any, is in the memory of rank 0's.
        """
        before = self.generation
        while True:
            self.generation = self.store.add("generation", 0)
            key = f"{self.generation}/world"
            began_s = time.monotonic()
            is_late = self.store.check([key])
            if not is_late:
                self._beat()
                joins = json.dumps([self.name, [self.memory.newest, self._address[0]]])
                self.store.append(f"{self.generation}/joined", f"{joins}\n")
            while not self._has_ended() and not self.store.check([key]):
                if self._asked:
                    self._end_run(-self._asked)
                self._beat()
                self._name_members(time.monotonic() - began_s)
                time.sleep(LOOK_S)
            if self._has_ended():
                continue
            members: list[str]
            members, newest, addresses = json.loads(self.store.get(key))
            if self.name in members and not is_late:
                self.memory.begin(self.generation, newest)
                if before:
                    self._notify_end(before, members)
                self._members, self._addresses = members, addresses
                if len(addresses) > 1 and self._lock is not None:
                    # trainers have the file, too
                    fcntl.flock(self._lock, fcntl.LOCK_UN)
                    self._lock = None
                return members
            # a spare: it follows them to another store; when all have died nobody else is there to see it
            self._members, self._addresses = members, addresses
            if self._beat():
                self._look_at(members[0], members)
            if len(members) < self.size:
                self._end_generation(
                    f"{named(self.name)} has come", [*members, self.name], members
                )
            time.sleep(LOOK_S)

    def _notify_end(self, before: int, members: list[str]) -> None:
        """Say, once a host, why generation `before` has ended, and with whom it goes on."""
        if self._is_first_here(members):
            why = self._ended(before)[0]
            if not why:
                lost = [named(name) for name in self._members if name not in members]
                why = f"{', '.join(lost) or 'a rank'} was killed, or its host is lost or cut off"
            goes_on = f"goes on with {len(members)} of {self.size} ranks"
            notify(f"{FLAG}: {why}; {goes_on}")

    def _is_first_here(self, names: Iterable[str]) -> bool:
        """Whether this is the first of those agents on its host."""
        here = host_of(self.name)
        return self.name == next((n for n in names if host_of(n) == here), "")

    def _name_members(self, waited_s: float) -> None:
        """Name the members of this generation, once all that may come have joined or had the time to; who is first is
        right. End the run here where others may go on with it.
        """
        joined = self.store.get(f"{self.generation}/joined").splitlines()
        joined_members: dict[str, tuple[int, str]] = dict(map(json.loads, joined))
        is_first = str(self.generation).encode() == self.store.get("first")
        most_s = FIRST_S if is_first else JOIN_S
        _, expected, members = self._ended(self.generation - 1)
        waits = not expected or set(expected) - joined_members.keys()
        if len(joined_members) < self.size and waits and waited_s < most_s:
            return
        before = set(map(host_of, members))
        here = before.intersection(map(host_of, joined_members))
        is_half = 2 * len(here) == len(before)
        if 2 * len(here) < len(before) or (before and is_half and not self._locks()):
            if waited_s > ALONE_S:
                self._end_alone(joined_members, f"{len(here)} of {len(before)} hosts")
            return
        # spares stay outside; rank 0 gives the others its snapshot
        members = sorted(
            sorted(joined_members)[: self.size],
            key=lambda name: -joined_members[name][0],
        )
        addresses = {host_of(name): joined_members[name][1] for name in members}
        world = json.dumps([members, joined_members[members[0]][0], addresses])
        key = f"{self.generation}/world"
        self.store.compare_set(key, "", world)

    def _locks(self) -> bool:
        """Whether this agent has the lock of --output, as none of the hosts has that are not here.

        It keeps it until a generation has several hosts. False where --output is not theirs, too.
        """
        path = self.memory.lock
        if self._lock is None and path is not None:
            with suppress(OSError):
                file = path.open()
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._lock = file
        return self._lock is not None

    def _end_alone(self, names: Iterable[str], left: str) -> NoReturn:
        """End the run here: the other hosts may go on."""
        if self._is_first_here(names):
            lacks = "neither a majority nor the lock of a shared --output"
            notify(
                f"{FLAG}: {left} left, {lacks}; others may go on, else --resume auto"
            )
        self._end_run(exit_codes.FAILED)

    def _trains(self, members: list[str]) -> bool:
        """Start the trainer. Returns True in there; False in the agent, once the generation is over for it."""
        rank = members.index(self.name)
        oom_kills_before = oom_kills()
        if self._spare and os.waitpid(self._spare, os.WNOHANG)[0]:  # it has died
            os.close(self._tells)
            self._spare = 0
        if not self._spare and self._fork():
            return True
        # what torchrun's agent sets
        place = {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(members)),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": str(self.generation),
            "MASTER_ADDR": os.environ.get("MASTER_ADDR", "localhost"),
        }
        with suppress(BrokenPipeError):  # it has died since: `_watch` finds that
            os.write(self._tells, json.dumps(place).encode())
        os.close(self._tells)
        self._trainer, self._spare = self._spare, 0
        if self._asked:  # before there was a trainer
            self._pass_on(self._asked, None)
        code = self._watch(members[(rank + 1) % len(members)])
        if code is None:
            return True
        self._fruitless = 0 if self.memory.has_grown else self._fruitless + 1
        fails = code != ANOTHER_ENDED and self._fruitless == FRUITLESS
        if fails or code in ENDS:
            self._end_run(code)
        if code == FAULTY:
            left = [name for name in members if name != self.name]
            why = f"{named(self.name)} has computed wrongly and does not come back"
            self._end_generation(why, left)
            os._exit(exit_codes.FAILED)
        if code != ANOTHER_ENDED:
            how = f"exit code {code}"
            if code < 0:
                how = f"signal {-code} ({signal.strsignal(-code)})"
            if code == -signal.SIGKILL and oom_kills() > oom_kills_before:
                how += ", and the machine was out of memory meanwhile"
            how += self.memory.count_death()
            self._end_generation(f"{named(self.name)} has ended, {how}")
        return False

    def _fork(self, *, is_warm: bool = False) -> bool:
        """Fork the next trainer. Returns True in there, once it was told its place; False in the agent at once.

        One that `is_warm` imports and computes meanwhile what trainers do.
        """
        agent = os.getpid()
        reads, writes = os.pipe()
        # a signal waits until the trainer has its own handlers: this agent's do nothing in there
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        with processes.forking():
            pid = os.fork()
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(reads)
            self._spare, self._tells = pid, writes
            self._says_memory &= not is_warm
            return False
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != agent:  # it has died meanwhile
            os._exit(ANOTHER_ENDED)
        os.close(writes)
        if is_warm:
            try:
                self._warm_up()
            except Exception:
                # the trainer that is forked in its place says it
                os._exit(exit_codes.FAILED)
        message = os.read(reads, PLACE_BYTES)
        os.close(reads)
        if not message:
            # The agent has died: the pipe ends before the signal of PR_SET_PDEATHSIG comes.
            os._exit(ANOTHER_ENDED)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        global memory, began_s
        memory = self.memory
        began_s = time.time()
        os.environ.update(json.loads(message))
        return True

    def _warm_up(self) -> None:
        """Do once what each trainer does before its first step: imports, and where there is a GPU CUDA's start."""
        # they import this module
        import torch

        from saturate.engine.distributed import prepare_process

        self.memory.import_modules()
        device = prepare_process()
        with_cuda = ""
        if device.type == "cuda":
            images = torch.ones(8, 8, 8, 8, device=device)
            features = torch.nn.functional.conv2d(images, images).flatten(1)
            features.mm(features)
            torch.cuda.synchronize()
            with_cuda = " and a CUDA context"
            # what fails here, as where the GPU lacks memory, the trainer will say
            with suppress(Exception):
                self._rehearse(device)
        if self._says_memory and os.environ.get("LOCAL_RANK", "0") == "0":
            own = psutil.Process().memory_full_info().uss >> 20
            notify(
                f"--warm-spare: one a rank waits, with {own} MiB of memory{with_cuda}"
            )

    def _watch(self, neighbour: str) -> int | None:
        """Return the exit code of the trainer, ANOTHER_ENDED once the generation has ended; watch another agent.

        Returns None in a spare that has become a trainer.
        """
        self._heard = "", b""
        while not self._has_ended():
            pid, status = os.waitpid(self._trainer, os.WNOHANG)
            if pid:
                self._trainer = 0
                return os.waitstatus_to_exitcode(status)
            if self._beat():
                self._look_at(neighbour, self._members)
            # not before: it would take cores from the start, and no trainer has said what it imports
            lacks_spare = (
                self.memory.is_warm and not self._spare and self.memory.has_grown
            )
            if lacks_spare and self._fork(is_warm=True):
                return None
            time.sleep(LOOK_S)
        self._kill()
        return ANOTHER_ENDED

    def _has_ended(self) -> bool:
        """Whether the generation has. Leaves where the run has."""
        generation, code = self.store.multi_get(["generation", "end"])
        if code != NOT_YET:
            self._kill()
            os._exit(int(code))
        return int(generation) != self.generation

    def _end_generation(
        self,
        why: str = "",
        expected: Sequence[str] = (),
        members: Sequence[str] = (),
    ) -> None:
        """End this generation of `members`, this agent's by default, unless it has ended. The first who says why is
        right. `expected`: who joins the next one, all of these by default.
        """
        now = self.generation
        members = members or self._members
        ended = json.dumps([why, expected or members, members])
        self.store.compare_set(f"{now}/ended", "", ended)
        self.store.compare_set("generation", str(now), str(now + 1))

    def _ended(self, generation: int) -> tuple[str, list[str], list[str]]:
        """Return what `_end_generation` was given: why, who was expected then, who was in it."""
        none = json.dumps(["", [], []])
        why, expected, members = json.loads(
            self.store.compare_set(f"{generation}/ended", "", none)
        )
        return why, expected, members

    def _end_run(self, code: int) -> NoReturn:
        """End the run with the exit code of a trainer, below 0 that of a signal; who was first is right."""
        if code < 0:
            asked = SIGNALS.get(signal.Signals(-code), -code)
            code = exit_codes.of_signal(asked)
        os._exit(int(self.store.compare_set("end", NOT_YET.decode(), str(code))))

    # -- what it does all the time ---------------------------------------------------------------------------

    def _beat(self) -> bool:
        """Say that this agent lives, once in BEAT_S. Returns whether it was time."""
        if time.monotonic() - self._beaten_s < BEAT_S:
            return False
        self._beaten_s = time.monotonic()
        self.store.add(f"beat/{self.name}", 1)
        self.store.add("beats", 1)
        return True

    def _look_at(self, name: str, members: Sequence[str]) -> None:
        """End the generation of `members` where the same beat of that agent has been heard for SILENT_S.

        Others of its host are lost, too, where that is another one.
        """
        now = time.monotonic()
        heard = name, self.store.get(f"beat/{name}")
        if heard != self._heard:
            self._heard, self._heard_s = heard, now
        if now - self._heard_s > SILENT_S:
            suspect_host = {host_of(name)} - {host_of(self.name)}
            left = [n for n in members if n != name and host_of(n) not in suspect_host]
            self._end_generation("", [*left, self.name], members)

    def _pass_on(self, number: int, _frame: object) -> None:
        self._asked = number
        with suppress(ProcessLookupError):
            if self._trainer:
                os.kill(self._trainer, number)

    def _kill(self) -> None:
        if self._trainer:
            os.kill(self._trainer, signal.SIGKILL)
            os.waitpid(self._trainer, 0)
            self._trainer = 0

    def _meet(self, command: str | None) -> Any:
        """Return the store of all agents. Rank 0, which has a `command`, starts it if torchrun has not."""
        address = os.environ.get("MASTER_ADDR", "localhost")
        of_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        until = time.monotonic() + FIRST_S
        while time.monotonic() < until:
            serves = command is not None and not of_torchrun
            # that of an earlier run may end just now
            with suppress(RuntimeError):
                store = self._connect(address, until, serves=serves)
                if command is not None:
                    _begin_run(store, command, master_port())
                if store.check(["end"]) and store.get("end") == NOT_YET:
                    return store
            time.sleep(LOOK_S)
        at = f"{address}:{master_port()}"
        notify(f"{FLAG}: rank 0, which has the store at {at}, has not come")
        os._exit(exit_codes.MISTAKE)

    def _connect(self, address: str, until: float, *, serves: bool) -> Any:
        """Return the store at that address, where this host `serves` it, or another one before `until`.

        Raises RuntimeError, also later, where its host does not answer.
        """
        import torch.distributed as dist

        port = master_port()
        # rank 0 may be started again, and the store be on another host
        is_there = serves and store_listens(address, port, time.monotonic() + LOOK_S)
        if serves and not is_there and os.fork() == 0:
            _serve(address, port)
        if not store_listens(address, port, until):
            raise RuntimeError
        seconds = timedelta(seconds=ANSWER_S)
        server = dist.TCPStore(address, port, timeout=seconds)
        for number in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError, IndexError):  # that of the listing; no port
                if not stat.S_ISSOCK(os.fstat(number).st_mode):
                    continue
                with socket.socket(fileno=os.dup(number)) as connection:
                    if connection.getpeername()[1] != port:
                        continue
                    _give_up_early(connection)
                    ends = connection.getsockname()[0], connection.getpeername()[0]
                    own, of_store = (end.removeprefix("::ffff:") for end in ends)
                    self._address = own, of_store
        return dist.PrefixStore("unkillable", server)

    def _move(self) -> None:
        """Meet the agents that are left at the store of another host, the first of them that has one. Leave where there
        is none.
        """
        own, lost = self._address
        left = {h: at for h, at in self._addresses.items() if at != lost}
        for address in left.values():
            until = time.monotonic() + MOVES_S
            with suppress(RuntimeError):
                store = self._connect(address, until, serves=address == own)
                expected = [name for name in self._members if host_of(name) in left]
                ended = json.dumps(["", expected, self._members])
                store.compare_set(f"{self.generation}/ended", "", ended)
                store.compare_set("first", "", NOT_YET.decode())
                store.compare_set("end", "", NOT_YET.decode())
                store.compare_set("generation", "", str(self.generation + 1))
                self.store = store
                self._beaten_s = 0.0
                os.environ["MASTER_ADDR"] = address
                if self._is_first_here(self._members):
                    notify(
                        f"{FLAG}: the store at {lost} does not answer; MASTER_ADDR is {address} now"
                    )
                return
        notify(f"{FLAG}: the store does not answer; go on with --resume auto")
        os._exit(exit_codes.FAILED)


def _give_up_early(connection: socket.socket) -> None:
    """Have what waits for the other end fail once its host has not answered for SILENT_S."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 1),  # s
        (socket.TCP_KEEPINTVL, 1),  # s
        (socket.TCP_USER_TIMEOUT, int(1000 * SILENT_S)),  # ms
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def master_port() -> int:
    """Return the port at which agents and trainers meet."""
    return int(os.environ.get("MASTER_PORT", "29500"))


def named(agent: str) -> str:
    """Return what lines call an agent: the rank it was started as, and its host."""
    return " ".join(agent.partition(",")[0].split())


def host_of(agent: str) -> str:
    """Return the host in the name of an agent."""
    return agent.partition(" on ")[2].rpartition(", ")[0]


def oom_kills() -> int:
    """Return how many processes the system has killed since it lacked memory, of all containers; 0: not said."""
    lines = Path("/proc/vmstat").read_text().splitlines()
    return int(dict(map(str.split, lines)).get("oom_kill", 0))


def _begin_run(store: Store, command: str, port: int) -> None:
    """Begin rank 0's run in the store, unless it is there and goes on. Leaves where that of another command does."""
    has_ended = store.check(["end"]) and store.get("end") != NOT_YET
    if not has_ended and store.compare_set("command", "", command).decode() != command:
        beats = store.add("beats", 0)
        time.sleep(SILENT_S)
        if store.add("beats", 0) != beats:
            notify(f"{FLAG}: MASTER_PORT {port} is that of another run; set another")
            os._exit(exit_codes.MISTAKE)
        has_ended = True
    if has_ended or not store.check(["end"]):
        store.add("beats", 1)  # the store ends without
        store.set("command", command)
        store.set("first", str(store.add("generation", 1)))
        store.set("end", NOT_YET.decode())


def _serve(address: str, port: int) -> NoReturn:
    """Be the store of a run until its agents are gone. It ends at once where there is one."""
    import torch.distributed as dist

    os.setsid()  # not a part of what is killed with rank 0
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    for stream in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    try:
        served = dist.TCPStore(address, port, is_master=True, wait_for_workers=False)
    except RuntimeError:
        os._exit(0)
    store = dist.PrefixStore("unkillable", served)
    beats, silent_s = -1, 0.0
    has_ended = False
    while silent_s < (SILENT_S if has_ended else GONE_S):
        now = store.add("beats", 0)
        silent_s = silent_s + BEAT_S if now == beats else 0.0
        beats = now
        has_ended = store.check(["end"]) and store.get("end") != NOT_YET
        time.sleep(BEAT_S)
    os._exit(0)
