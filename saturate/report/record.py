"""Files of a run that programs read: config.yaml, metrics.jsonl, summary.json, each complete or absent.

Must not know: what the figures mean, TensorBoard, the console.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import json
import math
import os
import tempfile
import time
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from saturate.contracts import UserError, counted, utf8
from saturate.settings.run import Run
from saturate.system import storage

FAILED_SAMPLES = "failed.txt"
"""Samples that could not be decoded: split, tab, name."""
OF_A_RUN = {"rate", "validation", "efficiency"}
"""Keys that every summary.json of a run has."""
NO_FIGURES = ("kind", "step", "epoch", "failed")
"""Entries of a validation's line in metrics.jsonl beside its figures."""
RESULTS = "results.csv"
"""A row a validation: epoch, step, what was trained, the task's figures."""
REJECTED = "rejected.txt"
"""Samples that the scans have left out: split, tab, name, tab, why."""
METRICS = "metrics.jsonl"
"""A line a point: training, windows of the rate, validations."""
TRAIN_BATCH = "train_batch.jpg"
"""The first batch as the network gets it."""
VAL_BATCH = "val_batch.jpg"
"""Images of the last validation: truth beside what was found."""
BEGUN = (
    "config.yaml",
    METRICS,
    FAILED_SAMPLES,
    REJECTED,
    "trackers.json",
    TRAIN_BATCH,
    "events.out.tfevents.*",
)
"""Files that a run has before its first checkpoint: with --resume auto it may begin anew beside these."""
VALIDATED = (
    *("summary.json", "results.*", "detections*.json", "classes.csv"),
    *("val_predictions.csv", "confusion.*", "mistakes.png", VAL_BATCH, "report.html"),
)
"""Files of validations. They may be there before last.pt, which is written beside, or which a full disk has not
taken.
"""
PREDICTED = ("predictions.*", "detections*.json", "images.json")
"""Tables of --predict, which the next one may replace."""
CHECKPOINTS = ("best.pt", "last.pt", "*step-*.pt")
LEFT_BY_A_RUN = (
    *BEGUN,
    *PREDICTED,
    *CHECKPOINTS,
    *VALIDATED,
    *("*.pt2", "*.onnx"),
)
"""Files that runs, and programs that are given a run, leave in its folder. Beside any of them no other run begins."""


def folder(run: Run, resume: Path | None, *, name: str) -> Path:
    """Return --output, or a new folder below runs/: by date, so that each is a row of TensorBoard there.

    Evaluating a run's checkpoint (`resume`) goes below that run's own folder, whose files stay as they are.
    """
    now = time.strftime("%Y%m%d-%H%M%S")
    if run.folder is None:
        # timm/NAME and package.module:function have letters that no folder should
        new = Path("runs") / f"{now}-{name.replace('/', '-').replace(':', '-')}"
    elif run.uses and resume and resume.parent == run.folder:
        new = run.folder / f"{'predict' if run.predict else 'evaluate'}-{now}"
    else:
        return run.folder
    names = [new, *(new.with_name(f"{new.name}-{n}") for n in range(2, 100))]
    return next((path for path in names if not path.exists()), new)


# --- the folder is one run's --------------------------------------------------


@contextlib.contextmanager
def claimed(
    folder: Path,
    *,
    resuming: bool,
    may_hold: Sequence[str] = (),
    patience_s: float = 0.0,
) -> Iterator[None]:
    """Hold `folder` inside, so that no other process of this machine claims it.

    It is made where it is not there; if it is still empty in the end, it goes again. Rank 0 claims.
    A run that is not `resuming` from a checkpoint finds no file of another one there but what `may_hold` names.
    Raises UserError when the folder is claimed for longer than `patience_s`, holds another run, is no folder, or
    cannot be written.
    """
    made = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
    with contextlib.ExitStack() as stack:
        stack.callback(remove_empty, made)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder, f"--output {folder}", patience_s))
            _check(folder, LEFT_BY_A_RUN if resuming else may_hold)
        except OSError as error:
            raise unwritable(folder, error) from None
        yield


def remove_empty(folders: list[Path]) -> None:
    """Remove folders up to the first that is not empty, or not there."""
    with contextlib.suppress(OSError):
        for path in folders:
            path.rmdir()


_locks: set[int] = set()
"""Descriptors of the folders that this process has locked."""


def _in_child() -> None:
    while _locks:
        os.close(_locks.pop())


