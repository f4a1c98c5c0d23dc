"""A user's own function of training images, `--transforms package.module:function`, as workers call it.

    f(image, rng) -> image      uint8 [H, W, 3], RGB; rng: numpy.random.Generator of the sample's own key

Must not know where an image comes from.
"""

from __future__ import annotations

import os
import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from saturate.contracts import Array, UserError
from saturate.system.user_files import imported


class Transform:
    """A function by its name. Raises UserError where there is none of that name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._function = _named(name)

    def __call__(self, image: Array, seed: int) -> Array:
        """Return what the function makes of uint8 [H, W, 3]. Raises UserError unless that has this form too.

        torch, numpy and random are seeded for it, and go on afterwards where they were.
        """
        try:
            with _seeded(seed):
                made = self._function(image, np.random.default_rng(seed))
        except (Exception, SystemExit) as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            message = " ".join(str(error).split())  # on one line
            raise UserError(
                f"--transforms {self.name} raised {type(error).__name__}: {message} "
                f"({os.path.basename(place.filename)}, line {place.lineno})"
            ) from error
        if (
            not isinstance(made, np.ndarray)
            or made.dtype != np.uint8
            or made.shape != image.shape
        ):
            form = (
                f"{made.dtype} {made.shape}"
                if isinstance(made, np.ndarray)
                else type(made).__name__
            )
            raise UserError(
                f"--transforms {self.name} returned {form} for uint8 {image.shape}; it must return an array "
                "of the dtype and shape that it was given"
            )
        return made


def _named(name: str) -> Callable[[Array, Any], Any]:
    """Return the function of that name. Raises UserError."""
    try:
        attribute: Callable[[Array, Any], Any] = imported(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"--transforms {name}: {error}; it names a function, as package.module:function, of a "
            "module in PYTHONPATH or in this folder"
        ) from None
    return attribute


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch, numpy and random, and put them back: without workers they are the run's own."""
    # torch.manual_seed would seed the GPU as well
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002
    torch.default_generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])
