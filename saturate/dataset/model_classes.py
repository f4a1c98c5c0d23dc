"""The classes that a model was trained on against those of the data: which of its outputs each class is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from saturate.contracts import Array, UserError
from saturate.dataset.coco.columns import BACKGROUND, UNUSED
from saturate.dataset.scan.names import key

SHOWN = 5
"""Names of a message."""


@dataclass(frozen=True, kw_only=True)
class ModelClasses:
    """The names of a model's outputs, in their order."""

    names: tuple[str, ...]
    origin: str  # what they are of, to begin a message: "--resume runs/a/best.pt"
    published: bool = False  # weights that others have published: folders may have other names for the classes

    def numbers(self, classes: Sequence[str]) -> tuple[Array, str, bool]:
        """Return the output of each class of the data, int64 [C], a line to say, and whether it is a doubt.

        Raises UserError naming a class that the model does not have.
        """
        exact = defaultdict[str, list[int]](list)
        alike = defaultdict[str, list[int]](list)
        for place, name in enumerate(self.names):
            exact[name].append(place)
            alike[plain(name)].append(place)
        matches = [exact[name] or alike[plain(name)] for name in classes]
        unknown = [
            name for name, places in zip(classes, matches, strict=True) if not places
        ]
        if not unknown:
            numbers = [place for places in matches for place in places]
            times = Counter(numbers)
            for name, places in zip(classes, matches, strict=True):
                # of torchvision's readable names of ImageNet's classes two are 'crane'
                if len(places) > 1 or times[places[0]] > 1:
                    outputs = ", ".join(map(str, places))
                    raise UserError(
                        f"--data: class '{name}' and the outputs {outputs} of {self.origin} are not one "
                        "each: give each class a name of its own"
                    )
            return np.array(numbers, np.int64), "", False
        if self.published and all(
            name.isdecimal() and int(name) < len(self.names) for name in classes
        ):
            # ImageNet-V2's folders, 0 to 999, which sort as text
            note = f"--data: its {len(classes)} classes are numbers, taken as those of {self.origin}'s outputs"
            return np.array([int(name) for name in classes], np.int64), note, False
        if self.published and len(classes) == len(self.names):
            note = (
                f"--data: '{unknown[0]}' is no class of {self.origin}: the {len(classes)} classes of --data, "
                "in the order of their names, are taken as the outputs; if they are others, the figures mean "
                "nothing"
            )
            return np.arange(len(classes)), note, True
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        known = [f"'{name}'" for name in self.names if name not in (BACKGROUND, UNUSED)]
        shown = ", ".join(known[:SHOWN]) + ", ..." * (len(known) > SHOWN)
        raise UserError(
            f"--data: class '{unknown[0]}'{more} of {len(classes)} is none of the {len(known)} classes of "
            f"{self.origin} ({shown}): rename or remove it, or train on it"
        )


def plain(name: str) -> str:
    """Return a name as it is compared: blanks of published names are underscores in folders."""
    return key(name).replace(" ", "_")