# a worker that outlives a killed run must not hold its folder
os.register_at_fork(after_in_child=_in_child)


def _flocks(descriptor: int) -> bool:
    """Whether this process has the lock now, or there are none there."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@contextlib.contextmanager
def locked(folder: Path, named: str, patience_s: float = 0.0) -> Iterator[None]:
    """Hold the lock of `folder` inside; a file system without locks is taken as it is.

    Raises UserError, which begins with `named`, where another process has held it for `patience_s`.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    _locks.add(descriptor)
    try:
        until = time.monotonic() + patience_s
        while not _flocks(descriptor):
            if time.monotonic() >= until:
                raise UserError(
                    f"{named}: another run is writing there; wait for its end, or name another folder",
                )
            time.sleep(0.2)
        yield
    finally:
        _locks.remove(descriptor)
        os.close(descriptor)


def _check(folder: Path, may_hold: Sequence[str]) -> None:
    """Refuse a folder that cannot be written, or has files of a run beside those that it `may_hold`."""

    def matching(patterns: Sequence[str]) -> set[str]:
        names = {path.name for one in patterns for path in folder.glob(one)}
        return {name for name in names if not name.startswith(".")}

    if held := sorted(matching(LEFT_BY_A_RUN) - matching(may_hold)):
        checkpoints = sorted(matching(CHECKPOINTS))
        remedy = "name another folder"
        if matching(["last.pt", "step-*.pt"]) or matching(BEGUN).issuperset(held):
            remedy = f"continue it with --resume auto, or {remedy}"
        elif checkpoints:  # best.pt, or one of --keep-best
            named = f"--resume {folder / checkpoints[0]}"
            remedy = f"it has no last.pt: go on from {named}, or {remedy}"
        raise UserError(f"--output {folder} holds a run ({held[0]}); {remedy}")
    with tempfile.TemporaryFile(dir=folder) as file:
        # with content: on a full disk an empty file can still be made
        file.write(bytes(1 << 16))
        file.flush()
        os.fsync(file.fileno())


def keep_aside(folder: Path) -> None:
    """Move the files of validations of which there is no checkpoint, and a copy of metrics.jsonl, into a folder below
    `folder`, where a run begins anew; a line says so. Raises UserError.
    """
    held = [path for one in VALIDATED for path in folder.glob(one)]
    if not held:
        return
    aside = folder / time.strftime("earlier-%Y%m%d-%H%M%S")
    try:
        storage.keep_aside(aside, held, [folder / METRICS])
    except OSError as error:
        raise unwritable(folder, error) from None
    note = f"--output {folder} has no checkpoint, and the run begins anew"
    storage.notify(f"{note}; figures of before are in {aside}")


class Unwritten(UserError):
    """The storage has failed a write, such as a disk that is full. That ends no training: a file of the run may
    wait."""


def unwritable(folder: Path, error: OSError) -> UserError:
    """Return the one line for a failed write into the run folder, whose files are unharmed."""
    if storage.is_full(error):
        remedy = "free some, or name another folder"
        if (folder / "last.pt").is_file():
            remedy = "what is there is complete: free some, then --resume auto"
        return Unwritten(f"--output {folder}: no space left; {remedy}")
    kind = Unwritten if storage.failed(error) else UserError
    reason = (error.strerror or str(error)).lower()
    return kind(
        f"--output {folder}: cannot be written ({reason}); name a folder that can"
    )


# --- files that are whole at any time -----------------------------------------


