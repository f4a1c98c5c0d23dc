"""The processes of a run: threads, device, process group. Everyone else receives a World and never asks
torch.distributed.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import io
import os
import pickle
import resource
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

# Before OpenMP is loaded: its threads spin for some microseconds before they sleep. A step of a CPU has
# hundreds of small operations, and threads that sleep in between cost it 6 to 25 % of its rate; those that
# spin for milliseconds take the cores that a loader's workers need. GNU's library does either by default:
# it hardly spins where there are more threads than cores, as forward and backward have, and for 3 ms
# elsewhere.
os.environ.setdefault("OMP_WAIT_POLICY", "ACTIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # of GNU's library, about 10 us
os.environ.setdefault("KMP_BLOCKTIME", "1")  # ms, of Intel's and LLVM's
# where the ranks' store has gone c10d warns with a page of its frames; the watch says it in a line
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from saturate.contracts import PeerLost, UserError, one_line
from saturate.engine import memory, ranks, slurm, unkillable
from saturate.engine.ranks import RESUME, Peers, is_lost_peer
from saturate.engine.stop import notify
from saturate.system import exit_codes, limits
from saturate.system.resources import cores

Answer = TypeVar("Answer")

ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""torch's variables of its allocator, the newer name first. torch reads them when it first takes memory."""
SEGMENTS_GROW = "expandable_segments:True"
"""The part of their values that makes segments grow."""
MALLOC = (
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "GLIBC_TUNABLES",
)
"""glibc's variables of what it keeps."""
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""Parameters of mallopt, as malloc.h numbers them."""

MARGIN_S = 600.0
"""Seconds by which a collective waits longer than engine/watch.py, which says who is waited for, and lets
ranks that live be slow where they may: a checkpoint, a compilation, a validation's figures may take as long.
"""
RANKS_A_STEP = 64
"""Ranks whose vote arrives within a step: its 126 hops take about 6 ms between hosts. More ranks vote every few
steps, sum by a tree, and connect to those they talk to: docs/scale.md has why."""
LOOKED_AT = 512
"""Rows and columns of a matrix whose square shows whether a device computes."""
FILES_A_WORKER = 4
"""Files that are open for each worker process of a loader."""


def prepare_process() -> torch.device:
    """Set CUDA's variables and the number of threads; return the device of this rank. Every program calls it
    first.
    """
    # CUDA maps streams onto 8 hardware queues by default, and a decoder's stream that shares a queue with
    # training makes it wait; docs/benchmarks/train.md has what a loop without this loses
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    # torch otherwise keeps each large tensor's memory as a piece of its own: what a graph holds and what
    # validation needs do not fit each other's pieces; docs/benchmarks/max-batch.md has what that cost
    if not any(name in os.environ for name in ALLOCATOR):
        os.environ[ALLOCATOR[0]] = SEGMENTS_GROW
    if any(SEGMENTS_GROW in os.environ.get(name, "") for name in ALLOCATOR):
        # NCCL maps the buffers of a captured all-reduce into the other ranks. Of a segment that has grown
        # 2.28 maps one piece alone, and up to 2.30.7 one piece's mapping may serve for another: ranks would
        # read and write beyond it (issue 1820 and pull request 2362 of NVIDIA/nccl)
        os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")
    slurm.set_variables()
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    sharing = _sharing(int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        torch.set_num_threads(max(1, min(4, int(cores() // sharing))))
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
        return device
    # torchrun sets OMP_NUM_THREADS=1, which would leave a run on the CPU on one core
    torch.set_num_threads(max(1, int(cores() // sharing)))
    _keep_freed_memory()
    return torch.device("cpu")


def _keep_freed_memory() -> None:
    """Have glibc keep what tensors free, for the next step, unless the user has set what it keeps.

    It would give the memory of large tensors back, and the kernel would clear each page again in the next
    step, which costs 11 to 29 % of the rate (docs/benchmarks/two-cores.md). Other C libraries have no
    `mallopt`, or ignore it.
    """
    if any(name in os.environ for name in MALLOC):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)
        if "MALLOC_ARENA_MAX" not in os.environ:
            # each arena would keep what its threads free, and none share it
            mallopt(M_ARENA_MAX, 1)


def _sharing(local_size: int) -> int:
    """Return how many of so many ranks on this machine share the cores of this one."""
    return 1 if slurm.has_own_cores(os.environ) else local_size


def leave(code: int) -> NoReturn:
    """End the process with this exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    # With other ranks at once: tearing down would wait for ranks that wait for us after an error, and gloo's
    # threads sometimes outlive what they use (exit code -6, "terminate called without an active exception").
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        os._exit(code)
    # libraries look for what they made when the interpreter ends, and say that it leaks
    gc.unfreeze()
    sys.exit(code)


