"""What a program is put through under `saturate why`: in turns its own loop, the step alone and the loader alone.

    own      batches as the loader gives them                              -> rate
    replay   the step gets batches again that it has had, on the host      -> compute ceiling
    drain    batches are taken as fast as they come, and no step is made   -> loader ceiling

Each takes as many batches on every rank, which agree through the store of the group that the program has made.
Turns, since another program on the machine slows what it meets: the figures are medians over the turns.
"""

from __future__ import annotations

import atexit
import copy
import itertools
import json
import logging
import math
import multiprocessing
import os
import platform
import signal
import statistics
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from saturate.system import neighbours
from saturate.system.resources import cores
from saturate.why import decoders, hooks, restore, undo

TURNS = 3
WAITS_S = 300.0
"""That ranks wait for each other, each of which may be within a validation."""
RESULT = "result.json"
"""The file of a run's folder with what all ranks have measured."""
WINDOW_S = 3.0
WARM_UP = 16
"""Batches before anything is measured, and the least of a window."""
PROBE = 8
"""Batches of a phase by which its length is told."""
CREDITS = 4
"""Steps of an optimiser after a batch of a loader, by which it is the one that feeds training."""
UNSTEPPED = 64
"""Batches without any step of an optimiser, after which batches alone are counted."""
VALIDATES = 2
"""Batches of another loader in a row by which it is a validation's, and not one that feeds the step, too."""
NAMED = (
    "num_workers",
    "batch_size",
    "pin_memory",
    "persistent_workers",
    "prefetch_factor",
)
"""Settings of a DataLoader that are told."""

GO_ON = "go-on"
"""Has the program train on once it was measured."""
OWN, KEEP, END = object(), object(), object()
"""In place of a batch: the loader's next one, the same that is to be given again, and the end of an epoch."""


class NotMeasured(Exception):
    """Has the program go on as without us, for a reason that is told in the end."""


class Measured(KeyboardInterrupt):
    """Ends the program as Ctrl-C would, once it has been measured."""


def samples_of(batch: Any) -> int:
    """Return the length of the first tensor or array found in a batch, or of its first list of images; 0 where there
    is none.
    """
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    parts = parts_of(batch)
    firsts = [next(iter(tensors_of(part)), None) for part in parts]
    # tensors of three dimensions and one or three channels, or dictionaries with such
    if isinstance(batch, (list, tuple)) and firsts and all(map(_is_image, firsts)):
        return len(parts)
    return next((count for count in map(samples_of, parts) if count), 0)


def _is_image(tensor: Any) -> bool:
    shape: Any = getattr(tensor, "shape", ())
    return len(shape) == 3 and shape[0] in (1, 3)


def parts_of(batch: Any) -> list[Any]:
    """Return what a batch holds: a list, a tuple, or whatever has values, as dictionaries and BatchEncodings do."""
    if hasattr(batch, "keys") and hasattr(batch, "values"):
        return list(batch.values())
    return list(batch) if isinstance(batch, (list, tuple)) else []


def tensors_of(batch: Any) -> list[Any]:
    """Return all tensors of a batch."""
    if hasattr(batch, "is_pinned"):
        return [batch]
    return [tensor for part in parts_of(batch) for tensor in tensors_of(part)]


def length_of(loader: Any) -> int:
    """Return how many batches an epoch has; 0 where that is not known."""
    dataset = getattr(loader, "dataset", None)
    # PyTorch warns of those that were asked and have another length
    if isinstance(dataset, sys.modules["torch"].utils.data.IterableDataset):
        return 0
    try:
        return len(loader)
    except Exception:  # whatever a sampler says
        return 0


def signature(loader: Any) -> tuple[Any, ...]:
    """Return what is the same of a DataLoader that a program makes anew for each epoch; of others what no two share."""
    if not hasattr(loader, "sampler"):
        return (id(loader),)
    kinds = (type(one) for one in (loader, loader.dataset, loader.sampler))
    settings = (getattr(loader, name, None) for name in NAMED)
    return (*kinds, length_of(loader), *settings)


