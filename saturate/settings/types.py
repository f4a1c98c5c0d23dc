"""Types that several groups of settings have, and Facts: what is known of a setting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat

Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
Side = Annotated[int, Field(ge=8, le=65_536)]
"""Length in pixels."""
NotNegative = Annotated[FiniteFloat, Field(ge=0)]
LABELLED_IMAGES = ("classification",)
CLASSIFIERS = ("classification", "video")
STILLS = ("classification", "detection")
# whose images may be entries of a store, or lie behind URLs
STORED = ("classification", "superres")
AUGMENTED = ("classification", "detection", "video")
"""Groups of tasks, for `tasks` of Facts: a setting of LABELLED_IMAGES is read by --task classification alone."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a setting.

    A group's `facts` hold for all its settings; `setting(default, name=...)` overrides one.
    """

    tasks: tuple[str, ...] = ()
    """Tasks that read it, beside those that name it themselves (TaskKind.also); () = all tasks."""
    needs: tuple[str, ...] = ()
    """(setting, *values): read only where that setting has such a value, or is auto or not given. (setting,): where it
    is given and not 0."""
    changes_rate: bool = True
    """The rate of step or loader may depend on it: what was measured with another value does not hold."""
    resume: Literal["named", "free", "scanned", "located"] = "named"
    """What a resumed run says of a change.

    named: the change is named
    free: it is not
    scanned: it is named, also as the reason why the data set's columns differ
    located: the flag is named as that reason alone
    """
    evaluation: Literal["checkpoint", "free", "own", "unused"] = "checkpoint"
    """Whose value an evaluation has.

    checkpoint: the checkpoint's, or a flag's, which is named where it differs
    free: the same, and nothing is named
    own: that of this run's settings
    unused: the default, as training alone reads it
    """
    ranks: Literal["alike", "own", "first"] = "alike"
    """Whose value a rank has.

    alike: its own, which has to be that of all ranks
    own: its own, such as a path
    first: rank 0's
    """
    of_data: bool = False
    """It says what --data is, or what of it validates: a checkpoint's holds for its own data alone."""
    recipe: bool = True
    """It is part of how a network is trained; False: of what one run reads, writes or measures."""


def setting(default: object, **facts: Any) -> Any:
    """Return a Field with this default and the facts that differ from its group's."""
    return Field(default, json_schema_extra=facts)
