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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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

Totals = dict[str, list[float]]
"""Stage -> seconds of wall clock, and of them seconds on a CPU core. The waits of WAITING are the stage `read`."""


class _Thread(threading.local):
    """The laps that a thread is in, and the file in which Linux tells how long it has waited for a core."""

    def __init__(self) -> None:
        self.laps: list[list[float]] = []
        self.file = -1
        with suppress(OSError):  # another system, or a container that has no such file
            self.file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def delayed_s(self) -> float:
        """Return the seconds that this thread was ready to run and had no core."""
        return (
            0.0 if self.file < 0 else int(os.pread(self.file, 99, 0).split()[1]) / 1e9
        )


totals: Totals = {}
"""What this process has been busy with, each second under one stage alone."""
batches = [0]
files: deque[str] = deque(maxlen=16)
"""The last ones that were decoded."""
_thread = _Thread()
_written = [0.0]
_of_parents: list[Any] = []
"""What a forked process has of its parent's run."""


@contextmanager
def lap(stage: str) -> Iterator[None]:
    """Count the time inside under `stage`, less what laps within it take."""
    waits = stage.partition(" ")[0] in WAITING
    delayed_s = _thread.delayed_s if waits else float
    before = time.perf_counter(), time.thread_time(), delayed_s()
    inner = [0.0, 0.0, 0.0]
    _thread.laps.append(inner)
    try:
        yield
    finally:
        _thread.laps.pop()
        after = time.perf_counter(), time.thread_time(), delayed_s()
        took = [end - begin for begin, end in zip(before, after, strict=True)]
        wall, cpu, delay = (
            whole - within for whole, within in zip(took, inner, strict=True)
        )
        waited = max(wall - cpu - delay, 0.0) if waits else 0.0
        for name, seconds in ((stage, (wall - waited, cpu)), ("read", (waited, 0.0))):
            total = totals.setdefault(name, [0.0, 0.0])
            total[0] += seconds[0]
            total[1] += seconds[1]
        if _thread.laps:
            outer = _thread.laps[-1]
            outer[:] = [sum(pair) for pair in zip(outer, took, strict=True)]


def timed(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, whose time counts under `stage`."""

    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with lap(stage):
            return function(*args, **kwargs)

    return inside


def write_totals() -> None:
    """Leave this worker's totals to the process that trains."""
    path = Path(os.environ[FOLDER], f"worker-{os.getppid()}-{os.getpid()}")
    content = json.dumps(_own())
    # another process may read it at any time
    path.with_suffix(".new").write_text(content)
    path.with_suffix(".new").replace(path)


def _own() -> dict[str, Any]:
    return {"totals": totals, "batches": batches[0], "files": list(files)}


def read(folder: Path) -> list[dict[str, Any]]:
    """Return totals, batches and files of this process and of each of its workers."""
    found = [_own()]
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    for parent in (os.getpid(), getattr(server, "_forkserver_pid", None)):
        paths = folder.glob(f"worker-{parent}-*[0-9]")
        found += [json.loads(path.read_text()) for path in paths]
    return found


def read_totals(folder: Path) -> tuple[Totals, int]:
    """Return the totals of this process and of its workers, and the batches that they have made."""
    added: Totals = {}
    found = read(folder)
    for one in found:
        for stage, (wall, cpu) in one["totals"].items():
            before = added.get(stage, [0.0, 0.0])
            added[stage] = [before[0] + wall, before[1] + cpu]
    return added, sum(one["batches"] for one in found)


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

        def timed_fetch(self: Any, index: Any, fetch: Any = fetcher.fetch) -> Any:
            if not hasattr(self, "_saturate"):
                self._saturate = True
                self.collate_fn = timed("collate", self.collate_fn)
            with lap("dataset"):
                batch = fetch(self, index)
            batches[0] += 1
            now = time.monotonic()
            is_worker = sys.modules["torch"].utils.data.get_worker_info() is not None
            if is_worker and now - _written[0] > WRITES_EVERY_S:
                _written[0] = now
                write_totals()
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
    def call(self: Any, *inputs: Any) -> Any:
        for transform in self.transforms:
            with lap(f"transform {type(transform).__name__}"):
                outputs = transform(*inputs)
            inputs = outputs if len(inputs) > 1 else (outputs,)
        return outputs

    kind = module.Compose
    setattr(kind, "forward" if hasattr(kind, "forward") else "__call__", call)


def _decoders(
    module: ModuleType, decoder: str, names: Sequence[str], owner: str = ""
) -> None:
    holder = getattr(module, owner) if owner else module
    for name in names:
        decode = timed(f"decode {decoder}", getattr(holder, name))

        def decoded(image: Any, *args: Any, _of: Any = decode, **kwargs: Any) -> Any:
            # a path, or Pillow's image with its file
            path = getattr(getattr(image, "fp", None), "name", image)
            if isinstance(path, str):
                files.append(path)
            return _of(image, *args, **kwargs)

        setattr(holder, name, functools.wraps(decode)(decoded))


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
    def saved(content: Any, to: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(to, (str, os.PathLike)):
            sys.audit(WRITTEN, to)
        return save(content, to, *args, **kwargs)

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
    "safetensors.torch": functools.partial(_saving, name="save_file"),
    "torchvision.transforms.transforms": _compose,
    "torchvision.transforms.v2._container": _compose,
    "torchvision.io.image": functools.partial(
        _decoders,
        decoder="torchvision.io",
        names=("decode_image", "decode_jpeg", "read_image"),
    ),
    "PIL.ImageFile": functools.partial(
        _decoders, decoder="Pillow", names=("load",), owner="ImageFile"
    ),
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
    global _thread
    from saturate.why import phases

    totals.clear()
    files.clear()
    batches[0] = 0
    if _thread.file >= 0:
        os.close(_thread.file)  # tells of the parent
    _thread = _Thread()
    # a rank that its launcher forks, or a worker, which takes no batches
    if phases.run is not None:
        # an iterator that is deleted in here would wait for workers that are not its children
        _of_parents.append(phases.run)
        phases.begin(phases.run.folder)


def begin() -> None:
    """Wrap what this process will import."""
    sys.meta_path.insert(0, _Finder())
    os.register_at_fork(after_in_child=_anew)