def leave_within(seconds: float, code: int) -> None:
    """End the process after so many seconds, if it has not ended by itself."""
    timer = threading.Timer(seconds, os._exit, (code,))
    timer.daemon = True
    timer.start()


def default_workers(ranks: int = 1, *, gpu: bool) -> int:
    """Return how many worker processes each of `ranks` on this machine starts: its share of the cores, less
    one for the step.

    With two cores a rank that trains on a GPU takes both, since its step leaves the second one idle.
    """
    share = int(cores() // ranks)
    return max(1, share if gpu and share == 2 else share - 1)


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file; "" where there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Sender(pickle.Pickler):
    """Pickles all but tensors, which `tensors` has in their order."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[torch.Tensor] = []

    def persistent_id(self, value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return None
        # with gaps, as an expanded one, it is sent without them
        stride = torch.empty_like(value, device="meta").stride()
        self.tensors.append(
            value if value.stride() == stride else torch.empty_like(value).copy_(value)
        )
        return value.shape, stride, value.dtype


class _Receiver(pickle.Unpickler):
    """Reads what a _Sender has pickled; its tensors come from rank 0, as it gets to them."""

    def persistent_load(
        self, layout: tuple[torch.Size, tuple[int, ...], torch.dtype]
    ) -> torch.Tensor:
        shape, stride, dtype = layout
        tensor = torch.empty_strided(shape, stride, dtype=dtype)
        _broadcast(tensor)
        return tensor


def _broadcast(tensor: torch.Tensor) -> None:
    """Send rank 0's tensor without gaps into that of the others."""
    if tensor.numel():
        row = tensor.detach().as_strided((tensor.numel(),), (1,))
        dist.broadcast(row.view(torch.uint8), src=0)


class ProcessWorld:
    """A contracts.World over torch.distributed: gloo for host values, NCCL for device tensors; one process
    needs neither.
    """

    def __init__(self, device: torch.device) -> None:
        self.rank = int(os.environ.get("RANK", 0))
        self.size = int(os.environ.get("WORLD_SIZE", 1))
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))
        self.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        self.device = device
        self.timeout_s = 600.0
        self._peers: Peers | None = None
        # what a thread does once another rank is lost or has met a mistake, as Peers.watch says
        self.on_end = self._leave

    @property
    def place(self) -> dict[str, int]:
        """Return what a plan must know of this rank: world_size and rank."""
        return {"world_size": self.size, "rank": self.rank}

    @property
    def named(self) -> str:
        """Return what messages call this rank."""
        return f"rank {self.rank} on {socket.gethostname()}"

    def wait_for(self, what: str) -> None:
        """Tell the other ranks what this one's main thread waits for; "" for nothing of its own."""
        if self._peers is not None:
            self._peers.waits = what

    def blame(self) -> str:
        """Return which ranks do not answer, or what they wait for."""
        return "" if self._peers is None else self._peers.blame()

    def ends_itself(self) -> None:
        """Have no other rank's end end this process any more: it has met a mistake, and closes what it has open."""
        if self._peers is not None:
            self._peers.end()

    def _leave(self, code: int, line: str) -> None:
        """End this process in mid-step, after a line that says why if there is one."""
        if line:
            notify(line)
        os._exit(code)

    def workers(self, asked: int | None) -> int:
        """Return how many workers this rank starts: as asked, or as many as default_workers has.

        Raises UserError for more than this process may have files open for.
        """
        workers = asked
        if workers is None:
            gpu = self.device.type == "cuda"
            workers = default_workers(_sharing(self.local_size), gpu=gpu)
        # those of the validation come beside them
        files = limits.LEAST_FILES + 2 * FILES_A_WORKER * workers
        if not limits.open_files(files):
            few = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            raise UserError(
                f"--workers {workers} need about {files} open files, in a validation too, and "
                f"ulimit -n allows {few}: raise it, or ask for fewer"
            )
        return workers

    def cores(self) -> float:
        """Return how many of the CPU cores that this process may use are its own, shared among ranks."""
        return cores() / _sharing(self.local_size)

    def meet(self, timeout_minutes: float = 10.0) -> None:
        """Wait until every rank's process is there: they can then `gather`, before any scan. Leave by `on_end`
        once one of them is lost, or has met a mistake.
        """
        self.timeout_s = 60 * timeout_minutes
        if self.size > 1 and self._peers is None:
            self._peers = Peers(
                rank=self.rank, size=self.size, timeout_s=self.timeout_s
            )
            self._peers.watch(lambda code, line: self.on_end(code, line))

    @contextmanager
    def joined(self, timeout_minutes: float = 10.0) -> Iterator[None]:
        """Let the ranks compute together inside. Call it once the data is scanned: joining has a time-out."""
        self.meet(timeout_minutes)
        if self._peers is None:
            yield
            return
        self._peers.timeout_s = self.timeout_s
        self._peers.gather()
        gpus = max(torch.cuda.device_count(), slurm.gpus_on_node(os.environ))
        shared_gpu = self.device.type == "cuda" and self.local_size > gpus
        # NCCL refuses two ranks on one GPU
        with_nccl = self.device.type == "cuda" and not shared_gpu
        self._look_at(self._computes_right)
        if self.size > RANKS_A_STEP:
            # gloo connects ranks that talk to each other, and not each with all others
            os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
        try:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if with_nccl else "gloo",
                store=self._peers.store,
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=self.timeout_s + MARGIN_S),
                device_id=self.device if with_nccl else None,
            )
            self._look_at(self._sums_right)
            yield
            # together: who has the store ends no earlier than others watch it
            self.barrier()
        except RuntimeError as error:
            if not is_lost_peer(error):
                raise
            unkillable.another_has_ended()
            # it beats meanwhile: others look for the rank that is lost, too
            why = f"{self.blame()}; its own line or the system's log says why"
            raise PeerLost(f"another rank has ended: {why}; {RESUME}") from None
        finally:
            self._peers.end()
        dist.destroy_process_group()  # not after an error: another rank may be waiting inside a collective

    def _look_at(self, is_right: Callable[[], bool]) -> None:
        """Leave for good where this rank is not right, before it trains with others again (--unkillable)."""
        if unkillable.memory is not None and not is_right():
            notify(f"{unkillable.FLAG}: {self.named} on {self.device}: a wrong result")
            os._exit(unkillable.FAULTY)

    def _computes_right(self) -> bool:
        try:
            ones = torch.ones(LOOKED_AT, LOOKED_AT, device=self.device)
            return bool((ones.mm(ones) == LOOKED_AT).all())
        except RuntimeError as error:
            # a process that was killed may have it still
            if memory.lack(error):
                return True
            notify(one_line(str(error)))
            return False

    def _sums_right(self) -> bool:
        total = torch.tensor([self.rank], device=self.device)
        dist.all_reduce(total)
        return int(total) == sum(range(self.size))

    def first(self, ask: Callable[[], Answer]) -> Answer:
        """Return on every rank what `ask` returns on rank 0, where alone it is called. It can be pickled.

        Raises rank 0's UserError on every rank.
        """
        if self.size == 1:
            return ask()
        answer: list[Any] = [None, None]
        if self.rank == 0:
            try:
                answer[0] = ask()
            except UserError as error:
                answer[1] = error
        if dist.is_initialized():
            answer = self._sent(answer)
        else:
            assert self._peers is not None, "ranks meet first"
            answer = self._peers.first(answer)
        if answer[1] is not None:
            raise answer[1]
        result: Answer = answer[0]
        return result

    def _sent(self, value: object) -> Any:
        """Return rank 0's value. Tensors travel one by one: pickled they would be in memory four times."""
        rest: list[Any] = [None]
        tensors: list[torch.Tensor] = []
        if self.rank == 0:
            sender = _Sender(file := io.BytesIO())
            sender.dump(value)
            rest[0] = file.getvalue()
            tensors = sender.tensors
        dist.broadcast_object_list(rest)
        if self.rank > 0:
            return _Receiver(io.BytesIO(rest[0])).load()
        for tensor in tensors:
            _broadcast(tensor)
        return value

    @contextmanager
    def file(self, name: str | None) -> Iterator[str | None]:
        """Yield the name of a file with what rank 0's file `name` holds: itself, or a copy that is temporary.

        Where rank 0 has no file of that name it stays as it is.
        """
        path = Path(name or "")
        differs = self.size > 1 and self.first(lambda: _digest(path)) != _digest(path)
        content = self.first(path.read_bytes) if any(self.gather(differs)) else b""
        if not differs:
            yield name
            return
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, path.name)
            copy.write_bytes(content)
            yield str(copy)

    def differing(self, what: Mapping[str, Any]) -> str:
        """Return what the first rank that differs from rank 0 has otherwise: names and values; "" for nothing."""
        first = self.first(lambda: what)
        lines = [
            f"{name} is {first.get(name)!s:.80} on rank 0, {what.get(name)!s:.80} on {self.named}"
            for name in {**first, **what}
            if first.get(name) != what.get(name)
        ]
        return next(filter(None, self.gather("; ".join(lines[:3]))), "")

    def agree(self, what: Mapping[str, Any]) -> None:
        """Raise UserError, on every rank, where not all ranks have the same values in `what`."""
        if line := self.differing(what):
            raise UserError(f"the ranks differ: {line}; all need the same")

    def complain(self, line: str, code: int) -> int:
        """Say what has ended this rank, once a host; return the exit code of all ranks: that of the first mistake.

        A lost rank, FAILED, is no mistake: each rank has its own line of it.
        """
        if self._peers is None or code == exit_codes.FAILED:
            if self.local_rank > 0:
                # torchrun ends this rank with the first one of its host, which says it
                time.sleep(ranks.ALONE_AFTER_S)
            _complain(line)
            return code
        code, of_host = self._peers.fail(code, line)
        if of_host:
            _complain(of_host)
        if not self._peers.all_end() and not of_host:
            # the first rank of this host hangs, or is lost
            _complain(line)
        return code

    def synchronise(self) -> None:
        """Wait for this rank's device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def await_batch(self) -> None:
        """Wait until the current stream has its batch; not for the loader's other streams."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    @contextmanager
    def own_stream(self) -> Iterator[None]:
        """Send work inside to a stream that no library waits for by default, as some do with the legacy
        default stream.
        """
        if self.device.type != "cuda":
            yield
            return
        # its priority is high: a decoder's kernels fill what training leaves free, not the other way round
        stream = torch.cuda.Stream(self.device, priority=-1)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            yield
        torch.cuda.current_stream().wait_stream(stream)

    def wrap(
        self,
        module: nn.Module,
        *,
        compiled: bool,
        bucket_mib: int | None = None,
    ) -> nn.Module:
        """Return the module as the step calls it.

        Ranks sum the gradients of `bucket_mib` MiB at once (None: as torch does). Batch-norm statistics are each
        rank's own until validation.
        """
        called = module
        if compiled:
            called = torch.compile(module)  # type: ignore[assignment]
        if self.size == 1:
            return called
        where = [self.device] if self.device.type == "cuda" else None
        wrapped = DistributedDataParallel(
            called,
            device_ids=where,
            gradient_as_bucket_view=True,
            bucket_cap_mb=bucket_mib,
        )
        # kernels of 1 x 1 (x 1) are laid out alike whatever their strides are called
        warnings.filterwarnings(
            "ignore", "Grad strides do not match bucket view strides"
        )
        wrapped.broadcast_buffers = False  # torch 2.15 warns when it is an argument
        return wrapped

    def barrier(self) -> None:
        self.sum(np.zeros(1, np.int64))

    def sum(self, values: np.ndarray) -> np.ndarray:
        if self.size == 1:
            return values
        total = torch.from_numpy(np.array(values))
        if self.size <= RANKS_A_STEP:
            dist.all_reduce(total)
            return total.numpy()
        # rank 0 hears all others at once, and answers by a tree, where all_reduce is a ring of 2 (size - 1) hops
        of_ranks = None
        if self.rank == 0:
            of_ranks = [torch.empty_like(total) for _ in range(self.size)]
        dist.gather(total, of_ranks)
        if of_ranks is not None:
            total = torch.stack(of_ranks).sum(0)
        dist.broadcast(total, src=0)
        return total.numpy()

    def gather(self, value: object) -> list[Any]:
        if self.size == 1:
            return [value]
        if not dist.is_initialized():
            assert self._peers is not None, "ranks meet first"
            return self._peers.gather(value)
        out: list[Any] = [None] * self.size
        dist.all_gather_object(out, value)
        return out

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        """Send rank 0's tensors to everyone, in place, such as batch-norm statistics: each rank's own follow its
        own samples.
        """
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)


