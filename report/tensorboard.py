"""What TensorBoard shows of a run: scalars, images, the HPARAMS row, the layout, in the run's own folder.

Must not know: how a figure came about. Events are written here, at once, rather than through SummaryWriter:
its thread dies with a traceback when the disk is full and leaves half a record, and its `purge_step` purges
nothing in TensorBoard 2.21's Python server and only tags that come again in its fast one (both measured), so
a resumed curve was doubled.
"""

from __future__ import annotations

import io
import math
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from contracts import Array, Reported
from report import stages
from report.record import Appender, replace
from report.summary import PHASES

# The HPARAMS page takes its columns from the first run it meets and drops what only others have
# (tensorboard#5596, pytorch#32651, #39250). So every run names all of these, and each keeps its type.
FIRST = ("arch", "batch_size", "loader", "precision", "world_size")
"""The page opens with five columns of settings, which are these, and five of metrics."""
SETTINGS: dict[str, type] = {
    "arch": str,
    "batch_size": int,
    "loader": str,
    "precision": str,
    "world_size": int,
    "task": str,
    "reader": str,
    "compile": bool,
    "graphs": bool,
    "accumulate": int,
    "image_size": int,
    "workers": int,
    "pin_memory": bool,
    "optimizer": str,
    "lr": float,
    "epochs": int,
    "read_delay_ms": float,
    "gpu": str,
}


class Scalar(NamedTuple):
    """A curve of the rate or the machine: its tag, and the title of the chart that shows it with others.

    `column`: it is a column of the HPARAMS page, before those of the validation or behind them.
    """

    tag: str
    chart: str
    column: Literal["", "first", "last"] = ""


SCALARS = (
    Scalar("throughput/samples_per_s", "rate and its ceilings", "first"),
    Scalar("throughput/compute_ceiling", "rate and its ceilings", "first"),
    Scalar("throughput/loader_ceiling", "rate and its ceilings", "first"),
    Scalar("throughput/efficiency", "efficiency", "first"),
    Scalar("throughput/per_gpu", "per GPU", "last"),
    *(
        Scalar(
            f"time/{phase}_ms", "one step, ms", "last" if phase == "data_wait" else ""
        )
        for phase in PHASES
    ),
    *(Scalar(f"stage/{name}", "stages of the loader") for name in stages.NAMES),
    Scalar("gpu/utilisation", "utilisation", "last"),
    Scalar("gpu/power_w", "power, W"),
    Scalar("gpu/sm_mhz", "SM clock, MHz"),
    Scalar("energy/joules_a_sample", "energy", "last"),
    Scalar("memory/allocated_gib", "GiB"),
    Scalar("memory/reserved_gib", "GiB"),
    Scalar("memory/device_gib", "GiB", "last"),
    Scalar("memory/host_gib", "GiB", "last"),
)
"""Curves in the order of their charts and columns."""


