"""Architecture name -> module: a file a registry, and what they have in common. Imports nothing of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import nn

AUXILIARY_WEIGHTS = {"googlenet": 0.3, "inception_v3": 0.4}
"""Weight of each auxiliary head's loss: Szegedy et al. 2014 (GoogLeNet) and the value in common use for
Inception v3."""


class Native(NamedTuple):
    """The input that an architecture was published for."""

    size: int  # side of the images, pixels; of detectors the shorter one
    mean: tuple[float, float, float]  # of RGB in [0, 1]
    std: tuple[float, float, float]
    # of detectors: the longer side at most; None = images are stretched to size x size
    longer: int | None = None
    # of classifiers: side of the validation's crop, over the length of the shorter side before it
    crop_share: float = 224 / 256
    interpolation: str = "bilinear"  # of resampling
    # of validation: a name of --val-window, or of one that is not here
    window: str = "center"
    # of published weights: side and crop share that they are evaluated with, where these are others
    tested: tuple[int, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What the weights were that a network began with."""

    # parameters left as they are: theirs are for other classes
    anew: list[str] = field(default_factory=list)
    # of a checkpoint of this program, whose classes the head as it is in there has
    classes: tuple[str, ...] = ()
    # and how its images were made: mean, std, interpolation
    used: Mapping[str, Any] = field(default_factory=dict)
    # what was chosen in the file, for the user
    notes: list[str] = field(default_factory=list)


class Unusable(ValueError):
    """An architecture or weights that cannot be used as asked, in one line."""


class Registry(Protocol):
    """The architectures of a task: a module such as models/classification.py, or anything with these
    functions."""

    def names(self) -> list[str]:
        """Return every name that --arch takes."""

    def native(self, arch: str, weights: str | None = None) -> Native:
        """Return what the architecture, with these weights, was made for."""

    def build(self, arch: str, *args: Any, **kwargs: Any) -> tuple[nn.Module, Loaded]:
        """Build it for batches of `shape`, with `weights` if any, and with what TaskKind.building gives.

        Raises Unusable.
        """

    def classes(self, arch: str, weights: str) -> tuple[str, ...]:
        """Return the names of the outputs of published weights; () for any other file."""
