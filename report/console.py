"""What a person sees while a run goes on: one bar an epoch on a terminal, plain lines elsewhere, a table at
the end.

Must not know: ranks (others than 0 get `enabled` False), how a figure is measured, TensorBoard.
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich import box
from rich.console import Console as Terminal
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from contracts import Figure, Reported, one_line
from report.advice import advice, section
from report.meter import STEAL

WIDTH = 80
"""Columns of the table, and of plain output."""
LIVE_S = 0.2
"""Least seconds between two pictures of a bar."""
PLAIN_S = 10.0
"""Least seconds between two plain lines."""
CEILINGS = ("compute", "loader")
IMAGENET = 1_281_167
"""Images of an epoch of ImageNet."""
IMAGENET_SIDE = 128
"""Pixels; the rate of smaller images says nothing of ImageNet's."""


class Bar:
    """One epoch or validation. `update` is cheap: it draws about five times a second, or prints every ten
    seconds.
    """

    def __init__(
        self,
        say: Callable[[Bar, bool], None],
        clock: Callable[[], float],
        *,
        title: str,
        total: int,
        item: str,
        first: int,
        every_s: float,
    ) -> None:
        self.title = title
        self.total = total
        self.samples = first
        self._item = item  # what is counted: img, clip, items
        self.rate: float | None = None
        self.loss: float | None = None
        self.wait_ms: float | None = None
        self._say = say
        self._clock = clock
        self._first = first
        self._every_s = every_s
        self._began = self._said = clock()

    def update(
        self,
        *,
        samples: int,
        rate: float | None = None,
        loss: float | None = None,
        wait_ms: float | None = None,
    ) -> None:
        """Show `samples` of the epoch so far, those before a resume counted. A figure that is None keeps its
        last value.
        """
        self.samples = samples
        self.rate = self.rate if rate is None else rate
        self.loss = self.loss if loss is None else loss
        self.wait_ms = self.wait_ms if wait_ms is None else wait_ms
        now = self._clock()
        if now - self._said >= self._every_s:
            self._said = now
            self._say(self, False)

    def end(self) -> None:
        """Show the last figures."""
        self._say(self, True)

    def words(self, *, ended: bool) -> str:
        """Say rate, loss, data wait and the time left, as far as they are known; once ended the mean rate and
        the time it took.
        """
        elapsed = self._clock() - self._began
        counted = self.samples - self._first
        mean_rate = counted / elapsed if elapsed > 0 and counted > 0 else None
        rate = mean_rate if ended else self.rate or mean_rate
        parts = [f"{number(rate)} {self._item}/s"]
        parts += [f"loss {self.loss:.3f}"] if self.loss is not None else []
        parts += [f"wait {self.wait_ms:.1f} ms"] if self.wait_ms is not None else []
        if ended:
            parts.append(f"in {duration(elapsed)}")
        elif rate and self.total:
            parts.append(f"eta {duration(max(self.total - self.samples, 0) / rate)}")
        return "  ".join(parts)


