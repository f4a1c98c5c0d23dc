"""What `saturate why` wraps in a program that is not ours, once the program imports it.

    torch.utils.data.DataLoader     batches, and in workers the time of dataset, transforms and collate
    torch.optim                     every step of an optimiser
    torchvision.transforms, PIL     the time of each transform, and of decoding
    nvidia.dali                     batches of its iterators
    torch.save, safetensors         what they write, for undo.py

A worker, forked or spawned, writes what it has been busy with into the folder of the run, where the process that
trains reads it.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from saturate.why.undo import WRITTEN

FOLDER = "SATURATE_WHY"
"""The environment's name for the folder of a run under `saturate why`."""
ASKED = "SATURATE_WHY_ASKED"
"""The environment's name for its flags, as JSON."""
WRITES_EVERY_S = 0.2
WAITING = ("dataset", "decode")
"""Stages that read files: what they are on no core, and do not wait for one, is their wait for storage."""


class Busy:
    """What a process has been busy with: nanoseconds, each under one stage alone."""

    def __init__(self) -> None:
        self.wall: Counter[str] = Counter()
        self.cpu: Counter[str] = Counter()
        self.batches = 0
        # that were decoded last
        self.files: deque[str] = deque(maxlen=16)


busy = Busy()
_within = threading.local()
"""Nanoseconds that stages within the present one have taken."""
_written_at = [0.0]
_of_parents: list[Any] = []
"""What a forked process has of its parent's run."""


