"""What a person sees while a run goes on: a bar of the run on a terminal, plain lines elsewhere, and a table
at the end.

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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from saturate.contracts import Reported, one_line
from saturate.report.advice import Summary
from saturate.report.facts import CHOSEN, chosen, rows
from saturate.report.page import REPORT
from saturate.report.words import duration, ends, number
from saturate.system.programs import program

WIDTH = 80
"""Columns of the table, and of plain output."""
LIVE_S = 0.2
"""Least seconds between two pictures of a bar."""
NARROWEST = 4
"""Columns that a bar keeps: what would take them is not said."""
PLAIN_S = 10.0
"""Least seconds between two plain lines."""


class Terminal(RichConsole):
    """rich's console, which would end the program where a pipe was closed."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


@dataclass(kw_only=True)
class Bar:
    """An epoch of a run, or a pass. `update` is cheap: it draws every 0.2 s, or prints every ten seconds."""

    title: str
    total: int
    item: str  # what is counted: img, clip, items
    samples: int
    every_s: float
    show: Callable[[Bar, bool], None]
    clock: Callable[[], float]
    rate: float | None = None
    # seconds of a run for each in which it trains; 0: this is a pass
    stretch: float = 0.0
    loss: float | None = None
    wait_ms: float | None = None

    def __post_init__(self) -> None:
        self._first = self.samples
        # of each figure, the sum over the steps so far, and their number
        self._sums: dict[str, tuple[float, int]] = {}
        self._began = self._shown = self.clock()

    def update(
        self,
        *,
        samples: int,
        rate: float | None = None,
        loss: float | None = None,
        wait_ms: float | None = None,
        steps: int = 1,
    ) -> None:
        """Show `samples` of the run or the pass so far, those before a resume counted.

        `loss` and `wait_ms` are means of the last `steps`. A figure that is None keeps its last value.
        """
        self.samples = samples
        self.rate = self.rate if rate is None else rate
        self.loss = self.loss if loss is None else loss
        self.wait_ms = self.wait_ms if wait_ms is None else wait_ms
        for name, value in (("loss", loss), ("wait_ms", wait_ms)):
            if value is not None and math.isfinite(value):
                total, count = self._sums.get(name, (0.0, 0))
                self._sums[name] = total + steps * value, count + steps
        now = self.clock()
        if now - self._shown >= self.every_s:
            self._shown = now
            self.show(self, False)

    def end(self) -> None:
        """Show the figures of all that was done, as its rate and its time are."""
        for name, (total, count) in self._sums.items():
            if math.isfinite(getattr(self, name)):  # a last one that is no number stays
                setattr(self, name, total / count)
        self.show(self, True)

    @property
    def share(self) -> str:
        """Return the percentage that is done; "" while the total is not known."""
        return f"{self.samples / self.total:4.0%}" if self.total else ""

    def summary(self, *, ended: bool) -> tuple[str, list[str]]:
        """Return the title, and what is known of rate, loss, data wait and time left, the first the most important;
        once ended the mean rate and the time that was taken.

        The time left of a run stands in its title.
        """
        if not ended and self.rate is None and self.samples == self._first:
            return self.title, ["no step is over yet"]
        elapsed = self.clock() - self._began
        counted = self.samples - self._first
        mean_rate = counted / elapsed if elapsed > 0 and counted > 0 else None
        rate = mean_rate if ended else self.rate or mean_rate
        title = self.title
        parts = [f"{number(rate)} {self.item}/s"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.3f}")
        if self.wait_ms is not None:
            parts.append(f"wait {self.wait_ms:.1f} ms/step")
        if ended:
            parts.append(f"in {duration(elapsed)}")
        elif rate and self.total:
            left_s = max(self.total - self.samples, 0) / rate
            if self.stretch:
                left_s *= self.stretch
                title += f" · run {duration(left_s)} left, ends {ends(left_s)}"
            else:
                parts.append(f"eta {duration(left_s)}")
        return title, parts


