"""Epochs in which every class comes alike, however many samples it has. Knows no file and no device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from saturate.contracts import Array
from saturate.plan.draws import Purpose, bits, key
from saturate.plan.order import order


@dataclass(frozen=True, kw_only=True)
class Balance:
    """Classes that share an epoch of n items alike: each of the C that have samples gets n / C of them.

    A large class shows another part of its samples each epoch; a small one shows each several times. It is a
    function of the labels of the whole data set, so that ranks and resumes change nothing.
    """

    labels: Array  # int [n], the class of each sample
    most: int  # how often a sample comes in an epoch, at most

    @staticmethod
    def from_labels(labels: Array) -> Balance:
        """Return the balance of the samples' labels."""
        counts = np.bincount(labels)
        counts = counts[counts > 0]
        largest_share = -(-len(labels) // len(counts))
        return Balance(labels=labels, most=-(-largest_share // int(counts.min())))

    def ordered(self, seed: int, epoch: int) -> Array:
        """Return int64 [n], items of the epoch: item sample * most + r is the sample's repeat r."""
        count = len(self.labels)
        shuffled = order(seed, epoch, count)
        # each class's samples lie together, in the order of the epoch
        grouped = shuffled[np.argsort(np.asarray(self.labels)[shuffled], kind="stable")]
        sizes = np.bincount(self.labels)
        sizes = sizes[sizes > 0]
        begins = np.cumsum(sizes) - sizes
        classes = len(sizes)
        share, rest = divmod(count, classes)
        # the classes with one item more are others each epoch
        shares = share + ((np.arange(classes) + epoch) % classes < rest)
        which = np.repeat(np.arange(classes), shares)
        place = np.arange(count) - np.repeat(np.cumsum(shares) - shares, shares)
        repeat, own = np.divmod(place, sizes[which])
        items = grouped[begins[which] + own] * self.most + repeat
        return items[
            np.argsort(bits(key(seed, epoch, Purpose.BALANCE), np.arange(count)))
        ]