def _holds(loader: Any, iterator: Any) -> bool:
    """Return whether a loader has an iterator that never ends, and counts by itself, as those of Ultralytics do."""
    attributes = getattr(loader, "__dict__", {})
    return any(
        one is iterator for name, one in attributes.items() if name != "_iterator"
    )


class Kept:
    """A batch to be given again, whole also where the loop changes it in place."""

    def __init__(self, batch: Any) -> None:
        self.batch, self._whole = batch, _copied(batch)
        self._before = self._seen()

    def _seen(self) -> list[tuple[int, int]]:
        # those of inference mode have no version, and cannot be changed elsewhere
        return [
            (id(one), -1 if one.is_inference() else one._version)
            for one in tensors_of(self.batch)
        ]

    def again(self) -> Any:
        """Return the batch as the loader has given it."""
        if self._seen() != self._before:
            self.batch = _copied(self._whole)
            self._before = self._seen()
        return self.batch


def _copied(batch: Any) -> Any:
    """Return a copy of a batch, pinned where that is."""
    copies = {}
    for one in tensors_of(batch):
        copy_of_it = one.clone()
        copies[id(one)] = copy_of_it.pin_memory() if one.is_pinned() else copy_of_it
    try:
        return copy.deepcopy(batch, copies)
    except TypeError:  # it holds a lock, or a file
        return batch


