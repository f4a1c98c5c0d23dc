"""Settings of the clips of a video."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, FiniteFloat

from saturate.settings.cli import Settings
from saturate.settings.types import Facts, Side, setting


def _whole(value: object) -> object:
    """Return the number that a word of a command line is: a Literal takes no text for it."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


class Clips(Settings):
    """Clips that are taken from videos (--task video)."""

    facts: ClassVar[Facts] = Facts(tasks=("video",))

    clip_frames: Annotated[int, Field(gt=0, le=1_000_000)] = 16
    """Frames of a clip."""
    clip_stride: Annotated[int, Field(gt=0, le=1_000_000)] = 2
    """Distance from one frame of a clip to the next, in frames of the video, or of --clip-fps where that is
    given."""
    clip_fps: Annotated[FiniteFloat, Field(gt=0, le=1000)] | None = None
    """Take the frames nearest in time at this rate. Default: each video at its own."""
    short_side: tuple[Side, Side] | None = setting(None, evaluation="unused")
    """Training: the shorter side is scaled to a random length between these two before the crop, pixels.
    Default: image size * 256 / 224 and * 320 / 224."""
    val_clips: Annotated[int, Field(gt=0, le=1_000_000)] = setting(
        5, changes_rate=False
    )
    """Validation: clips of a video, evenly spaced; their logits are averaged."""
    val_crops: Annotated[Literal[1, 3], BeforeValidator(_whole)] = setting(
        1, changes_rate=False
    )
    """Validation: crops of a clip, the middle or three along the longer side."""
