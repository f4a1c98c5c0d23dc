"""Figures as people read them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from saturate.contracts import Figure


def figures(result: Mapping[str, int | float], declared: Sequence[Figure]) -> str:
    """Say the figures of a validation in one line, in the order of the result."""
    by_name = {figure.name: figure for figure in declared}
    words = []
    for name, value in result.items():
        figure = by_name.get(name, Figure(name=name))
        if figure.said == "never" or (figure.said == "unless zero" and not value):
            continue
        if isinstance(value, int):
            said = f"{value:,}"
        elif figure.unit == "%" or math.isnan(value):
            said = metric(figure, value)
        else:
            said = f"{value:.4g}"
        words.append(f"{name} {said}")
    return "  ".join(words)


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
