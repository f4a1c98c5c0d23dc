"""What `saturate why` wraps in a program that is not ours, once the program imports it: HOOKS lists all of it.

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
from collections.abc import Callable, Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from saturate.why.undo import WRITTEN

Call = Callable[..., Any]

FOLDER = "SATURATE_WHY"
"""The environment's name for the folder of a run under `saturate why`."""
ASKED = "SATURATE_WHY_ASKED"
"""The environment's name for its flags, as JSON."""
RESULT = "result.json"
"""The file of that folder with what all ranks have measured."""
UNMEASURED = "unmeasured"
"""The file of that folder with why a program that takes batches was not measured so far."""
GO_ON = "go-on"
"""The word of --then that has the program train on once it was measured."""
WRITES_EVERY_S = 0.2
WAITING = ("dataset", "decode")
"""Stages that read files: what they are on no core, and do not wait for one, is their wait for storage."""
FILES = 16
"""Files that were decoded last, of which the paths are kept; a quarter of them are those of one worker."""

run: Any = None
"""What this process is put through (phases.Run); None outside of `saturate why`, and once that is over."""
tried_in: Any = None
"""The type of 16 bits that the program's steps are tried in (trials.autocast)."""
_switched_on: Any = None
"""The region of a switched-off autocast that the program is in, where it computes in that type."""
_of_parents: list[Any] = []
"""What a forked process has of its parent's run."""


