"""Flags of the suites, of which many take several values: what was got and what is allowed, in one line. Must
not know a suite."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from contracts import UserError
from settings.cli import Settings, flags, wrong

S = TypeVar("S", bound=Settings)


def asked(cls: type[S], argv: list[str], *, prog: str) -> S:
    """Return the settings that flags ask for, as cli.flags does. A value that is not allowed is named alone,
    by pydantic and not by the parser. Raises UserError."""
    try:
        return flags(cls, argv, prog=prog)
    except UserError as mistake:
        raise _refused(cls, argv, prog) or mistake from None


def _refused(cls: type[Settings], argv: list[str], prog: str) -> UserError | None:
    """Return the error of the first flag with a wrong value; None when something else is wrong."""
    for flag, words in _given(argv):
        name = flag.removeprefix("--").replace("-", "_")
        info = cls.model_fields.get(name)
        several = str(getattr(info, "annotation", "")).startswith("tuple")
        if info is None or not words:
            continue
        try:
            cls.model_validate({name: words if several else words[0]})
        except ValidationError as error:
            first = error.errors()[0]
            said = wrong(first["type"], first["msg"], f"'{first['input']}'")
            return UserError(f"{flag}{said}; {prog} --help says what it takes")
    return None


def _given(argv: list[str]) -> list[tuple[str, list[str]]]:
    """Return each flag with the words behind it."""
    found: list[tuple[str, list[str]]] = []
    for word in argv:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            found.append((flag, [value] if equals else []))
        elif found:
            found[-1][1].append(word)
    return found
