"""Types of settings that several groups have."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, FiniteFloat

Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
Side = Annotated[int, Field(ge=8, le=65_536)]
"""Length in pixels."""
NotNegative = Annotated[FiniteFloat, Field(ge=0)]
