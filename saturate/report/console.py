"""What a person sees while a run goes on: one bar an epoch on a terminal, plain lines elsewhere, and a table
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from saturate.contracts import Figure, Reported, counted, one_line
from saturate.report import what_if
from saturate.report.advice import Summary, advice, look_up
from saturate.report.summary import EMA
from saturate.system.programs import program

WIDTH = 80
"""Columns of the table, and of plain output."""
LIVE_S = 0.2
"""Least seconds between two pictures of a bar."""
PLAIN_S = 10.0
"""Least seconds between two plain lines."""
EXPORTED = ("classification", "detection", "video")
"""Tasks that scripts.export takes."""
BEYOND_BOXES = ("maskrcnn", "keypointrcnn")
"""Begins the detectors that it does not take: its files have no masks and no keypoints."""
WEIGHTS = {
    "network": "the network's own weights, not their average (--ema)",
    "average": "the average of the weights (--ema), as predictions are",
}
"""What a checkpoint with an average is of, in words."""


class Terminal(RichConsole):
    """rich's console, which would end the program where a pipe was closed."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


@dataclass(kw_only=True)
class Bar:
    """One epoch or validation. `update` is cheap: it draws every 0.2 s, or prints every ten seconds."""

    title: str
    total: int
    item: str  # what is counted: img, clip, items
    samples: int
    every_s: float
    show: Callable[[Bar, bool], None]
    clock: Callable[[], float]
    rate: float | None = None
    loss: float | None = None
    wait_ms: float | None = None

    def __post_init__(self) -> None:
        self._first = self.samples
        self._began = self._shown = self.clock()

    def update(
        self,
        *,
        samples: int,
        rate: float | None = None,
        loss: float | None = None,
        wait_ms: float | None = None,
    ) -> None:
        """Show `samples` of the epoch so far, those before a resume counted.

        A figure that is None keeps its last value.
        """
        self.samples = samples
        self.rate = self.rate if rate is None else rate
        self.loss = self.loss if loss is None else loss
        self.wait_ms = self.wait_ms if wait_ms is None else wait_ms
        now = self.clock()
        if now - self._shown >= self.every_s:
            self._shown = now
            self.show(self, False)

    def end(self) -> None:
        """Show the last figures."""
        self.show(self, True)

    @property
    def share(self) -> str:
        """Return the percentage that is done; "" while the total is not known."""
        return f"{self.samples / self.total:4.0%}" if self.total else ""

    def words(self, *, ended: bool) -> str:
        """Say rate, loss, data wait and time left, where known; once ended the mean rate and the time."""
        if not ended and self.rate is None and self.samples == self._first:
            return "no step is over yet"
        elapsed = self.clock() - self._began
        counted = self.samples - self._first
        mean_rate = counted / elapsed if elapsed > 0 and counted > 0 else None
        rate = mean_rate if ended else self.rate or mean_rate
        parts = [f"{number(rate)} {self.item}/s"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.3f}")
        if self.wait_ms is not None:
            parts.append(f"wait {self.wait_ms:.1f} ms/step")
        if ended:
            parts.append(f"in {duration(elapsed)}")
        elif rate and self.total:
            parts.append(f"eta {duration(max(self.total - self.samples, 0) / rate)}")
        return "  ".join(parts)


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
        self, *, title: str, total: int, item: str = "img", first: int = 0
    ) -> Iterator[Bar]:
        """Show a bar from `first` (samples done before a resume) to `total` inside.

        It ends with its last figures also when the body raises.
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
        )
        task = progress.add_task("", title=title, words="")

        def show(bar: Bar, ended: bool) -> None:
            if self._quiet:
                return
            words = bar.words(ended=ended)
            if not live:
                of = f"/{bar.total:,}" if bar.total else ""
                count = f"{bar.samples:,}{of} {bar.item}"
                columns = [bar.title, bar.share, count, words]
                self._print("  ".join(filter(None, columns)))
                return
            with self._listening():
                progress.update(
                    task,
                    title=bar.title,
                    total=bar.total or None,
                    completed=bar.samples,
                    words=f"{bar.share}  {words}",
                    refresh=True,
                )

        bar = Bar(
            title=title,
            total=total,
            item=item,
            samples=first,
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
        lines = {"chosen by auto": _chosen(about), **about.get("limits", {})}
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
            if pictures := sorted(path.name for path in folder.glob("*.png")):
                self._print(f"pictures:     {', '.join(pictures)}")
            best = summary.get("checkpoint")
            if best and task.predicts:
                best = shlex.quote(best)
                if ":" in summary["arch"]:  # a file of weights has no code run
                    best += f" --arch {shlex.quote(summary['arch'])}"
                self._print(
                    f"predict:      {program('train')} --predict FOLDER --resume {best}"
                )
                is_beyond = summary["arch"].startswith(BEYOND_BOXES)
                if summary.get("task") in EXPORTED and not is_beyond:
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


# --- the final table ----------------------------------------------------------


def rows(summary: Summary, task: Reported) -> list[tuple[str, str]]:
    """Return (name, value) lines of the final table; '-' for what was not measured.

    Where nothing was trained, so that there is no rate, they are the validation's alone.
    """
    validation = summary.get("validation") or {}
    titled = [figure for figure in task.figures if figure.title]
    average = {
        name.removeprefix(EMA): value
        for name, value in validation.items()
        if name.startswith(EMA)
    }
    of = look_up(summary, "evaluated.of")
    lines = [_validated(titled, validation, "network" if average else "")]
    if average:
        lines.append(_validated(titled, average, "average"))
        if of == "average":
            lines.reverse()
        if of:
            lines.append(("checkpoint is of", WEIGHTS[of]))
    # `samples` of a summary are the whole run's, an evaluation's those that its network was trained on
    if look_up(summary, "rate.steady") is None and "samples" in validation:
        chosen = _chosen(summary)
        return [*lines, *([("chosen by auto", chosen)] if chosen else [])]
    if best := summary.get("best"):
        after = f" after epoch {best['epoch']}" if best.get("epoch") else ""
        after += f", of the {best['of']}" if best.get("of") else ""
        metric = _metric(titled[0], best["value"])
        lines.append(("best", f"{metric}{after}: {best['checkpoint']}"))
    lines += [(line.name, line.text(summary)) for line in LINES]
    return [(name, value) for name, value in lines if value]


def _validated(titled: Sequence[Figure], found: Summary, of: str) -> tuple[str, str]:
    """Return the line of a pass over the validation set, with --ema `of` the network or the average."""
    (name, value), *others = [
        (figure.title, _metric(figure, found[figure.name]))
        for figure in titled
        if figure.name in found
    ] or [(titled[0].title, "-")]
    if others:
        value += f"   ({'   '.join(f'{name} {value}' for name, value in others)})"
    if "samples" in found:
        value += f"   of {counted(found['samples'], 'sample')}"
    return f"{name} of {of}" if of else name, value


def _with_spread(summary: Summary, path: str, name: str) -> str:
    """Say a rate of the section at `path`, and between which rates of its windows it lies."""
    section = look_up(summary, path) or {}
    if section.get(name) is None:
        return "-"
    said = f"{number(section[name])} {look_up(summary, 'rate.unit') or 'img/s'}"
    spread = section.get("spread")
    if not spread or section.get("short"):
        return said
    low, high = number(spread["min"]), number(spread["max"])
    return f"{said}   ({low} to {high} in {counted(spread['n'], 'window')})"


def _frames(summary: Summary) -> str:
    per = look_up(summary, "clips.decoded_per_delivered")
    decoded = f"   ({per:.2f} decoded for each)" if per else ""
    rate = look_up(summary, "clips.frames_per_s")
    return f"{number(rate)} frame/s{decoded}" if summary.get("clips") else ""


def _fallback(summary: Summary) -> str:
    """Say how many clips another decoder took, by sort of file."""
    others = look_up(summary, "clips.fallbacks") or {}
    most_first = sorted(others.items(), key=lambda one: -one[1])
    sorts = "; ".join(f"{count:,} {sort}" for sort, count in most_first)
    clips = counted(sum(others.values()), "clip")
    return f"{clips} by pyav instead ({sorts})" if others else ""


def _binds(summary: Summary) -> str:
    """Say which one stage holds the rate back."""
    binds = summary.get("binds")
    if not binds:
        return ""
    of = {"loader": "the loader's time", "step": "the step", "pause": "the run"}
    return f"{binds['stage']}, {binds['share']:.0%} of {of[binds['side']]}"


def _what_if(summary: Summary) -> str:
    """Say the best predictions, each with its range."""
    return "; ".join(what_if.told(summary, look_up(summary, "rate.unit") or "img/s"))


def _energy(summary: Summary) -> str:
    energy = summary.get("energy")
    if not energy:
        return ""
    unit = (look_up(summary, "rate.unit") or "img/s").removesuffix("/s")
    return f"{energy['joules_a_sample']:.3g} J/{unit} of the GPUs, {energy['run_kwh']:.3g} kWh in all"


def _start(summary: Summary) -> str:
    """Say when the first step was over, and what the time before went to."""
    parts = summary.get("start_s") or {}
    if "first step" not in parts:
        return ""
    longest = sorted(parts, key=parts.__getitem__, reverse=True)[:3]
    told = ", ".join(f"{name} {parts[name]:.1f} s" for name in longest)
    return f"after {sum(parts.values()):.1f} s ({told})"


def _stopped(summary: Summary) -> str:
    """Say why --patience has ended the run."""
    stop = summary.get("early_stop")
    if not stop:
        return ""
    worse = counted(stop["validations"], "validation")
    best = stop["best_epoch"]
    return f"after epoch {stop['epoch']}: {worse} no better than epoch {best}'s (--patience)"


def _dropped(summary: Summary) -> str:
    """Say how many samples were the tails of epochs, too few for a step."""
    dropped = summary.get("samples_dropped")
    if not dropped:
        return ""
    share = dropped / (dropped + summary["samples"])
    samples = counted(dropped, "sample")
    return f"{samples} ({share:.2%}), the tails of epochs: less than a step"


def _chosen(summary: Summary) -> str:
    """Say what the settings that were `auto` have become, and why."""
    why = {
        "loader": _why_loader(summary),
        "graphs": summary.get("graphs_off"),
        "precision": "on a GPU" if look_up(summary, "hardware.gpu") else "on a CPU",
    }
    said = []
    for name, value in (summary.get("auto") or {}).items():
        value = {True: "on", False: "off"}.get(value, value)
        said.append(f"{name} {value}" + (f" ({why[name]})" if why[name] else ""))
    return "; ".join(said)


def _why_loader(summary: Summary) -> str:
    """Say why --loader auto has become what it is."""
    auto = summary.get("loader_auto") or {}
    if measured := auto.get("measured"):
        before = ", as measured before" if auto.get("how") == "kept" else ""
        return f"fastest of {len(measured)}{before}"
    if auto:
        return "as in the checkpoint"
    alone = len(summary.get("loaders", ())) == 1
    return "no other one runs here" if alone else "none is measured to evaluate"


def _not_decoded(summary: Summary) -> str:
    failed = summary.get("samples_failed")
    return f"{counted(len(failed), 'sample')}, see failed.txt" if failed else ""


class Line(NamedTuple):
    """A line of the final table: what lies at `path` of a summary, said by a format, or by a function of the
    summary. A format without a value is `missing`; "" leaves the line out.
    """

    name: str
    say: str | Callable[[Summary], str]
    path: str = ""
    missing: str = "-"

    def text(self, summary: Summary) -> str:
        """Return what to say of a summary."""
        if not isinstance(self.say, str):
            return self.say(summary)
        value = look_up(summary, self.path)
        if value is None:
            return self.missing
        named = value if isinstance(value, Mapping) else {}
        return self.say.format(value, **named)


COMPUTE = partial(_with_spread, path="ceiling.compute", name="rate")
LOADER = partial(_with_spread, path="ceiling.loader", name="rate")
LINES = (
    Line("stopped early", _stopped),
    Line("left out", _dropped),
    Line("not decoded", _not_decoded),
    Line("chosen by auto", _chosen),
    Line("rate", partial(_with_spread, path="rate", name="steady")),
    Line("compute ceiling", COMPUTE),
    Line("loader ceiling", LOADER),
    Line("efficiency", "{:.1%} of the lower ceiling", "efficiency"),
    Line("bound by", "{}", "bound"),
    Line("data wait", "{ms:.2f} ms a step, {share:.1%} of the time", "data_wait"),
    Line("stage that binds", _binds),
    Line("slowest rank", "rank {rank}, by its {why}", "slowest_rank", ""),
    Line("energy", _energy),
    Line("first step", _start),
    Line("frames", _frames),
    Line("fallback", _fallback),
    Line("what if", _what_if),
    Line("change first", advice),
)
"""The lines of the final table behind the validation's, in their order."""