def timed(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, whose time counts under `stage`, less what stages within it take."""

    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        outer = vars(_within).get("took", (0, 0))
        _within.took = (0, 0)
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        try:
            return function(*args, **kwargs)
        finally:
            cpu, wall = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
            inner = _within.took
            busy.wall[stage] += wall - inner[0]
            busy.cpu[stage] += cpu - inner[1]
            _within.took = (outer[0] + wall, outer[1] + cpu)

    return inside


def _delayed() -> int:
    """Return the nanoseconds that this thread was ready to run and had no core, as Linux tells."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1])
    except OSError:  # a container that has no such file
        return 0


@contextmanager
def _reads_told_apart() -> Iterator[None]:
    """Count what WAITING waits inside, and not for a core, under the stage `read`."""
    before, delayed = busy.wall - busy.cpu, _delayed()
    yield
    idle = busy.wall - busy.cpu - before
    # each stage has waited for a core as long as it has waited at all
    share = max(1 - (_delayed() - delayed) / max(sum(idle.values()), 1), 0)
    for stage, took in idle.items():
        if stage.partition(" ")[0] in WAITING:
            busy.wall[stage] -= int(share * took)
            busy.wall["read"] += int(share * took)


def write_own() -> None:
    """Leave what this worker was busy with to the process that trains."""
    path = Path(os.environ[FOLDER], f"worker-{os.getppid()}-{os.getpid()}")
    # another process may read it at any time
    path.with_suffix(".new").write_text(json.dumps(_own()))
    path.with_suffix(".new").replace(path)


def _own() -> dict[str, Any]:
    return {**vars(busy), "files": list(busy.files)}


def read(folder: Path) -> Busy:
    """Return what this process and its workers have been busy with."""
    found = [_own()]
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    for parent in (os.getpid(), getattr(server, "_forkserver_pid", None)):
        paths = folder.glob(f"worker-{parent}-*[0-9]")
        found += [json.loads(path.read_text()) for path in paths]
    added = Busy()
    for one in found:
        added.wall.update(one["wall"])
        added.cpu.update(one["cpu"])
        added.batches += one["batches"]
        added.files.extend(one["files"][-4:])
    return added


# --- what is wrapped ---------------------------------------------------------------------------------------------


def _loaders(module: ModuleType) -> None:
    from saturate.why import phases

    base: Any = module._BaseDataLoaderIter
    begin, following = base.__init__, base.__next__

    def __init__(self: Any, loader: Any) -> None:
        # a loader that keeps its workers has this iterator, and would never go where that had the loader
        self._saturate = weakref.ref(loader)
        if phases.run is not None:
            phases.run.opened(loader)
        begin(self, loader)

    def __next__(self: Any) -> Any:
        if phases.run is None:
            return following(self)
        return phases.run.take(self, self._saturate(), lambda: following(self))

    base.__init__, base.__next__ = __init__, __next__


def _workers(module: ModuleType) -> None:
    for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
        fetcher = getattr(module, name)
        fetch = timed("dataset", fetcher.fetch)

        def timed_fetch(self: Any, index: Any, fetch: Any = fetch) -> Any:
            if not hasattr(self, "_saturate"):
                self._saturate = True
                self.collate_fn = timed("collate", self.collate_fn)
            with _reads_told_apart():
                batch = fetch(self, index)
            busy.batches += 1
            now = time.monotonic()
            is_worker = sys.modules["torch"].utils.data.get_worker_info() is not None
            if is_worker and now - _written_at[0] > WRITES_EVERY_S:
                _written_at[0] = now
                write_own()
            return batch

        fetcher.fetch = timed_fetch


def _optimizers(module: ModuleType) -> None:
    from saturate.why import phases

    phases.begin(Path(os.environ[FOLDER]))

    def stepped(optimizer: Any, *_: Any) -> None:
        if phases.run is not None:
            phases.run.stepped(optimizer)

    module.register_optimizer_step_post_hook(stepped)


def _compose(module: ModuleType) -> None:
    kind = module.Compose
    name = "forward" if hasattr(kind, "forward") else "__call__"
    whole = getattr(kind, name)

    def call(self: Any, *inputs: Any, **named: Any) -> Any:
        if named or not self.transforms:
            return whole(self, *inputs, **named)
        for transform in self.transforms:
            outputs = timed(f"transform {type(transform).__name__}", transform)(*inputs)
            inputs = outputs if len(inputs) > 1 else (outputs,)
        return outputs

    setattr(kind, name, call)


def _pillow(module: ModuleType) -> None:
    kind = module.ImageFile
    whole = kind.load
    decode = timed("decode Pillow", whole)

    def load(self: Any) -> Any:
        # asked for before each operation, and done once
        if not self.tile:
            return whole(self)
        busy.files.append(str(getattr(self.fp, "name", "")))
        return decode(self)

    kind.load = load


def _decoders(module: ModuleType, decoder: str, names: Sequence[str]) -> None:
    for name in names:
        decode = timed(f"decode {decoder}", getattr(module, name))

        def decoded(*args: Any, _of: Any = decode, **kwargs: Any) -> Any:
            path = next(iter((*args, *kwargs.values())), None)
            if isinstance(path, str):
                busy.files.append(path)
            return _of(*args, **kwargs)

        setattr(module, name, functools.wraps(decode)(decoded))


def _dali(module: ModuleType) -> None:
    from saturate.why import phases

    for name in ("DALIGenericIterator", "DALIRaggedIterator"):
        iterator = getattr(module, name)

        def __next__(self: Any, following: Any = iterator.__next__) -> Any:
            if phases.run is None:
                return following(self)
            return phases.run.take(self, self, lambda: following(self))

        iterator.__next__ = __next__


def _saving(module: ModuleType, name: str) -> None:
    """Tell undo.py of files that are written by C++ and Rust."""
    save = getattr(module, name)

    @functools.wraps(save)
    def saved(*args: Any, **kwargs: Any) -> Any:
        for to in (*args[1:2], kwargs.get("f"), kwargs.get("filename")):
            if isinstance(to, (str, os.PathLike)):
                sys.audit(WRITTEN, to)
        return save(*args, **kwargs)

    setattr(module, name, saved)


def _autocast(module: ModuleType) -> None:
    from saturate.why import phases

    enter = module.autocast.__enter__

    def entered(self: Any) -> Any:
        if phases.run is not None and self._enabled:
            phases.run.autocast = str(self.fast_dtype)
        return enter(self)

    module.autocast.__enter__ = entered


WRAPPED: dict[str, Callable[[ModuleType], None]] = {
    "torch.utils.data.dataloader": _loaders,
    "torch.utils.data._utils.fetch": _workers,
    "torch.optim.optimizer": _optimizers,
    "torch.amp.autocast_mode": _autocast,
    "torch.serialization": functools.partial(_saving, name="save"),
    "torch.jit._serialization": functools.partial(_saving, name="save"),
    "safetensors.torch": functools.partial(_saving, name="save_file"),
    "torchvision.transforms.transforms": _compose,
    "torchvision.transforms.v2._container": _compose,
    "torchvision.io.image": functools.partial(
        _decoders,
        decoder="torchvision.io",
        names=("decode_image", "decode_jpeg", "read_image"),
    ),
    "PIL.ImageFile": _pillow,
    "cv2": functools.partial(_decoders, decoder="OpenCV", names=("imread", "imdecode")),
    "nvidia.dali.plugin.pytorch": _dali,
}
"""Module -> what is done to it once it was imported."""


class _Wrapping(Loader):
    def __init__(self, name: str, loader: Loader) -> None:
        self.name, self.loader = name, loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        WRAPPED[self.name](module)


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> ModuleSpec | None:
        if name not in WRAPPED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Wrapping(name, spec.loader)
        return spec


def _anew() -> None:
    """A process that was forked has been busy with nothing so far."""
    global busy
    from saturate.why import phases

    busy = Busy()
    vars(_within).clear()
    # a rank that its launcher forks, or a worker, which takes no batches
    if phases.run is not None:
        # an iterator that is deleted in here would wait for workers that are not its children
        _of_parents.append(phases.run)
        phases.begin(phases.run.folder)


def begin() -> None:
    """Wrap what this process will import."""
    sys.meta_path.insert(0, _Finder())
    os.register_at_fork(after_in_child=_anew)
