"""Figures as people read them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from saturate.contracts import Figure


def figures(
    result: Mapping[str, int | float],
    declared: Sequence[Figure],
    averaged: Mapping[str, int | float],
) -> str:
    """Say the figures of a validation in one line, in the order of the result.

    In brackets are those of the weights' average (`averaged`; {} without --ema), but for counts that are alike.
    """
    by_name = {figure.name: figure for figure in declared}
    words = []
    for name, value in result.items():
        figure = by_name.get(name, Figure(name=name))
        if figure.shown == "never" or (figure.shown == "unless zero" and not value):
            continue
        text = _figure(figure, value)
        if name in averaged and not (
            isinstance(value, int) and averaged[name] == value
        ):
            text += f" ({_figure(figure, averaged[name])})"
        words.append(f"{name} {text}")
    return "  ".join(words)


def _figure(figure: Figure, value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if figure.unit == "%" or math.isnan(value):
        return metric(figure, value)
    return f"{value:.4g}"


def metric(figure: Figure, value: float | str | None) -> str:
    """Say a figure of a validation with its unit; '-' for what is not known."""
    # nan is text in a summary that was read again
    if not isinstance(value, int | float) or math.isnan(value):
        return "-"
    if figure.unit == "%":
        return f"{value:.2%}"
    return f"{value:.2f} {figure.unit}" if figure.unit else f"{value:.4f}"


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


def ends(seconds: float) -> str:
    """Say when so many seconds from now are over, on this machine's clock: 18:40, or Tue 18:40 of another day."""
    now = datetime.now()
    end = now + timedelta(seconds=seconds)
    return end.strftime("%H:%M" if end.date() == now.date() else "%a %H:%M")
