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
from typing import Any

from saturate.contracts import Array, Reported, utf8
from saturate.report.facts import CURVES, EFFICIENCY, EMA, SHARES
from saturate.report.record import Appender, replace, replace_in_time

SETTINGS_FILE = "events.out.tfevents.0.settings"
"""Event file of the HPARAMS row and of the charts: written anew as a whole, and read before the others."""
GLANCE = "at_a_glance"
"""Group of the first screen: TensorBoard sorts groups of curves by name."""
LEADING = (
    "throughput/efficiency",
    "throughput/compute_ceiling",
    "throughput/loader_ceiling",
)
"""Curves whose columns of the HPARAMS page come before those of the tasks' figures."""

# The HPARAMS page takes its columns from the first run it meets and drops what only others have
# (tensorboard#5596, pytorch#32651, #39250). So every run names all of these, and all are texts.
SETTINGS = {
    "bound": "bound",
    "loader": "loader",
    "arch": "network",
    "rate": "samples/s",
    "batch_size": "batch a GPU",
    "precision": "precision",
    "world_size": "GPUs",
    "task": "task",
    "reader": "reader",
    "compile": "compile",
    "graphs": "graphs",
    "accumulate": "accumulate",
    "image_size": "image size, px",
    "workers": "workers",
    "pin_memory": "pin_memory",
    "optimizer": "optimizer",
    "lr": "lr",
    "epochs": "epochs",
    "read_delay_ms": "read delay, ms",
    "gpu": "GPU",
}
"""Columns of the HPARAMS page and their headers. `bound` and `rate` are known at the end of a run."""
KEYS = {
    name: f"{place}_{name}" if place < 5 else name
    for place, name in enumerate(SETTINGS)
}
"""The page opens with five columns of settings, sorted by these keys, and reaches the fifth at 1280 px."""


PAGES = (
    ("[TIME SERIES](#timeseries)", f"every curve; `{GLANCE}` has the first to look at"),
    (
        "[CUSTOM SCALARS](#custom_scalars&_smoothingWeight=0&_ignoreYOutliers=false)",
        "rate and ceilings in one chart, efficiency, what a step and a loader spend their time on; a colour a run, "
        "and the tooltip names each curve",
    ),
    ("[HPARAMS](#hparams)", "a row a run: what binds it, loader, network, rate"),
    ("[IMAGES](#images)", "what the network is given, truth beside what it finds"),
    ("[TEXT](#text)", "this, and once the run is over its closing table: `result`"),
)
"""What each page of TensorBoard has."""


def at_a_glance(task: Reported) -> dict[str, str]:
    """Return the tags that the first screen shows, and the names that they have there as well."""
    first = task.figures[0].name
    return {
        "train/loss": f"{GLANCE}/loss",
        "throughput/samples_per_s": f"{GLANCE}/samples_per_s",
        f"val/{first}": f"{GLANCE}/{first}",
        # with --ema: best.pt may be of the average
        f"val/{EMA}{first}": f"{GLANCE}/{EMA}{first}",
    }


def metrics(compared: Sequence[str]) -> dict[str, str]:
    """Return the metrics of the HPARAMS page: scalar's tag -> header.

    `compared`: figures of every task, whichever is run.
    """
    others = {curve.tag: curve.header for curve in CURVES if curve.header}
    first = {tag: others.pop(tag) for tag in LEADING}
    return {**first, **{f"val/{name}": name for name in compared}, **others}


def layout(task: Reported) -> dict[str, dict[str, list[str]]]:
    """Return the charts of a task's runs: {section: {title of a chart: patterns of tags}}."""
    first = {"loss": ["train/loss"]}
    if chart := task.figures[0].chart:
        first[chart] = []
    # the average's figures (--ema) are of the same run
    drawn = [(figure.chart, f"val/(ema_)?{figure.name}") for figure in task.figures]
    drawn += [(curve.chart, curve.tag) for curve in CURVES]
    # TensorBoard chooses the range of a chart by its points: these two hold it
    drawn += [(EFFICIENCY, f"share/{name}") for name in ("zero", "compute_ceiling")]
    drawn += [("parts of the loss", "loss/.*")] * task.loss_parts
    charts = {"at a glance": first}
    for chart, tag in drawn:
        if chart:
            at_once = chart in (*first, SHARES, EFFICIENCY)
            section = "at a glance" if at_once else tag.partition("/")[0]
            charts.setdefault(section, {}).setdefault(chart, []).append(tag)
    return charts


