"""Types that several groups of settings have, and Facts: what is known of a setting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat

Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
Side = Annotated[int, Field(ge=8, le=65_536)]
"""Length in pixels."""
NotNegative = Annotated[FiniteFloat, Field(ge=0)]
IMAGES = ("classification",)
CLASSIFIERS = ("classification", "video")
STILLS = ("classification", "detection")
AUGMENTED = ("classification", "detection", "video")
"""Groups of tasks, for `tasks` of Facts: a setting of IMAGES is read by --task classification alone."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a setting. A group's `facts` are those of its settings, but for what a Field says."""

    tasks: tuple[str, ...] = ()
    """Tasks that read it, beside those that name it themselves (TaskKind.also); () = all tasks."""
    needs: tuple[str, ...] = ()
    """Another setting, then its values with which alone this one is read, auto beside them; without values
    that one has to be given, and not 0."""
    changes_rate: bool = True
    """The rate of step or loader may depend on it: what was measured with another value does not hold."""
    resume: Literal["named", "free", "scanned"] = "named"
    """A resumed run names it where it has changed, or not (free); scanned: columns depend on it too."""
    evaluation: Literal["checkpoint", "free", "own", "unused"] = "checkpoint"
    """To evaluate it is the checkpoint's, and a flag that differs is named, or not (free). own: the settings
    of this run alone say it. unused: training alone reads it, and it has its default."""
    ranks: Literal["alike", "own", "first"] = "alike"
    """All ranks have the same value; a host may have its own, such as a path; or rank 0's is taken."""
    recipe: bool = True
    """It is part of how a network is trained; False: of what one run reads, writes or measures."""


def setting(default: Any, **facts: Any) -> Any:
    """Return the default of a setting, with those of its `facts` that are not its group's."""
    return Field(default, json_schema_extra=facts)