class Appender:
    """A file that only grows, by whole pieces. Where the storage fails they wait in memory; any other error raises
    UserError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: deque[bytes] = deque()
        try:
            self._open()
            self._end = os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            raise unwritable(path.parent, error) from None

    def append(self, piece: bytes) -> None:
        """Add a piece; it is whole in the file when this returns, if the storage takes it."""
        self._waiting.append(piece)
        self._write()

    def _open(self) -> None:
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _write(self) -> None:
        try:
            while self._waiting:
                if self._file < 0:
                    self._open()
                piece = self._waiting[0]
                written = os.lseek(self._file, self._end, os.SEEK_SET) - self._end
                while written < len(piece):
                    written += os.write(self._file, piece[written:])
                self._end += written
                self._waiting.popleft()
        except OSError as error:
            # a piece that does not fit is taken back
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)
            self._close()  # the next one opens it anew: a handle may have become stale
            _notify_waiting(self.path.parent, error)

    def _close(self) -> None:
        with contextlib.suppress(OSError):  # of the storage, which has been said
            os.close(self._file)
        self._file = -1

    def close(self) -> int:
        """Bring all pieces onto the disk and close the file; again without effect. Return how many are lost."""
        self._write()
        if self._waiting:
            count = counted(len(self._waiting), "piece")
            storage.notify(f"{self.path}: cannot be written, {count} lost")
        if self._file >= 0:
            with contextlib.suppress(OSError):  # not every file system can
                os.fsync(self._file)
            self._close()
        return len(self._waiting)


def replace(path: Path, content: bytes) -> None:
    """Write to a new name, sync, rename: `path` is the old or the new content, never a part.

    Raises UserError.
    """
    # TensorBoard reads every name with "tfevents" in it; and ranks may write beside each other
    new = path.with_name(f".unfinished-{zlib.crc32(os.fsencode(path.name)):08x}")
    try:
        storage.replace(path, new, lambda file: file.write(content))
    except OSError as error:
        raise unwritable(path.parent, error) from None


_waiting: dict[Path, bytes] = {}
"""Files of runs that the storage has not taken yet."""
_known: dict[Path, bytes] = {}
"""What files of runs had when they were read or written last, for when the storage does not say it."""


def replace_in_time(path: Path, content: bytes) -> None:
    """Do as `replace`; where the storage fails the file waits in memory for the next of these calls."""
    _waiting[path] = _known[path] = content
    for each, pending in [*_waiting.items()]:
        try:
            replace(each, pending) if pending else _remove(each)
        except Unwritten as error:
            _notify_waiting(each.parent, error)
        else:
            del _waiting[each]


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(path.parent, error) from None


def _notify_waiting(folder: Path, error: OSError | UserError) -> None:
    """Say once that writes wait for the storage. Raises UserError where an error is not the storage's."""
    line = unwritable(folder, error) if isinstance(error, OSError) else error
    if not isinstance(line, Unwritten):
        raise line from None
    reason = str(line).partition(";")[0]
    wait = "training goes on, and what it writes waits in memory"
    storage.notify_once("waits", f"{reason}; {wait}")


def _content(path: Path) -> bytes:
    """Return what a file of a run has, or will have; b"" where there is none."""
    if path in _waiting:
        return _waiting[path]
    try:
        _known[path] = path.read_bytes()
    except FileNotFoundError:
        _known[path] = b""
    except OSError as error:
        if path not in _known:
            raise unwritable(path.parent, error) from None
        _notify_waiting(path.parent, error)
    return _known[path]