class Board:
    """The event files of a run. Rank 0 writes; elsewhere `enabled` is False and nothing happens.
    A resumed run gives `purge_step`, its first new step: every point from there on is taken out of the
    earlier event files, so each reader sees each step once. What is there already at the step before (a
    repeated validation) or of images is not written twice. On a full disk records wait.
    """

    def __init__(
        self, folder: Path, *, enabled: bool = True, purge_step: int | None = None
    ) -> None:
        # tag -> a second name, under which its points are written, too
        self._twice: Mapping[str, str] = {}
        self._settings = folder / SETTINGS_FILE
        self._recorded: set[tuple[str, int]] = set()
        self._file: Appender | None = None
        if not enabled:
            return
        if purge_step is not None:
            for path in sorted(folder.glob("events.out.tfevents.*")):
                self._cut(path, purge_step)
        name = f"{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        self._file = Appender(folder / f"events.out.tfevents.{name}")
        self._event(file_version="brain.Event:2")

    def scalars(
        self, values: Mapping[str, float | int | None], step: int
    ) -> dict[str, float]:
        """Write one point a tag, and return them; None and what is not finite is left out."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        finite = {
            tag: float(value)
            for tag, value in values.items()
            if value is not None and math.isfinite(value)
        }
        again = {
            name: finite[tag] for tag, name in self._twice.items() if tag in finite
        }
        points = [
            Summary.Value(tag=utf8(tag), simple_value=value)
            for tag, value in {**finite, **again}.items()
            if (tag, step) not in self._recorded
        ]
        if points:
            self._event(step=step, summary=Summary(value=points))
        return finite

    def images(self, tag: str, images: Array, step: int) -> None:
        """Write uint8 [N, H, W, 3]: one picture, or several as one grid, eight in a row."""
        if self._file is None or (tag, step) in self._recorded:
            return
        from torch.utils.tensorboard.summary import image

        self._event(step=step, summary=image(tag, images, dataformats="NHWC"))

    def card(self, tag: str, rows: Sequence[tuple[str, str]], step: int) -> None:
        """Write names and texts for the TEXT page, a line each; a run that is resumed writes its own."""
        from torch.utils.tensorboard.summary import text

        # no table: the page breaks names in its first column beside a long text
        lines = utf8("\n".join(f"- **{name}**: {value}" for name, value in rows))
        self._event(step=step, summary=text(tag, lines))

    def settings(
        self,
        row: Mapping[str, Any],
        task: Reported,
        compared: Sequence[str],
        *,
        finished: bool = False,
    ) -> None:
        """Write what the pages HPARAMS and CUSTOM SCALARS show of the run of a task, in place of what was written
        before. Call it before `scalars`.

        `row`: the run's settings, by names of SETTINGS, without those that it does not know. A run that
        is not `finished` has the status unknown.
        """
        if self._file is None:
            return
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
        from torch.utils.tensorboard.summary import custom_scalars, hparams

        self._twice = at_a_glance(task)
        columns = metrics(compared)
        empty = dict.fromkeys(KEYS.values(), "")
        cells = {
            KEYS[name]: _cell(row[name])
            for name in SETTINGS
            if row.get(name) is not None
        }
        named, _, end = hparams(empty, dict.fromkeys(columns, 0.0))
        _, begin, _ = hparams(cells, {})
        content = HParamsPluginData.FromString(
            named.value[0].metadata.plugin_data.content
        )
        infos = content.experiment.hparam_infos
        for info, header in zip(infos, SETTINGS.values(), strict=True):
            info.display_name = header
            # the page sorts these before the others
            info.differs = info.name not in SETTINGS
        for info in content.experiment.metric_infos:
            info.display_name = columns[info.name.tag]
        named.value[0].metadata.plugin_data.content = content.SerializeToString()
        charts = {
            section: {
                title: ["Multiline", [f"^{tag}$" for tag in tags]]
                for title, tags in section_charts.items()
            }
            for section, section_charts in layout(task).items()
        }
        summaries = [custom_scalars(charts), named, begin, *[end] * finished]
        records = [_record(file_version="brain.Event:2")]
        records += [_record(summary=summary) for summary in summaries]
        replace_in_time(self._settings, b"".join(records))

    def close(self) -> None:
        """Close the file; again without effect."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _event(self, **fields: Any) -> None:
        if self._file is not None:
            self._file.append(_record(**fields))

    def _cut(self, path: Path, purge_step: int) -> None:
        """Take out the points from `purge_step` on, and a half-written end."""
        from tensorboard.compat.proto.event_pb2 import Event

        before = path.read_bytes()
        records = []
        for record, data in _records(before):
            event = Event.FromString(data)
            if event.step >= purge_step:
                continue
            records.append(record)
            if event.step == purge_step - 1:
                self._recorded |= {
                    (value.tag, event.step) for value in event.summary.value
                }
        after = b"".join(records)
        if after != before:
            replace(path, after)


def _cell(value: object) -> str:
    """Return a cell of the HPARAMS page, which shows a number 256 as 256.00.

    Texts are sorted as texts: with spaces in front, which the page does not show, by their value.
    """
    return f"{value:>12,}" if type(value) is int else str(value)


def _record(**fields: Any) -> bytes:
    """Return an event of the present as a record of an event file."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    record = io.BytesIO()
    event = Event(wall_time=time.time(), **fields)
    RecordWriter(record).write(event.SerializeToString())
    return record.getvalue()


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