class Run:
    """What one process is put through. Its threads take batches and make steps; one loader feeds them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        asked = json.loads(os.environ[hooks.ASKED])
        self.window_s: float = asked["seconds"] or WINDOW_S
        self.samples: int = asked["samples"] or 0  # a batch; 0: as it says
        self.goes_on: bool = asked["then"] == GO_ON
        self.launcher: int = asked["launcher"]
        self.autocast = ""  # the type it computes in; "": none was entered
        self._journal: undo.Journal | None = None  # from the first replay on
        self.facts: dict[str, Any] = {}
        self.windows: dict[str, list[dict[str, float]]] = {}
        self._loader: Any = None
        self._optimizers: dict[int, Any] = {}
        self._taken: Counter[int] = Counter()
        self._credits: Counter[int] = Counter()
        self._signature: tuple[Any, ...] = ()
        self._opened: dict[tuple[Any, ...], Any] = {}
        self._last: Any = None
        self._steps = 0
        self._phases = self._all()
        self._action: Any = None  # what the program gets next, where that is decided
        self._iterator: Any = None
        self._kept: list[Kept] = []
        self._drains = False
        self._agreed = 0
        self._of_others = 0  # batches of other loaders since one of this loader
        # when the first of these was asked for, and when an epoch has ended
        self._paused_at: float | None = None
        self._ended_at: float | None = None
        self._gaps_s: list[float] = []  # between two epochs of its own
        self._given = 0  # batches of this epoch
        self._largest = 0  # samples in a batch
        # whether these were others than the program's iterator has given, and the iterator that a drain has begun
        self._is_behind = False
        self._instead: Any = None
        self.refused = ""  # why it cannot be measured
        self._touched_at = time.perf_counter()
        self._open: dict[str, float] = {}

    # -- called by the hooks -----------------------------------------------------------------------------------

    def opened(self, loader: Any) -> None:
        """Keep a DataLoader for as long as it is iterated: a program that makes it anew may have its iterator alone."""
        self._opened[signature(loader)] = loader

    def stepped(self, optimizer: Any) -> None:
        """Count a step of an optimiser."""
        self._optimizers.setdefault(id(optimizer), optimizer)
        self._steps += 1
        self._touched_at = time.perf_counter()
        if self._loader is None and self._last is not None:
            key = id(self._last)
            self._credits[key] += 1
            if self._credits[key] == CREDITS:
                self._choose(self._last)

    def take(self, batches: Any, loader: Any, pull: Callable[[], Any]) -> Any:
        """Return the batch that the program gets where it asks `loader` for the next one, which is pull()."""
        if self._drains or batches is self._instead:
            return pull()
        if self._loader is None:
            batch = pull()
            # an evaluation before training
            if sys.modules["torch"].is_grad_enabled():
                self._last = loader
                self._taken[id(loader)] += 1
                if not self._steps and self._taken[id(loader)] == UNSTEPPED:
                    self._choose(loader)
            return batch
        self._taken[id(loader)] += 1
        # made anew for this epoch, and none that is taken from beside the other
        is_next = self._ended_at is not None or self._of_others >= WARM_UP
        if is_next and signature(loader) == self._signature:
            self._loader = loader
        if loader is not self._loader:
            self._of_others += 1
            if self._of_others == 1:
                self._paused_at = self._touched_at
            batch = pull()
            self._touched_at = time.perf_counter()
            return batch
        self._resume()
        self._iterator = batches
        try:
            if self._action is None:
                self._action = next(self._phases, END)
        except NotMeasured as error:
            self.refused, self._action = str(error), END
        if self._action is END:
            return self._over(pull)
        # workers of an epoch that is over end as soon as the program lets go of them
        self._iterator = None
        length = length_of(loader)
        if (
            length
            and self._given >= length
            and self._is_behind
            and not _holds(loader, batches)
        ):
            # an epoch is as long as in the program's own loop, which may count on it
            self._end_epoch()
            raise StopIteration
        if isinstance(self._action, Kept):
            self._is_behind = True
            batch = self._action.again()
            if self._ended_at is not None:
                self._waited(self._ended_at)
        else:
            began = time.perf_counter()
            try:
                batch = pull() if self._instead is None else next(self._instead)
            except StopIteration:
                # the program asks again, in its next epoch
                self._end_epoch()
                raise
            self._waited(began)
            if self._action is KEEP:
                # before the loop has it, which may change it
                self._kept.append(Kept(batch))
        count = self.samples or samples_of(batch)
        self._largest = max(self._largest, count)
        if self._open:
            self._open["samples"] += count
        self._action = None
        self._given += 1
        self._touched_at = time.perf_counter()
        return batch

    def _over(self, pull: Callable[[], Any]) -> Any:
        """End the program as Ctrl-C would, or let it go on."""
        global run, _was_measured
        if self.refused:
            self.write_seen()
        run = None
        # what has trained on batches again, and was not put back, would lose all that it saves from now on
        if self._journal is None or self._journal.is_over:
            return pull()
        _was_measured = True
        previous = sys.excepthook
        sys.excepthook = lambda kind, *error: (
            None if kind is Measured else previous(kind, *error)
        )
        if threading.current_thread() is threading.main_thread():
            raise Measured
        # wakes a main thread that waits for a batch of this one
        os.kill(os.getpid(), signal.SIGINT)
        raise StopIteration

    def _end_epoch(self) -> None:
        self._ended_at = time.perf_counter()
        self._given, self._instead, self._is_behind = 0, None, False

    def write_seen(self) -> None:
        """Leave how many batches and steps there were, for the line of a program that was not measured."""
        seen = {
            "batches": sum(self._taken.values()),
            "steps": self._steps,
            "refused": self.refused,
        }
        if seen["batches"]:
            (self.folder / "seen.json").write_text(json.dumps(seen))

    # -- phases ------------------------------------------------------------------------------------------------

    def _choose(self, loader: Any) -> None:
        self._loader, self._signature = loader, signature(loader)
        self._given = self._taken[id(loader)]
        settings = {name: getattr(loader, name, None) for name in NAMED}
        self.facts["loader"] = {
            "kind": type(loader).__name__,
            **{
                name: value
                for name, value in settings.items()
                if isinstance(value, (int, str))
            },
        }

    def _resume(self) -> None:
        """Count what has passed since a validation began as no time of training."""
        if self._of_others >= VALIDATES and self._paused_at is not None:
            paused_s = time.perf_counter() - self._paused_at
            if self._open:
                self._open["pause"] += paused_s
            if self._ended_at is not None:
                # a validation between two epochs is no part of their gap
                self._ended_at += paused_s
        self._of_others = 0
        self._paused_at = None

    def _waited(self, began: float) -> None:
        """Count the wait for a batch, that for an epoch's first one as the gap between two epochs."""
        now = time.perf_counter()
        name, since = "wait", began
        if self._ended_at is not None:
            name, since = "gap", self._ended_at
            if not isinstance(self._action, Kept):
                self._gaps_s.append(now - since)
            self._ended_at = None
        if self._open:
            self._open[name] += now - since

    def _all(self) -> Iterator[Any]:
        """Yield OWN where the program gets the loader's next batch, and else the batch that it gets; then end it."""
        yield from [OWN] * WARM_UP
        if not self._largest:
            raise NotMeasured(
                "nobody can see how many samples a batch has: --samples N"
            )
        before, others = None, neighbours.cpu_time(self.launcher)
        for turn in range(TURNS):
            yield from self._window("own", itertools.repeat(OWN))
            if turn == 0:
                yield from [KEEP] * 2
                # one ring: a loop that looks ahead by a batch has not changed the last one yet
                again = itertools.cycle(self._kept)
                if self.goes_on and not self._refuses():
                    before = restore.Kept([*self._optimizers.values()])
                self._journal = undo.Journal(self.folder / f"files-{os.getpid()}")
            yield from self._window("replay", again)
            if turn == 0:
                yield from self._split(again)
                yield from self._on_device(again)
            given = self._iterator if self._instead is None else self._instead
            iterator = self._drain("drain", given)
            self._instead = self._instead if iterator is given else iterator
        self._keep_workers()
        # below a quota, cores that others take are not missing here
        if cores() == len(os.sched_getaffinity(0)):
            now = neighbours.cpu_time(self.launcher)
            self.facts["other_cores"] = neighbours.cores_taken(others, now)
        self._write()
        if before is not None and self._journal is not None:
            before.put_back()
            self._journal.is_over = True
            # one of the ranks that have this folder
            folders = self._gathered(str(self.folder))
            if folders.index(str(self.folder)) == self._rank():
                undo.back(self.folder)
            self._gathered("")

    def _refuses(self) -> bool:
        """Say so where the program counts what cannot be put back."""
        if who := restore.refused():
            print(
                f"saturate why: --then go-on: {who} counts steps by itself, so the program ends once it is measured",
                file=sys.stderr,
            )
        return bool(who)

    def _window(self, name: str, actions: Iterator[Any]) -> Iterator[Any]:
        """Yield actions for a window of about `window_s`, behind as many as show how long they take."""
        began = self._synchronised()
        probe = self._whole(PROBE)
        for _ in range(probe):
            yield next(actions)
        each_s = (self._synchronised() - began) / probe
        if length := length_of(self._loader):
            # short epochs take the time to begin them
            each_s = max(each_s, self._gap_s() / length)
        each_s = self._agree(each_s)
        count = self._whole(max(WARM_UP, math.ceil(self.window_s / each_s)))
        # to read it takes long where there are many processes, in which the queue of the workers fills
        cpu_s, since = sum(neighbours.tree(self.launcher).values()), time.perf_counter()
        for _ in range(count // 4):
            yield next(actions)
        steps, before = self._steps, hooks.read(self.folder)
        began = self._synchronised()
        self._open = dict.fromkeys(("samples", "wait", "pause", "gap"), 0.0)
        for _ in range(count):
            yield next(actions)
        self._open["seconds"] = self._synchronised() - began
        cpu_s = sum(neighbours.tree(self.launcher).values()) - cpu_s
        self._open["cores"] = cpu_s / (time.perf_counter() - since)
        self._open |= {"batches": count, "steps": self._steps - steps}
        self._close(name, self._open, before)
        self._open = {}

    def _gap_s(self) -> float:
        """Return the usual time from an epoch's end to the next one's first batch."""
        return statistics.median(self._gaps_s) if self._gaps_s else 0.0

    def _whole(self, count: int) -> int:
        """Return so many batches or a few more, that every worker makes as many: they begin and end together."""
        workers = self.facts["loader"].get("num_workers") or 1
        return int(workers * math.ceil(count / workers))

    def _close(self, name: str, window: dict[str, float], before: hooks.Busy) -> None:
        """Keep a window, and what workers were busy with since `before`."""
        self.windows.setdefault(name, []).append(window)
        now = hooks.read(self.folder)
        stages = self.facts.setdefault("stages", {})
        of_phase = stages.setdefault(name, {**vars(hooks.Busy()), "files": []})
        of_phase["batches"] += now.batches - before.batches
        of_phase["wall"].update(now.wall - before.wall)
        of_phase["cpu"].update(now.cpu - before.cpu)

    def _split(self, again: Iterator[Any]) -> Iterator[Any]:
        """Time forward, backward and optimiser of a few steps, each of which the device has ended by then."""
        import torch

        marks: list[tuple[str, float]] = []

        def mark(name: str) -> None:
            marks.append((name, self._synchronised()))

        def backward(*args: Any, **kwargs: Any) -> Any:
            mark("forward")
            result = whole(*args, **kwargs)
            mark("backward")
            return result

        whole = torch.autograd.backward
        torch.autograd.backward = backward
        hook: Any = sys.modules["torch.optim.optimizer"]  # torch.optim hides its name
        pre = hook.register_optimizer_step_pre_hook(lambda *_: mark("loop"))
        post = hook.register_optimizer_step_post_hook(lambda *_: mark("update"))
        times = 3 * len(self._kept)
        try:
            for kept in itertools.islice(again, times):
                mark("loop")
                yield kept
            mark("loop")
        finally:
            torch.autograd.backward = whole
            pre.remove()
            post.remove()
        split: dict[str, float] = {}
        for (_, before), (name, now) in itertools.pairwise(marks):
            split[name] = split.get(name, 0.0) + 1e3 * (now - before) / times
        self.facts["split_ms"] = split

    def _on_device(self, again: Iterator[Any]) -> Iterator[Any]:
        """Measure on a GPU the copy of a batch, the kernels of a step without their launches, its arithmetic, and
        where it waits for the device.
        """
        import torch

        if not torch.cuda.is_initialized():
            return
        self._synchronised()
        device = torch.cuda.get_device_properties(torch.cuda.current_device())
        # torch has it since 2.4
        gpu = neighbours.gpu_handle(str(getattr(device, "uuid", "")))
        self.facts["shared"] = neighbours.gpu_shared(gpu, self.launcher)
        batch = self._kept[0].batch
        tensors = [one for one in tensors_of(batch) if not one.is_cuda]
        if tensors:
            began = self._synchronised()
            for _ in range(PROBE):
                for tensor in tensors:
                    tensor.cuda(non_blocking=True)
            copy_s = (self._synchronised() - began) / PROBE
            self.facts["transfer_ms"] = 1e3 * copy_s
            self.facts["pinned"] = all(tensor.is_pinned() for tensor in tensors)
        yield from self._syncs(next(again))
        yield from self._kernels(again)

    def _syncs(self, kept: Kept) -> Iterator[Any]:
        """Count the places of the program at which a step waits for the device."""
        import torch

        mode = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield kept
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        places = Counter(
            f"{Path(one.filename).name}:{one.lineno}"
            for one in caught
            if "synchronizing CUDA operation" in str(one.message)
        )
        self.facts["syncs"] = dict(places.most_common(3))

    def _kernels(self, again: Iterator[Any]) -> Iterator[Any]:
        """Time the kernels of a step one behind another, and count its arithmetic."""
        import torch
        from torch.utils.flop_counter import FlopCounterMode

        from saturate.report import kernels

        window = self.windows["replay"][0]
        step_s = window["seconds"] / window["batches"]
        found = []
        for _ in range(kernels.TIMES):
            with kernels.held(step_s) as took:
                yield next(again)
            found.append(took[0])
        self.facts["kernel_ms"] = min(found)
        if "torch._inductor.compile_fx" in sys.modules:
            return  # under the counter it would be compiled again
        with FlopCounterMode(display=False) as counter:
            yield next(again)
        flops, of_convolutions = kernels.counted(counter)
        # no optimiser was seen where batches alone are counted
        dtypes = self._settings()["dtypes"] or [str(torch.get_default_dtype())]
        dtype = self.autocast or dtypes[0]
        device = torch.device("cuda", torch.cuda.current_device())
        peak = kernels.peak(dtype.removeprefix("torch."), device)
        self.facts["arithmetic_ms"] = 1e3 * flops / peak
        self.facts["convolutions"] = of_convolutions / max(flops, 1.0)

    def _keep_workers(self) -> None:
        """Drain the loader once more with workers that live on, where epochs are so short that this may pay."""
        loader = self._loader
        length = length_of(loader)
        kept = getattr(loader, "persistent_workers", None)
        if kept is not False or not loader.num_workers or not self._gaps_s:
            return
        window = self.windows["own"][-1]
        if length > PROBE * window["batches"]:
            return
        # PyTorch lets nobody change it by its name
        vars(loader)["persistent_workers"] = True
        self._drain("kept", self._next_epoch())
        vars(loader)["persistent_workers"] = False
        loader._iterator = None

    def _drain(self, name: str, given: Any) -> Any:
        """Take batches as fast as they come, behind those that lie ready; return the iterator of the last one."""
        self._drains = True
        asked = self.facts["loader"]
        ready = (asked.get("prefetch_factor") or 0) * (asked.get("num_workers") or 0)
        # of whole epochs with their begin, and else of what comes behind the first batch of each worker
        names = ("whole", "whole_s", "samples", "batches", "pause", "gap")
        window = dict.fromkeys(names, 0.0)
        before = hooks.read(self.folder)
        began = time.perf_counter()
        until = began + 4 * self.window_s
        iterator = given
        taken_s: list[float] = []  # of those that lie ready
        epoch_at: float | None = None
        epoch, begins = 0, 0
        while (asked_at := time.perf_counter()) < until or not self._is_whole(window):
            batch = next(iterator, END)
            if batch is END:
                if epoch_at is not None:
                    window["whole"] += epoch
                    window["whole_s"] += asked_at - epoch_at
                epoch_at, epoch, begins = asked_at, 0, self._whole(1)
                iterator = self._next_epoch()
                window["gap"] += time.perf_counter() - asked_at
                continue
            count = self.samples or samples_of(batch)
            epoch += count
            if begins:
                begins -= 1
                window["gap"] += time.perf_counter() - asked_at
            elif len(taken_s) < ready:
                taken_s.append(time.perf_counter() - asked_at)
                before = hooks.read(self.folder)
                began = time.perf_counter()
                until = began + self.window_s
                window = dict.fromkeys(names, 0.0)
                epoch_at = None
            else:
                window["samples"] += count
                window["batches"] += 1
        window["seconds"] = time.perf_counter() - began
        # not all lie ready where the loader is slow
        window["queue"] = min(taken_s, default=0.0)
        self._close(name, window, before)
        self._drains, self._is_behind = False, True
        return iterator

    def _is_whole(self, window: dict[str, float]) -> bool:
        made = int(window["batches"])
        return made == self._whole(made)

    def _next_epoch(self) -> Any:
        """Return an iterator of the loader's next epoch; a subclass's own would also move its batches."""
        base = sys.modules["torch.utils.data"].DataLoader
        if isinstance(self._loader, base):
            return base.__iter__(self._loader)
        if hasattr(self._loader, "reset"):  # DALI's
            self._loader.reset()
        return iter(self._loader)

    def _write(self) -> None:
        """Write what all ranks have measured."""
        # no step in a whole window: its updates are made by hand, or inside of a graph
        self.facts["counts_batches"] = not self.windows["own"][0]["steps"]
        self.facts["epoch"] = {
            "batches": length_of(self._loader),
            "gap_s": self._gap_s(),
        }
        busy = hooks.read(self.folder)
        by_pillow = "decode Pillow" in busy.wall
        self.facts["decoders"] = decoders.measured(sorted(busy.files), by_pillow)
        own = {"windows": self.windows, **self.facts, "settings": self._settings()}
        # the same on every host: each has a rank that waits for it
        ranks = [json.loads(each) for each in self._gathered(json.dumps(own))]
        part = self.folder / f"{RESULT}-{os.getpid()}"
        part.write_text(json.dumps(ranks))
        part.replace(self.folder / RESULT)
        # the rank that has the store must not leave before the others have read it
        self._gathered("")

    # -- what it asks ------------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        """Return what of the step decides its rate: device, precision, memory format, compilation."""
        import torch

        parameters = [
            parameter
            for optimizer in self._optimizers.values()
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        kernels = [one for one in parameters if one.ndim == 4 and one.shape[-1] > 1]
        defaults = [one.defaults for one in self._optimizers.values()]
        last = torch.channels_last
        device = parameters[0].device if parameters else torch.device("cpu")
        on_gpu = device.type == "cuda"
        return {
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "gpu": torch.cuda.get_device_name(device) if on_gpu else None,
            "dtypes": sorted({str(one.dtype) for one in parameters}),
            "autocast": self.autocast,
            "channels_last": any(
                one.is_contiguous(memory_format=last) and not one.is_contiguous()
                for one in kernels
            ),
            "has_convolutions": bool(kernels),
            "fused": any(one.get("fused") for one in defaults),
            "compiled": "torch._inductor.compile_fx" in sys.modules,
            "cores": cores(),
        }

    def _synchronised(self) -> float:
        """Return the time once the device has done what it was given."""
        torch = sys.modules["torch"]
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return time.perf_counter()

    def _agree(self, value: float) -> float:
        """Return the largest of all ranks' values."""
        return max(map(float, self._gathered(repr(value))))

    def _gathered(self, value: str) -> list[str]:
        """Return what each rank gives, by the store of the program's own group."""
        dist = self._group()
        if dist is None:
            return [value]
        store = dist.distributed_c10d._get_default_store()
        self._agreed += 1
        keys = [
            f"saturate.why/{self._agreed}/{rank}"
            for rank in range(dist.get_world_size())
        ]
        store.set(keys[dist.get_rank()], value)
        try:
            store.wait(keys, timedelta(seconds=WAITS_S))
        except RuntimeError:
            raise NotMeasured("not every rank takes batches of a loader") from None
        return [store.get(key).decode() for key in keys]

    def _group(self) -> Any:
        import torch.distributed as dist

        return dist if dist.is_available() and dist.is_initialized() else None

    def _rank(self) -> int:
        dist = self._group()
        return dist.get_rank() if dist else 0


def _leave() -> None:
    """End a program that was measured with exit code 0, whatever it does with Ctrl-C; of another leave its counts."""
    if run is not None:
        run.write_seen()
    if _was_measured:
        # a forkserver's would live on
        for worker in multiprocessing.active_children():
            worker.terminate()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


_was_measured = False
run: Run | None = None
"""What this process is put through; None outside of `saturate why`, and in workers of a loader."""


def begin(folder: Path) -> None:
    """Put this process through the phases, once a loader feeds steps."""
    global run
    if run is None:
        atexit.register(_leave)
    run = Run(folder)