class Busy:
    """What processes have been busy with: nanoseconds, each under one stage alone."""

    def __init__(self) -> None:
        self.wall: Counter[str] = Counter()
        self.cpu: Counter[str] = Counter()
        self.batches = 0
        self.files: deque[str] = deque(maxlen=FILES)

    def add(self, other: Mapping[str, Any]) -> None:
        """Add what another one has, as JSON gives it."""
        self.wall.update(other["wall"])
        self.cpu.update(other["cpu"])
        self.batches += other["batches"]
        self.files.extend([*other["files"]][-FILES // 4 :])


busy = Busy()
_written_at = 0.0


class _Counted(threading.local):
    """Nanoseconds of this thread that are in `busy`."""

    wall = 0
    cpu = 0


_counted = _Counted()


def timed(stage: str, function: Call, *args: Any, **kwargs: Any) -> Any:
    """Return function(...), whose time counts under `stage`, less what stages within it take."""
    wall = time.perf_counter_ns() - _counted.wall
    cpu = time.thread_time_ns() - _counted.cpu
    try:
        return function(*args, **kwargs)
    finally:
        # what stages within it have taken was counted meanwhile
        cpu = time.thread_time_ns() - _counted.cpu - cpu
        wall = time.perf_counter_ns() - _counted.wall - wall
        busy.wall[stage] += wall
        busy.cpu[stage] += cpu
        _counted.wall += wall
        _counted.cpu += cpu


def _delayed() -> int:
    """Return the nanoseconds that this thread was ready to run and had no core, as Linux tells."""
    try:
        # Not open(), which takes twice as long: this is called twice for each batch.
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    except OSError:  # a container that has no such file
        return 0
    try:
        return int(os.read(file, 64).split()[1])
    finally:
        os.close(file)


def _idle() -> dict[str, int]:
    """Return by stage the nanoseconds in which it was on no core."""
    # A copy, since another thread may add a stage meanwhile.
    walls = list(busy.wall.items())
    return {stage: max(wall - busy.cpu[stage], 0) for stage, wall in walls}


def _write() -> None:
    """Leave what this worker was busy with to the process that trains."""
    path = Path(os.environ[FOLDER], f"worker-{os.getppid()}-{os.getpid()}")
    # another process may read it at any time
    new = path.with_suffix(".new")
    new.write_text(json.dumps(vars(busy), default=list))
    new.replace(path)


def read(folder: Path) -> Busy:
    """Return what this process and its workers have been busy with."""
    total = Busy()
    total.add(vars(busy))
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    for parent in (os.getpid(), getattr(server, "_forkserver_pid", None)):
        for path in folder.glob(f"worker-{parent}-*[0-9]"):
            total.add(json.loads(path.read_text()))
    return total


# --- what is called in place of theirs, which is `whole` ---------------------------------------------------------


def around(owner: Any, name: str, wrapper: Call) -> None:
    """Have wrapper(whole, ...) called in place of a function or method `whole`, an attribute of `owner`."""
    whole = getattr(owner, name)

    @functools.wraps(whole)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(whole, *args, **kwargs)

    setattr(owner, name, wrapped)


def taken(whole: Call, batches: Any, loader: Any) -> Any:
    """Return what the program gets where it asks an iterator of `loader` for the next batch."""
    if run is None:
        return whole(batches)
    return run.take(batches, loader, functools.partial(whole, batches))


def _begun(whole: Call, self: Any, *args: Any, **kwargs: Any) -> None:
    """Mark an epoch: an iterator whose workers live on has many, and the program may leave each one early."""
    self._saturate_epoch = object()
    if run is not None:
        run.opened(args[0])
    whole(self, *args, **kwargs)


def _trains(whole: Call, *args: Any, **kwargs: Any) -> Any:
    if run is not None:
        run.has_gradients = True
    return whole(*args, **kwargs)


def _opened(whole: Call, self: Any, loader: Any) -> None:
    # a loader that keeps its workers has this iterator, and would never go where that had the loader
    self._saturate = weakref.ref(loader)
    self._saturate_epoch = object()
    if run is not None:
        run.opened(loader)
    whole(self, loader)


def _fetched(whole: Call, self: Any, index: Any) -> Any:
    """Make a batch, and tell apart under `read` what WAITING waits meanwhile, and not for a core."""
    global _written_at
    if not hasattr(self, "_saturate"):
        self._saturate = True
        self.collate_fn = functools.partial(timed, "collate", self.collate_fn)
    before, delayed = _idle(), _delayed()
    batch = timed("dataset", whole, self, index)
    idle = {stage: max(ns - before.get(stage, 0), 0) for stage, ns in _idle().items()}
    # each stage has waited for a core as long as it has waited at all
    share = max(1 - (_delayed() - delayed) / max(sum(idle.values()), 1), 0)
    for stage, took in idle.items():
        if took and stage.partition(" ")[0] in WAITING:
            busy.wall[stage] -= int(share * took)
            busy.wall["read"] += int(share * took)
    busy.batches += 1
    now = time.monotonic()
    is_worker = sys.modules["torch"].utils.data.get_worker_info()
    if is_worker and now - _written_at > WRITES_EVERY_S:
        _written_at = now
        _write()
    return batch


def _composed(whole: Call, self: Any, *inputs: Any, **named: Any) -> Any:
    if named or not self.transforms:
        return whole(self, *inputs, **named)
    for transform in self.transforms:
        outputs = timed(f"transforms {type(transform).__name__}", transform, *inputs)
        inputs = outputs if len(inputs) > 1 else (outputs,)
    return outputs


def _applied(whole: Call, self: Any, *inputs: Any, **named: Any) -> Any:
    return timed(f"transforms {type(self).__name__}", whole, self, *inputs, **named)


def _pillow(whole: Call, self: Any) -> Any:
    # asked for before each operation, and done once
    if not self.tile:
        return whole(self)
    busy.files.append(str(getattr(self.fp, "name", "")))
    return timed("decode Pillow", whole, self)


def _decoded(stage: str, whole: Call, *args: Any, **kwargs: Any) -> Any:
    path = next(iter((*args, *kwargs.values())), None)
    if isinstance(path, str):
        busy.files.append(path)
    return timed(stage, whole, *args, **kwargs)


def saved(whole: Call, *args: Any, **kwargs: Any) -> Any:
    """Tell undo.py of files that are written by C++ and Rust."""
    for to in (*args[1:2], kwargs.get("f"), kwargs.get("filename")):
        if isinstance(to, (str, os.PathLike)):
            sys.audit(WRITTEN, to)
    return whole(*args, **kwargs)


def _computes_in(whole: Call, self: Any) -> Any:
    if run is not None and self._enabled:
        run.autocast = str(self.fast_dtype)
    if not _is_switch_of_a_step(self):
        return whole(self)
    global _switched_on
    _switched_on = self
    before = self._enabled, self.fast_dtype, self._cache_enabled
    # weights that were cast in one step are others in the next
    self._enabled, self.fast_dtype, self._cache_enabled = True, tried_in, False
    try:
        return whole(self)
    finally:
        # __exit__ asks for none of them
        self._enabled, self.fast_dtype, self._cache_enabled = before


def _is_switch_of_a_step(region: Any) -> bool:
    """Return whether a region that the program enters with autocast(enabled=False) hides the autocast that is tried.

    One inside of it is meant to compute in fp32, and so are those of torch's own (custom_fwd).
    """
    if tried_in is None or _switched_on or region._enabled or region.device != "cuda":
        return False
    frame: Any = sys._getframe(3)
    # torch.cuda.amp.autocast's calls that of its parent
    while frame.f_code.co_name == "__enter__":
        frame = frame.f_back
    return not str(frame.f_globals.get("__name__")).startswith("torch.")


def _computed_in(whole: Call, self: Any, *error: Any) -> Any:
    global _switched_on
    if _switched_on is self:
        _switched_on = None
    return whole(self, *error)


_by_torchvision = functools.partial(_decoded, "decode torchvision.io")
_by_opencv = functools.partial(_decoded, "decode OpenCV")
HOOKS: Mapping[str, Mapping[str, Call]] = {
    # batches
    "torch.utils.data.dataloader": {
        "_BaseDataLoaderIter.__init__": _opened,
        "_BaseDataLoaderIter._reset": _begun,
        "_BaseDataLoaderIter.__next__": lambda whole, self: taken(
            whole, self, self._saturate()
        ),
    },
    "nvidia.dali.plugin.pytorch": {
        "DALIGenericIterator.__next__": lambda whole, self: taken(whole, self, self),
        "DALIRaggedIterator.__next__": lambda whole, self: taken(whole, self, self),
    },
    # steps: the optimiser has a hook of its own
    "torch.optim.optimizer": {},
    "torch.autograd": {"backward": _trains, "grad": _trains},
    "torch.amp.autocast_mode": {
        "autocast.__enter__": _computes_in,
        "autocast.__exit__": _computed_in,
    },
    # the time of dataset and collate, of each transform, and of decoding
    "torch.utils.data._utils.fetch": {
        "_MapDatasetFetcher.fetch": _fetched,
        "_IterableDatasetFetcher.fetch": _fetched,
    },
    "torchvision.transforms.transforms": {"Compose.__call__": _composed},
    "torchvision.transforms.v2._container": {"Compose.forward": _composed},
    "albumentations.core.transforms_interface": {"BasicTransform.__call__": _applied},
    "monai.transforms.transform": {"apply_transform": _applied},
    "torchvision.io.image": {
        "decode_image": _by_torchvision,
        "decode_jpeg": _by_torchvision,
        "read_image": _by_torchvision,
    },
    "PIL.ImageFile": {"ImageFile.load": _pillow},
    "cv2": {"imread": _by_opencv, "imdecode": _by_opencv},
    # files that are written
    "torch.serialization": {"save": saved},
    "torch.jit._serialization": {"save": saved},
    "safetensors.torch": {"save_file": saved},
}
"""Module -> its function or method -> what is called in place of that."""


def _executed(whole: Call, module: ModuleType) -> None:
    """Run a module that is imported, and wrap what HOOKS has of it."""
    whole(module)
    for place, wrapper in HOOKS[module.__name__].items():
        owner, _, name = place.rpartition(".")
        around(vars(module).get(owner, module), name, wrapper)
    if module.__name__ == "torch.optim.optimizer":
        _begin_run()


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in HOOKS else None
        if spec is not None and spec.loader is not None:
            around(spec.loader, "exec_module", _executed)
        return spec


def _begin_run() -> None:
    from saturate.why import phases

    phases.begin(Path(os.environ[FOLDER]))


def _forked() -> None:
    """A process that was forked has been busy with nothing so far."""
    global busy
    busy = Busy()
    # a rank that its launcher forks, or a worker, which takes no batches
    if run is not None:
        # an iterator that is deleted in here would wait for workers that are not its children
        _of_parents.append(run)
        _begin_run()


def begin() -> None:
    """Wrap what this process will import."""
    sys.meta_path.insert(0, _Finder())
    os.register_at_fork(after_in_child=_forked)
