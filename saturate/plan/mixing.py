"""mixup and cutmix as numbers of a micro-batch: which row each is mixed with, and how much of it is shown.

They are drawn from the micro-batch's own key (`Rows.keys`), and travel as targets. Knows no label, no device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from saturate.contracts import Array, Rows
from saturate.plan.draws import bits

MOST_ALPHA = 4.0
"""Beyond it nearly all pairs that `beta` draws are thrown away."""
PAIRS = 256
"""Pairs of uniforms that are tried at once."""
MIXED, CUT, SHIFT, CENTRE_X, CENTRE_Y, FIRST_PAIR = range(6)
"""Counters of a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """How micro-batches are mixed: by mixup (Zhang et al. 2017), cutmix (Yun et al. 2019) or either.

    Every row of a micro-batch is mixed with the one so many places behind it, cyclically, and with the same
    share, as in timm's batch mode.
    """

    # alpha of Beta(alpha, alpha), which the share is drawn from; 0: no mixup
    mixup: float = 0.0
    cutmix: float = 0.0  # the same
    probability: float = 1.0  # that a micro-batch is mixed at all
    switch: float = 0.5  # that it is cutmix, where both are on

    @property
    def mixes(self) -> bool:
        """Whether anything is mixed."""
        return self.probability > 0 and max(self.mixup, self.cutmix) > 0

    def targets(self, rows: Rows) -> dict[str, Array]:
        """Return what each row is made of; a row that is not valid mixes with nobody.

        partners int64 [B], the other row; shares float32 [B], of the own label; blends float32 [B], of the
        own pixels; cuts int64 [B, 4], x0 y0 x1 y1 in the canvas, where all pixels are the other's.
        """
        if rows.keys is None:
            raise ValueError(
                "mixup and cutmix are drawn from Rows.keys, which this plan does not give"
            )
        key = int(rows.keys[0])
        count = len(rows)
        shift = 1 + int(_uniform(key, SHIFT) * (count - 1))
        partners = (np.arange(count) + shift) % count
        together = rows.valid & rows.valid[partners]
        share, blend, cut = self._drawn(key, rows.padded)
        return {
            "partners": np.where(together, partners, np.arange(count)),
            "shares": np.where(together, share, 1.0).astype(np.float32),
            "blends": np.where(together, blend, 1.0).astype(np.float32),
            "cuts": np.where(together[:, None], np.array(cut, np.int64), 0),
        }

    def _drawn(
        self, key: int, size: tuple[int, int]
    ) -> tuple[float, float, tuple[int, int, int, int]]:
        """Return (share of the own label, of the own pixels, cut) of the micro-batch."""
        nothing = (0, 0, 0, 0)
        if _uniform(key, MIXED) >= self.probability:
            return 1.0, 1.0, nothing
        cuts = self.cutmix > 0 and (self.mixup == 0 or _uniform(key, CUT) < self.switch)
        share = beta(key, self.cutmix if cuts else self.mixup)
        if not cuts:
            return share, share, nothing
        height, width = size
        # the box has the other's share of the area, around a pixel, and is cut at the edges
        tall = int(height * (1 - share) ** 0.5)
        wide = int(width * (1 - share) ** 0.5)
        x = int(_uniform(key, CENTRE_X) * width)
        y = int(_uniform(key, CENTRE_Y) * height)
        x0 = max(x - wide // 2, 0)
        y0 = max(y - tall // 2, 0)
        x1 = min(x + wide // 2, width)
        y1 = min(y + tall // 2, height)
        return 1 - (x1 - x0) * (y1 - y0) / (width * height), 1.0, (x0, y0, x1, y1)


UNMIXED = Mixing()
"""Nothing is mixed."""


def beta(key: int, alpha: float) -> float:
    """Return a number of Beta(alpha, alpha), 0 < alpha <= MOST_ALPHA, by Joehnk's rejection (1964).

    In logarithms, because uniforms to the power of 1 / alpha vanish where alpha is small.
    """
    first = FIRST_PAIR
    while True:
        counters = np.arange(first, first + 2 * PAIRS)
        # axes: [2, PAIRS], in (0, 1]
        uniforms = (
            ((bits(key, counters) >> np.uint64(11)) + np.uint64(1)) * 2.0**-53
        ).reshape(2, PAIRS)
        one, other = np.log(uniforms) / alpha
        both = np.logaddexp(one, other)
        if (both <= 0).any():
            at = int((both <= 0).argmax())
            return float(np.exp(one[at] - both[at]))
        first += 2 * PAIRS


def _uniform(key: int, counter: int) -> float:
    """Return a uniform of the key, in [0, 1)."""
    return float(int(bits(key, np.array([counter]))[0]) >> 11) * 2.0**-53