def _complain(line: str) -> None:
    lines = map(one_line, f"train.py: {line}".split("\n"))
    print("\n".join(lines), file=sys.stderr, flush=True)


def votes_every(ranks: int) -> int:
    """Return how many steps there are from one vote of so many ranks to the next."""
    return -(-ranks // RANKS_A_STEP)


class Vote:
    """Flags that any rank may raise and all ranks see at the same step.

    Sent in step s and read in step s + 1. Of more than RANKS_A_STEP ranks the flags of `every` steps are sent
    together, and read `every` steps later: gloo's all-reduce is a ring, whose 2 (ranks - 1) hops one behind
    another may take longer than a step.
    """

    FLAGS = ("stop", "window", "save", "enough")

    def __init__(self, world: ProcessWorld) -> None:
        self._world = world
        self.every = votes_every(world.size)
        self._raised = 0  # one bit a flag, since a vote was started last
        self._steps = 0  # that they are of
        # the flags under way, and what brings those of other ranks
        self._pending: tuple[torch.Tensor, Any] | None = None

    def exchange(self, **raised: bool) -> dict[str, bool]:
        """Add this step's flags to the vote; return what has been decided since the step before."""
        for bit, name in enumerate(self.FLAGS):
            self._raised |= raised.get(name, False) << bit
        self._steps += 1
        if self._steps < self.every:
            return self._decided(0)
        # the vote before has had `every` steps to arrive, so that hardly a rank waits for it
        decided = self._finish()
        self._start()
        return self._decided(decided)

    def drain(self) -> dict[str, bool]:
        """Return all that was raised and is not yet decided; all ranks call this at the same point."""
        decided = self._finish()
        if self._steps:
            self._start()
            decided |= self._finish()
        return self._decided(decided)

    def _start(self) -> None:
        # one number, since gloo sends a message for each around its ring
        flags = torch.tensor([self._raised], dtype=torch.int32)
        self._raised = 0
        self._steps = 0
        work = None
        if self._world.size > 1:
            work = dist.all_reduce(flags, op=dist.ReduceOp.BOR, async_op=True)
        self._pending = flags, work

    def _finish(self) -> int:
        """Wait for the vote under way, and return its bits."""
        if self._pending is None:
            return 0
        flags, work = self._pending
        self._pending = None
        if work is not None:
            work.wait()
        return int(flags)

    def _decided(self, bits: int) -> dict[str, bool]:
        return {name: bool(bits >> bit & 1) for bit, name in enumerate(self.FLAGS)}