def metrics(compared: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics of the HPARAMS page, by their scalars' tags.

    `compared`: figures of every task, whichever is run.
    """
    first, last = (
        [scalar.tag for scalar in SCALARS if scalar.column == column]
        for column in ("first", "last")
    )
    return (*first, *(f"val/{name}" for name in compared), *last)


def layout(task: Reported) -> dict[str, dict[str, list[str]]]:
    """Return the charts of a task's runs: {group of tags: {title of a chart: names in the group}}."""
    charts: dict[str, dict[str, list[str]]] = {}
    for scalar in SCALARS:
        group, _, name = scalar.tag.partition("/")
        charts.setdefault(group, {}).setdefault(scalar.chart, []).append(name)
    for figure in task.figures:
        if figure.chart:
            names = charts.setdefault("val", {}).setdefault(figure.chart, [])
            names.append(figure.name)
    if task.loss_parts:
        charts["loss"] = {"parts of the loss": [".*"]}
    return charts


class Board:
    """The event file of a run. Rank 0 writes; elsewhere `enabled` is False and nothing happens.

    A resumed run gives `purge_step`, its first new step: every point from there on is taken out of the
    earlier event files, so each reader sees each step once. What is there already at the step before (a
    repeated validation) or of images is not written twice. All methods raise UserError on a full disk.
    """

    def __init__(
        self, folder: Path, *, enabled: bool = True, purge_step: int | None = None
    ) -> None:
        self._kept: set[tuple[str, int]] = set()
        self._images: set[str] = set()
        self._named = False
        self._file: Appender | None = None
        if not enabled:
            return
        if purge_step is not None:
            for path in sorted(folder.glob("events.out.tfevents.*")):
                self._cut(path, purge_step)
        name = f"{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        self._file = Appender(folder / f"events.out.tfevents.{name}")
        self._event(file_version="brain.Event:2")

    def scalars(self, values: Mapping[str, float | int | None], step: int) -> None:
        """Write one point a tag; None and what is not finite is left out."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        points = [
            Summary.Value(tag=tag, simple_value=float(value))
            for tag, value in values.items()
            if value is not None
            and math.isfinite(value)
            and (tag, step) not in self._kept
        ]
        if points:
            self._event(step=step, summary=Summary(value=points))

    def images(self, tag: str, images: Array, step: int, *, once: bool = True) -> None:
        """Write uint8 [N, H, W, 3] as one grid, eight in a row.

        `once`: a run, also a resumed one, keeps the first; else one each step.
        """
        if self._file is None or (
            tag in self._images if once else (tag, step) in self._kept
        ):
            return
        from torch.utils.tensorboard.summary import image

        self._images.add(tag)
        self._event(step=step, summary=image(tag, images, dataformats="NHWC"))

    def table(self, tag: str, rows: Sequence[tuple[str, str]], step: int) -> None:
        """Write a table of names and texts for the TEXT page; a run that is resumed writes its own."""
        from torch.utils.tensorboard.summary import text

        lines = [f"| {name} | {value} |" for name, value in rows]
        self._event(step=step, summary=text(tag, "\n".join(["| | |", "|-|-|", *lines])))

    def hparams(
        self,
        settings: Mapping[str, str | int | float | bool],
        metrics: Sequence[str],
        columns: Mapping[str, type] = SETTINGS,
    ) -> None:
        """Write the run's row of the HPARAMS page: settings, each one of `columns`, and the tags of metrics.

        What is left out is an empty cell.
        """
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
        from torch.utils.tensorboard.summary import hparams

        empty = {name: _cell(column_type()) for name, column_type in columns.items()}
        named, _, _ = hparams(empty, dict.fromkeys(metrics, 0.0))
        _, row, _ = hparams(
            {name: _cell(columns[name](value)) for name, value in settings.items()}, {}
        )
        content = HParamsPluginData.FromString(
            named.value[0].metadata.plugin_data.content
        )
        for info in content.experiment.hparam_infos:
            # the page sorts these before the others, which are by name
            info.differs = info.name in FIRST
        named.value[0].metadata.plugin_data.content = content.SerializeToString()
        self._event(summary=named)
        self._event(summary=row)
        self._named = True

    def layout(self, layout: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
        """Write the CUSTOM SCALARS page: {group of tags: {title of a chart: names in the group}}."""
        from torch.utils.tensorboard.summary import custom_scalars

        charts = {
            group: {
                title: ["Multiline", [f"^{group}/{name}$" for name in names]]
                for title, names in its_charts.items()
            }
            for group, its_charts in layout.items()
        }
        self._event(summary=custom_scalars(charts))

    def close(self, *, finished: bool = True) -> None:
        """Close the file. A run that is not `finished` has the status unknown on the HPARAMS page."""
        if self._file is None:
            return
        try:
            if finished and self._named:
                from torch.utils.tensorboard.summary import hparams

                self._event(summary=hparams({}, {})[2])
        finally:
            self._file.close()
            self._file = None

    def _event(self, **fields: Any) -> None:
        if self._file is None:
            return
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        record = io.BytesIO()
        RecordWriter(record).write(
            Event(wall_time=time.time(), **fields).SerializeToString()
        )
        self._file.append(record.getvalue())

    def _cut(self, path: Path, purge_step: int) -> None:
        """Take out the points from `purge_step` on, a half-written end, and settings and layout, which each
        run writes anew.
        """
        from tensorboard.compat.proto.event_pb2 import Event

        before = path.read_bytes()
        records = []
        for record, data in _records(before):
            event = Event.FromString(data)
            plugins = {
                value.metadata.plugin_data.plugin_name for value in event.summary.value
            }
            if event.step >= purge_step or plugins & {"hparams", "custom_scalars"}:
                continue
            records.append(record)
            self._images |= {
                value.tag for value in event.summary.value if value.HasField("image")
            }
            if event.step == purge_step - 1:
                self._kept |= {(value.tag, event.step) for value in event.summary.value}
        after = b"".join(records)
        if after != before:
            replace(path, after)


def _cell(value: Any) -> Any:
    # a bool would show as 0 or 1
    return str(value).lower() if isinstance(value, bool) else value


def _records(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield (whole record, its data) of an event file; end before a record that is cut off."""
    at = 0
    # a record: length uint64, its CRC of 4 bytes, data, its CRC
    while at + 12 <= len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        end = at + 12 + length + 4
        if end > len(content):
            return
        yield content[at:end], content[at + 12 : end - 4]
        at = end
