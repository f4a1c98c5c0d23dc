"""How long the parts of a program's start take, from the moment that its process was made."""

from __future__ import annotations

import time

import psutil


class Timeline:
    """The seconds of each part of the start; a part ends at its `mark`, and the first began with the process, or at
    `began`, in seconds of time.time.
    """

    def __init__(self, began: float | None = None) -> None:
        self._began = self._last = began or psutil.Process().create_time()
        self.seconds: dict[str, float] = {}

    def mark(self, part: str) -> None:
        """End the part; again without effect."""
        now = time.time()
        if part not in self.seconds:
            # clocks of a machine may be set back
            self.seconds[part] = max(now - self._last, 0.0)
            self._last = now

    def passed_s(self) -> float:
        """Return the seconds since the process was made."""
        return max(time.time() - self._began, 0.0)

    def summary(self) -> str:
        """Return all parts with their seconds, in a line."""
        parts = ", ".join(f"{part} {s:.2f}" for part, s in self.seconds.items())
        return f"start, s: {parts}; {sum(self.seconds.values()):.2f} in all"