class Console:
    """Rank 0 talks; with `enabled` False every method is silent, with `quiet` all but warnings and the result.

    A terminal that went away ends the talking, not the run.
    """

    def __init__(
        self,
        *,
        enabled: bool = True,
        quiet: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream or sys.stdout
        self._enabled = enabled
        self._quiet = quiet
        self._clock = clock
        plain = os.environ.get("TERM", "dumb") == "dumb" or os.environ.get("CI")
        self._live = enabled and not quiet and not plain and self._stream.isatty()
        self._terminal = Terminal(
            file=self._stream,
            highlight=False,
            force_terminal=self._live,
            width=None if self._live else WIDTH,
        )

    def info(self, *lines: str) -> None:
        """Say lines."""
        for line in () if self._quiet else lines:
            self._print(one_line(line))

    def warn(self, line: str) -> None:
        """Say a line that asks for attention."""
        self._print(f"warning: {one_line(line)}", style="yellow")

    @contextlib.contextmanager
    def counting(self, what: str) -> Iterator[Callable[[int, int, str], None]]:
        """Yield callback(done, total, step) for a scan of `what`; `total` may be 0 while it is not known."""
        with contextlib.ExitStack() as stack:
            # none before there is something to tell: a manifest that is found again says nothing
            bar: Bar | None = None

            def callback(done: int, total: int, step: str) -> None:
                nonlocal bar
                if bar is None:
                    bar = stack.enter_context(
                        self.epoch(title=what, total=total, item="items")
                    )
                bar.title = f"{what}: {step}"
                bar.total = total
                bar.update(samples=done)

            yield callback

    @contextlib.contextmanager
    def epoch(
        self,
        *,
        title: str,
        total: int,
        item: str = "img",
        first: int = 0,
        rate: float | None = None,
        stretch: float = 0.0,
        stays: bool = True,
    ) -> Iterator[Bar]:
        """Show a bar from `first` (samples done before) to `total` inside.

        `rate` is the one so far; `stretch`, of a run alone, the seconds that it takes for each of training. The bar
        ends with its last figures also when the body raises; unless it `stays`, nothing is left of it then.
        """
        live = self._live
        # no refresh thread: a bar is drawn from update(), and takes nothing from training in between
        progress = Progress(
            TextColumn("{task.fields[title]}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[words]}", markup=False),
            console=self._terminal,
            auto_refresh=False,
            expand=True,
            transient=not stays,
        )
        task = progress.add_task("", title=title, words="")

        def show(bar: Bar, ended: bool) -> None:
            if self._quiet or (ended and not stays):
                return
            title, words = bar.summary(ended=ended)
            if not live:
                total = f"/{bar.total:,}" if bar.total else ""
                count = f"{bar.samples:,}{total} {bar.item}"
                columns = [title, bar.share, count, *words]
                self._print("  ".join(filter(None, columns)))
                return
            words = [*filter(None, [bar.share]), *words]
            # two blanks, one to either side of the bar
            room = self._terminal.width - len(title) - NARROWEST - 2
            while len("  ".join(words)) > room and len(words) > 1:
                words.pop()
            with self._listening():
                progress.update(
                    task,
                    title=title,
                    total=bar.total or None,
                    completed=bar.samples,
                    words="  ".join(words),
                    refresh=True,
                )

        bar = Bar(
            title=title,
            total=total,
            item=item,
            samples=first,
            rate=rate,
            stretch=stretch,
            every_s=LIVE_S if live else PLAIN_S,
            show=show,
            clock=self._clock,
        )
        with self._listening():
            if live:
                progress.start()
                show(bar, False)
        try:
            yield bar
        finally:
            bar.end()
            with self._listening():
                if live:
                    progress.stop()

    def begin(self, about: Summary) -> None:
        """Say a run's title, and in the lines behind it what `auto` has chosen and what the run leaves out.

        `about` is what report.summary.describe returns.
        """
        self.info(about["title"])
        lines = {
            CHOSEN: chosen(about.get("auto") or {}, about),
            **about.get("limits", {}),
        }
        if not self._quiet:
            self._rows((name, value) for name, value in lines.items() if value)

    def result(
        self, summary: Summary, task: Reported, *, folder: Path | None = None
    ) -> None:
        """Print the final table: what was learnt, what was left out, how fast, what to change first.

        Behind it `folder`, where the run is, and the next commands, in lines one can copy.
        """
        names = [summary.get(name) for name in ("arch", "loader", "precision")]
        self._print("")
        self._print(" | ".join(str(name) for name in names if name), style="bold")
        self._print("-" * WIDTH)
        self._rows(rows(summary, task))
        self._print("-" * WIDTH)
        if folder is not None:
            self._print(f"run folder:   {folder}")
            if pictures := sorted(path.name for path in folder.glob("*.[jp][pn]g")):
                self._print(f"pictures:     {', '.join(pictures)}")
            if (folder / REPORT).exists():
                self._print(f"report:       {folder / REPORT}")
            best = summary.get("checkpoint")
            if best and task.predicts:
                best = shlex.quote(best)
                if ":" in summary["arch"]:  # a file of weights has no code run
                    best += f" --arch {shlex.quote(summary['arch'])}"
                self._print(
                    f"predict:      {program('train')} --predict FOLDER --resume {best}"
                )
                if task.exports:
                    self._print(f"export:       {program('export')} {best}")
            parent = shlex.quote(str(folder.parent))
            self._print(f"TensorBoard:  tensorboard --logdir {parent}")

    def _rows(self, lines: Iterable[tuple[str, str]]) -> None:
        """Print values in a column, behind their names."""
        for name, value in lines:
            style = "bold" if name in ("rate", "change first") else ""
            folded = textwrap.wrap(value, WIDTH - 18, break_on_hyphens=False)
            for index, line in enumerate(folded):
                self._print(f"{'' if index else name:<16}  {line}", style=style)

    def _print(self, line: str, style: str = "") -> None:
        if self._enabled:
            with self._listening():
                text = Text(self._sayable(line), style=style)
                self._terminal.print(text, soft_wrap=True)

    def _sayable(self, text: str) -> str:
        """Return a text that cannot act on a terminal, with a question mark for what the stream's encoding
        has not: an error would look like the end of the stream.
        """
        encoding = self._stream.encoding or "utf-8"
        return one_line(text).encode(encoding, "replace").decode(encoding)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError):
            # the pipe or the terminal behind the stream was closed
            self._enabled = self._live = False