class Console:
    """Rank 0 talks; with `enabled` False every method is silent. A terminal that went away ends the talking,
    not the run.
    """

    def __init__(
        self,
        *,
        enabled: bool = True,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream or sys.stdout
        self._enabled = enabled
        self._clock = clock
        live = (
            enabled
            and self._stream.isatty()
            and os.environ.get("TERM", "dumb") != "dumb"
        )
        self._terminal = (
            Terminal(file=self._stream, highlight=False, force_terminal=True)
            if live
            else None
        )

    def info(self, *lines: str) -> None:
        """Say lines."""
        for line in lines:
            self._print(one_line(line))

    def warn(self, line: str) -> None:
        """Say a line that asks for attention."""
        self._print(f"warning: {one_line(line)}", style="yellow")

    @contextlib.contextmanager
    def counting(self, what: str) -> Iterator[Callable[[int, int, str], None]]:
        """Yield callback(done, total, step) for a scan of `what`; `total` may be 0 while it is not known."""
        with contextlib.ExitStack() as stack:
            # none before there is something to tell: a manifest that is found again says nothing
            bars: list[Bar] = []

            def callback(done: int, total: int, step: str) -> None:
                title = f"{what}: {step}"
                if not bars:
                    bars.append(
                        stack.enter_context(
                            self.epoch(title=title, total=total, item="items")
                        )
                    )
                bars[0].title = title
                bars[0].total = total
                bars[0].update(samples=done)

            yield callback

    @contextlib.contextmanager
    def epoch(
        self, *, title: str, total: int, item: str = "img", first: int = 0
    ) -> Iterator[Bar]:
        """Show a bar from `first` (samples done before a resume) to `total` inside.

        It ends with its last figures also when the body raises.
        """
        progress = self._progress() if self._terminal else None
        task = None
        if progress:
            task = progress.add_task(
                "", title=title, total=total or None, completed=first, words=""
            )

        def say(bar: Bar, ended: bool) -> None:
            share = f"{bar.samples / bar.total:4.0%}" if bar.total else ""
            if progress is None or task is None:
                of = f"/{bar.total:,}" if bar.total else ""
                columns = [
                    bar.title,
                    share,
                    f"{bar.samples:,}{of} {item}",
                    bar.words(ended=ended),
                ]
                self._print("  ".join(filter(None, columns)))
                return
            words = f"{share}  {bar.words(ended=ended)}"
            with self._listening():
                progress.update(
                    task,
                    title=bar.title,
                    total=bar.total or None,
                    completed=bar.samples,
                    words=words,
                    refresh=True,
                )

        bar = Bar(
            say,
            self._clock,
            title=title,
            total=total,
            item=item,
            first=first,
            every_s=LIVE_S if progress else PLAIN_S,
        )
        with self._listening():
            if progress:
                progress.start()
        try:
            yield bar
        finally:
            bar.end()
            with self._listening():
                if progress:
                    progress.stop()

    def result(
        self, summary: Mapping[str, Any], task: Reported, *, folder: Path | None = None
    ) -> None:
        """Print the final table: what came out, how fast, what held it back, what to change first.

        Behind it `folder`, where the run is, in lines one can copy.
        """
        chosen = [
            str(summary[name])
            for name in ("arch", "loader", "precision")
            if summary.get(name)
        ]
        title = " · ".join(chosen) or "result"
        if self._terminal:
            table = Table(
                title=Text(title, style="bold"),
                box=box.ROUNDED,
                show_header=False,
                width=min(WIDTH, self._terminal.width),
            )
            table.add_column(style="cyan", no_wrap=True)
            table.add_column(overflow="fold")
            for name, value in rows(summary, task):
                style = "bold" if name in ("rate", "change first") else ""
                table.add_row(name, Text(self._sayable(value), style=style))
            with self._listening():
                self._terminal.print(table)
        else:
            folded = [
                line
                for name, value in rows(summary, task)
                for line in _folded(name, value)
            ]
            self._print(
                "\n".join(
                    ["", title.replace("·", "|"), "-" * WIDTH, *folded, "-" * WIDTH]
                )
            )
        if folder is not None:
            self._print(f"run folder:   {folder}")
            self._print("all runs:     localhost:6006/#hparams, once TensorBoard runs:")
            self._print(
                f"TensorBoard:  tensorboard --logdir {shlex.quote(str(folder.parent))}"
            )

    def _progress(self) -> Progress:
        # no refresh thread: a bar is drawn from update(), and takes nothing from training in between
        columns = (
            TextColumn("{task.fields[title]}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[words]}", markup=False),
        )
        return Progress(
            *columns, console=self._terminal, auto_refresh=False, expand=True
        )

    def _print(self, line: str, style: str = "") -> None:
        if not self._enabled:
            return
        with self._listening():
            line = self._sayable(line)
            if self._terminal:
                self._terminal.print(Text(line, style=style), soft_wrap=True)
            else:
                print(line, file=self._stream, flush=True)

    def _sayable(self, text: str) -> str:
        """Return a text that cannot act on a terminal, with a question mark for what the stream's encoding
        has not: an error would look like the end of the stream.
        """
        text = "\n".join(map(one_line, text.split("\n")))
        encoding = self._stream.encoding or "utf-8"
        return text.encode(encoding, "replace").decode(encoding)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        try:
            yield
        except (
            OSError,
            ValueError,
        ):  # the pipe or the terminal behind the stream was closed
            self._enabled = False
            self._terminal = None


def rows(summary: Mapping[str, Any], task: Reported) -> list[tuple[str, str]]:
    """Return (name, value) lines of the final table; '-' for what was not measured.

    Where nothing was trained, so that there is no rate, they are the validation's alone.
    """
    rate = section(summary, "rate")
    ceiling = section(summary, "ceiling")
    validation = section(summary, "validation")
    unit = rate.get("unit") or "img/s"
    efficiency = summary.get("efficiency")
    failed = summary.get("samples_failed")
    titled = [figure for figure in task.figures if figure.title]
    values = [
        (figure.title, _metric(figure, validation[figure.name]))
        for figure in titled
        if figure.name in validation
    ]
    values = values or [(titled[0].title, "-")]
    more = "   ".join(f"{name} {value}" for name, value in values[1:])
    best = (values[0][0], values[0][1] + (f"   ({more})" if more else ""))
    # `samples` of a summary are the whole run's, an evaluation's those that its network was trained on
    if rate.get("steady") is None and "samples" in validation:
        return [best, ("samples", f"{validation['samples']:,}")]
    return [
        best,
        *_best(section(summary, "best"), titled[0]),
        (
            "rate",
            _rate(
                rate.get("steady"),
                None if rate.get("short") else rate.get("spread"),
                unit,
            ),
        ),
        *(
            (f"{name} ceiling", _rate(of.get("rate"), of.get("spread"), unit))
            for name in CEILINGS
            for of in [section(ceiling, name)]
        ),
        *_imagenet(summary, rate),
        (
            "efficiency",
            "-" if efficiency is None else f"{efficiency:.1%} of the lower ceiling",
        ),
        ("bound by", str(summary.get("bound") or "-")),
        ("data wait", _wait(summary.get("data_wait"))),
        *_steal(section(summary, "cpu").get("steal")),
        *_clips(section(summary, "clips")),
        *_detection(section(summary, "detection")),
        *(
            [("not decoded", f"{len(failed)} samples, see failed.txt")]
            if failed
            else []
        ),
        ("change first", advice(summary)),
    ]


def _best(best: Mapping[str, Any], figure: Figure) -> list[tuple[str, str]]:
    """Say the best validation, and where its checkpoint lies."""
    if not best:
        return []
    after = f" after epoch {best['epoch']}" if best.get("epoch") else ""
    return [("best", f"{_metric(figure, best['value'])}{after}: {best['checkpoint']}")]


def _imagenet(
    summary: Mapping[str, Any], rate: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Say how long ImageNet takes at a rate of images of about its size."""
    steady = rate.get("steady")
    if summary.get("task") != "classification" or not steady or rate.get("short"):
        return []
    if (summary.get("image_size") or 0) < IMAGENET_SIDE:
        return []
    epoch_s = IMAGENET / steady
    return [
        (
            "ImageNet",
            f"an epoch takes {spoken(epoch_s)} at this rate, 90 epochs {spoken(90 * epoch_s)}",
        )
    ]


def spoken(seconds: float) -> str:
    """Say a time in the two units that matter: 1 min 25 s, or 2.1 h."""
    if seconds < 3600:
        minutes, left = divmod(round(seconds), 60)
        return f"{minutes} min {left} s" if minutes else f"{left} s"
    return f"{seconds / 3600:,.1f} h"


def number(value: float | None) -> str:
    """Say a number with three digits, or whole from 100 on; '-' for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Say a time as minutes:seconds, or hours:minutes:seconds."""
    minutes, left = divmod(round(seconds), 60)
    return (
        f"{minutes // 60}:{minutes % 60:02}:{left:02}"
        if minutes >= 60
        else f"{minutes}:{left:02}"
    )


def _rate(value: float | None, spread: Mapping[str, Any] | None, unit: str) -> str:
    if value is None:
        return "-"
    if not spread:
        return f"{number(value)} {unit}"
    windows = "1 window" if spread["n"] == 1 else f"{spread['n']} windows"
    return f"{number(value)} {unit}   ({number(spread['min'])} to {number(spread['max'])} in {windows})"


def figures(result: Mapping[str, Any], declared: Sequence[Figure]) -> str:
    """Say the figures of a validation in one line, in the order of the result."""
    by_name = {figure.name: figure for figure in declared}
    words = []
    for name, value in result.items():
        figure = by_name.get(name, Figure(name=name))
        if figure.said == "never" or (figure.said == "unless zero" and not value):
            continue
        if isinstance(value, int):
            words.append(f"{name} {value:,}")
        elif figure.unit == "%":
            words.append(f"{name} {_metric(figure, value)}")
        else:
            words.append(f"{name} {value:.4g}")
    return "  ".join(words)


def took(seconds: Mapping[str, float] | None) -> str:
    """Say how long a pass and the wait for its figures took, and how long these were made, which may be
    beside training.
    """
    if not seconds:
        return ""
    standing = f"  in {seconds['pass'] + seconds['waited']:.1f} s"
    where = "beside training " if seconds["waited"] < seconds["score"] / 2 else ""
    return standing + (
        f", scored {where}in {seconds['score']:.1f} s"
        if seconds["score"] >= 0.1
        else ""
    )


def _metric(figure: Figure, value: float | None) -> str:
    # nan is text in a summary that was read again
    if not isinstance(value, int | float) or math.isnan(value):
        return "-"
    if figure.unit == "%":
        return f"{value:.2%}"
    return f"{value:.2f} {figure.unit}" if figure.unit else f"{value:.4f}"


def _steal(share: float | None) -> list[tuple[str, str]]:
    """Say how much time other virtual machines took, where it is enough to tell in a rate."""
    if not share or share < STEAL:
        return []
    return [
        ("CPU steal", f"{share:.1%} of the cores' time went to other virtual machines")
    ]


def _clips(clips: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Say frames a second, what a decoder goes through for them, and files that another decoder took."""
    if not clips:
        return []
    per = clips.get("decoded_per_delivered")
    others = clips.get("fallbacks") or {}
    decoded = f"   ({per:.2f} decoded for each)" if per else ""
    most_first = sorted(others.items(), key=lambda one: -one[1])
    sorts = "; ".join(f"{count:,} {sort}" for sort, count in most_first)
    instead = (
        [("fallback", f"{sum(others.values()):,} clips by pyav instead ({sorts})")]
        if others
        else []
    )
    for sort, why in (clips.get("refusals") or {}).items():
        its, _, fate = sort.rpartition(", ")
        instead += [(fate, f"{its}: {why}")]
    return [
        ("frames", f"{number(clips.get('frames_per_s'))} frame/s{decoded}"),
        *instead,
    ]


def _detection(detection: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Say boxes a second, and the share of the pixels that no image covers."""
    if not detection:
        return []
    padding = f", {detection['padding']:.1%} of the pixels show no image"
    rate = number(detection.get("instances_per_s"))
    return [
        (
            "instances",
            f"{rate} box/s   ({detection['instances_per_image']:.1f} an image{padding})",
        )
    ]


def _wait(wait: float | Mapping[str, Any] | None) -> str:
    """Say the wait for data: milliseconds, or {ms, share}."""
    milliseconds, share = (
        (wait.get("ms"), wait.get("share"))
        if isinstance(wait, Mapping)
        else (wait, None)
    )
    if milliseconds is None:
        return "-"
    of_time = "" if share is None else f", {share:.1%} of the time"
    return f"{milliseconds:.2f} ms a step{of_time}"


def _folded(name: str, value: str) -> list[str]:
    folded = textwrap.wrap(value, WIDTH - 18, break_on_hyphens=False)
    return [
        f"{name if index == 0 else '':<16}  {line}" for index, line in enumerate(folded)
    ]