def plain(value: object) -> Any:
    """Return `value` as JSON has it: NumPy scalars as Python's, paths as text, texts as UTF-8.

    What is not finite becomes 'nan', 'inf' or '-inf', which float() reads.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, Mapping):
        return {utf8(str(name)): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | np.ndarray):
        return [plain(item) for item in value]
    return utf8(str(value)) if isinstance(value, str | os.PathLike) else value


class Record:
    """The run's files in a folder that is `claimed`, written by rank 0; elsewhere `enabled` is False and
    nothing happens.

    A resumed run (`resume_step`: last step of the checkpoint) cuts metrics.jsonl after that step; a point
    that is there already (a validation repeated at the checkpoint's own step) is not written twice. Figures of
    validations before one that goes on `anew` are not comparable with its own, and are left out from then on.
    """

    def __init__(
        self,
        folder: Path,
        enabled: bool = True,
        resume_step: int | None = None,
        *,
        anew: bool = False,
    ) -> None:
        self.folder = folder
        self.enabled = enabled
        self.lost = False  # whether the storage has not taken a file or a part of one
        # kind and step of the points that are there already
        self._recorded: set[tuple[str, int]] = set()
        self._points: Appender | None = None
        # what metrics.jsonl keeps: epoch and figures of each validation, losses since the last, the last of the others
        self.validations: list[tuple[int | None, dict[str, Any]]] = []
        # step, and what the wall time of all attempts had gone to by then; those behind the checkpoint, too
        self.spent: list[tuple[int, dict[str, Any]]] = []
        self.train_losses: list[float] = []
        self.lr: float | None = None
        self.rate: float | None = None
        # the same, where there was no validation since
        self.new_rate: float | None = None
        if enabled:
            if resume_step is not None:
                self._cut(resume_step)
            self._points = Appender(folder / METRICS)
            for name in (RESULTS, FAILED_SAMPLES, REJECTED):
                _content(folder / name)  # what is added to is known
            if anew:
                self.point("anew", resume_step or 0, {})
                self.validations.clear()

    def point(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Add a line to metrics.jsonl, complete there when this returns; floats read back bit for bit."""
        if self._points is not None and (kind, step) not in self._recorded:
            line = {"kind": kind, "step": step, **plain(values)}
            self._points.append(json.dumps(line, allow_nan=False).encode() + b"\n")

    def file(self, name: str, content: bytes) -> None:
        """Write a file of the run's folder, complete or as it was before; without content there is none.

        Where the storage fails it waits.
        """
        if self.enabled:
            replace_in_time(self.folder / name, content)

    def summary(self, values: Mapping[str, Any]) -> None:
        """Write summary.json."""
        text = json.dumps(plain(values), indent=2, allow_nan=False)
        self.file("summary.json", f"{text}\n".encode())

    def lines(self, name: str, lines: Sequence[str]) -> None:
        """Add those lines to a file of the run's folder that it has not."""
        known = _content(self.folder / name).splitlines()
        for line in lines:
            line = line.replace("\n", "\\n").replace("\r", "\\r")
            known.append(utf8(line).encode())
        self.file(name, b"".join(line + b"\n" for line in dict.fromkeys(known)))

    def row(self, name: str, cells: Mapping[str, Any]) -> None:
        """Write a row of a table, whose `step` takes the place of that step's and of all later ones.

        What it does not know (None) stays as that step's row had it: a run that is resumed behind its last
        step validates again, and knows no learning rate.
        """
        rows: list[Mapping[str, Any]] = []
        # a spreadsheet may have saved it in another encoding
        before = _content(self.folder / name).decode(errors="replace")
        for row in csv.DictReader(io.StringIO(before, newline="")):
            step = row.get("step") or ""
            if not step.isdecimal() or int(step) > cells["step"]:
                continue
            if int(step) < cells["step"]:
                rows.append(row)
            else:
                cells = {
                    key: row.get(key) if cell is None else cell
                    for key, cell in cells.items()
                }
        text = io.StringIO(newline="")
        table = csv.DictWriter(
            text, list(cells), extrasaction="ignore", lineterminator="\n"
        )
        table.writeheader()
        table.writerows([*rows, cells])
        self.file(name, text.getvalue().encode())

    def earlier_summary(self) -> dict[str, Any] | None:
        """Return the summary that an earlier part of the run has left, None where there is none to read."""
        path = self.folder / "summary.json"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        is_a_run = isinstance(content, dict) and content.keys() >= OF_A_RUN
        return content if is_a_run else None

    def close(self) -> None:
        """Close metrics.jsonl; again without effect. What waits is tried for seconds, then it is lost, and named."""
        for pause_s in (0.0, *storage.ENDING_S):
            if _waiting:
                time.sleep(pause_s)
                replace_in_time(*next(iter(_waiting.items())))
        for path in _waiting:
            storage.notify(f"{path}: cannot be written, and is lost")
            self.lost = True
        _waiting.clear()
        if self._points is not None:
            self.lost |= self._points.close() > 0
            self._points = None

    def _cut(self, resume_step: int) -> None:
        """Cut metrics.jsonl down to whole lines up to the step."""
        path = self.folder / METRICS
        lines = []
        before = path.read_bytes() if path.exists() else b""
        for line in before.splitlines(keepends=True):
            try:
                point = json.loads(line)
                kind, step = point["kind"], point["step"]
            except (ValueError, TypeError, KeyError):
                continue  # half a line, left by a kill in mid-write
            if "spent" in point:
                self.spent.append((step, point["spent"]))
            if step > resume_step or not line.endswith(b"\n"):
                continue
            lines.append(line)
            if kind == "train":
                losses = map(float, point.get("losses", ()))
                self.train_losses += [loss for loss in losses if not math.isnan(loss)]
                self.lr = point.get("lrs", [None])[-1]
            if kind == "anew":
                self.validations.clear()
            if kind == "window":
                self.rate = self.new_rate = point.get("rate")
            if kind == "val":
                self.new_rate = None
                self.train_losses.clear()
                # a figure that is not finite is a word there
                figures = {
                    name: float(value) if isinstance(value, str) else value
                    for name, value in point.items()
                    if name not in NO_FIGURES
                }
                self.validations.append((point.get("epoch"), figures))
            if step == resume_step and kind not in ("attempt", "end"):
                self._recorded.add((kind, step))
        after = b"".join(lines)
        if after != before:
            replace(path, after)