# --- figures as people read them ----------------------------------------------


def figures(result: Summary, declared: Sequence[Figure]) -> str:
    """Say the figures of a validation in one line, in the order of the result."""
    by_name = {figure.name: figure for figure in declared}
    words = []
    for name, value in result.items():
        figure = by_name.get(name, Figure(name=name))
        if figure.said == "never" or (figure.said == "unless zero" and not value):
            continue
        if isinstance(value, int):
            words.append(f"{name} {value:,}")
        elif figure.unit == "%" or math.isnan(value):
            words.append(f"{name} {_metric(figure, value)}")
        else:
            words.append(f"{name} {value:.4g}")
    return "  ".join(words)


def _metric(figure: Figure, value: float | None) -> str:
    # nan is text in a summary that was read again
    if not isinstance(value, int | float) or math.isnan(value):
        return "-"
    if figure.unit == "%":
        return f"{value:.2%}"
    return f"{value:.2f} {figure.unit}" if figure.unit else f"{value:.4f}"


def took(seconds: Mapping[str, float] | None) -> str:
    """Say how long a validation's pass and scoring kept training waiting."""
    return f"  in {seconds['pass'] + seconds['waited']:.1f} s" if seconds else ""


def number(value: float | None) -> str:
    """Say a number with three digits, or whole from 100 on; '-' for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Say a time in seconds, minutes:seconds or hours:minutes, with its unit."""
    minutes, left = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{left} s"
    if minutes < 60:
        return f"{minutes}:{left:02} min"
    return f"{minutes // 60}:{minutes % 60:02} h"
