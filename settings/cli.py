"""Command line -> Settings: a field is a flag, its docstring is its --help, and an error of the parser
becomes one line.

Must not know: any setting.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import tyro
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationInfo,
    field_validator,
)

from contracts import UserError
from settings.types import Facts
from system.user_files import local_path

OR_URL = "or a URL"
"""Marks a setting that may be a URL."""


class Settings(BaseModel):
    """Settings are frozen and keyword-only, and refuse unknown keys, and URLs where none is expected."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True
    )
    facts: ClassVar[Facts] = Facts()

    @field_validator("*", mode="before")
    @classmethod
    def _on_this_machine(cls, value: Any, info: ValidationInfo) -> Any:
        if OR_URL not in cls.model_fields[str(info.field_name)].metadata:
            for each in value if isinstance(value, tuple | list) else (value,):
                if isinstance(each, str | Path):
                    local_path(each)
        return value


def _text(place: Any) -> Any:
    return str(place) if isinstance(place, Path) else place


FolderOrUrl = Annotated[str | None, BeforeValidator(_text), OR_URL]
"""A folder or URL is kept as text, since a Path of s3://bucket would be s3:/bucket."""


Flags = TypeVar("Flags", bound=Settings)


def flags(
    cls: type[Flags],
    argv: list[str],
    *,
    prog: str,
    default: Flags | None = None,
    tables: Mapping[str, Iterable[str]] | None = None,
    answer: Callable[[str], str] = lambda _: "",
) -> Flags:
    """Return the settings that flags ask for; a group's settings have no prefix. Raises UserError; --help
    prints and exits 0.

    `tables`: in the docstrings of settings "{name}" stands for what the table of that name has. `answer` says
    what a word that is no flag is called here, or "".
    """
    for word, value in zip(argv, (*argv[1:], None), strict=False):
        # as a path it would be the current folder
        if word.startswith("--") and (value == "" or word.endswith("=")):
            raise UserError(
                f"flags: {word.rstrip('=')} got an empty value; give one, or leave the flag out"
            )
    said = io.StringIO()
    groups = [
        info.annotation
        for info in cls.model_fields.values()
        if isinstance(info.annotation, type)
    ]
    groups = [group for group in groups if issubclass(group, Settings)]
    known = {
        name: info
        for group in (groups or [cls])
        for name, info in group.model_fields.items()
    }
    try:
        with contextlib.redirect_stderr(said), _told(known, tables or {}):
            return tyro.cli(
                cls,
                args=_spelled_out(
                    argv,
                    {
                        f"--{name.replace('_', '-')}"
                        for name, info in known.items()
                        if info.annotation is bool
                    },
                ),
                default=cls() if default is None else default,
                prog=prog,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagConversionOff),
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        lists_all = "--help-all" if prog == "train.py" else f"{prog} --help"
        raise UserError(_one_line(said.getvalue(), known, answer, lists_all)) from None


@contextlib.contextmanager
def _told(
    known: Mapping[str, Any], tables: Mapping[str, Iterable[str]]
) -> Iterator[None]:
    """Put the names of the tables into the docstrings of settings while the body runs."""
    texts = {name: info.description or "" for name, info in known.items()}
    try:
        for name, text in texts.items():
            for table, names in tables.items():
                text = text.replace(f"{{{table}}}", ", ".join(names))
            known[name].description = text
        yield
    finally:
        for name, text in texts.items():
            known[name].description = text


def _spelled_out(argv: list[str], switches: set[str]) -> list[str]:
    """Return the flags as the parser takes them: true and false in Python's spelling, and True for a switch
    without a value."""
    words = [
        re.sub(
            r"^(--[^=]*=)?(true|false)$",
            lambda found: (found[1] or "") + found[2].capitalize(),
            word,
        )
        for word in argv
    ]
    out: list[str] = []
    for word, following in zip(words, [*words[1:], ""], strict=bool(words)):
        bare = word in switches and (not following or following.startswith("--"))
        out += [word, "True"] if bare else [word]
    return out


def _one_line(
    box: str, known: Mapping[str, Any], answer: Callable[[str], str], lists_all: str
) -> str:
    """Return the parser's framed message as one line; `lists_all` is what lists every flag."""
    # the frame is of dashes where the terminal has nothing better
    text = re.sub(r"[│╭╮╰╯─]|-{4,}", " ", box)
    text = (
        " ".join(text.split())
        .split("For full helptext")[0]
        .split("Argument helptext:")[0]
        .strip()
    )
    found = re.search(
        r"validation errors? for \w+ (\w+)(?:\.\S+)* (.*?) \[type=([^,]*), input_value=(.*?), input_type",
        text,
    )
    if found:
        name, said, kind, got = found.groups()
        return f"flags: --{name.replace('_', '-')}{wrong(kind, said, got)}"
    text = re.sub(
        r"^(Value error|Missing argument|Unrecognized options|Invalid choice|Parsing error"
        r"|Missing required options) ",
        "",
        text,
    )
    several = re.match(
        r"Error parsing (--\S+): no type matching (.*?) could be instantiated from \[(.*?)\]",
        text,
    )
    if several:
        flag, kinds, got = several.groups()
        takes = " or ".join(
            kind.strip("{}") for kind in kinds.split("|") if kind != "{None}"
        )
        return f"flags: {flag} got {got.replace(chr(39), '').replace(',', '') or 'nothing'}; it takes {takes}"
    number = re.match(
        r"Error parsing (--\S+): (invalid literal for int|could not convert string to float)[^']*: (.*)",
        text,
    )
    if number:
        return (
            f"flags: {number[1]} got {number[3]}; it takes "
            f"{'a whole number' if number[2].endswith('int') else 'a number'}"
        )
    unknown = re.match(r"Unrecognized options: ([^\s,]+)", text)
    if unknown and (ours := answer(unknown.group(1))):
        return f"flags: {unknown.group(1)}{ours}"
    if unknown:
        near = nearest(
            unknown.group(1).lstrip("-"),
            [name.replace("_", "-") for name in known],
            prefix="--",
        )
        return f"flags: unknown flag '{unknown.group(1)}'{near}; {lists_all} lists every setting"
    return f"flags: {text.replace(str(('True', 'False')), 'true, false')}"


def wrong(kind: str, message: str, got: str) -> str:
    """Return what is wrong with a setting, to stand behind its name, by pydantic's type of error and message.

    Our own checks raise ValueError, whose message says all. It does not repeat a URL, which may hold a
    signature.
    """
    if kind == "value_error":
        return f" {message.removeprefix('Value error, ')}"
    return f" got {got}: {message[0].lower()}{message[1:]}"


def nearest(name: str, known: Any, *, prefix: str = "") -> str:
    """Return ' (did you mean a or b?)', each name behind the prefix, or '' when no name is near."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.55)
    return (
        f" (did you mean {' or '.join(prefix + one for one in close)}?)"
        if close
        else ""
    )


def one_of(flag: str, name: str, known: Any, *, auto: str | None = None) -> str:
    """Return `name` when `known` has it, and `auto` for 'auto'. Raises UserError with the nearest names."""
    if name == "auto" and auto is not None:
        return auto
    if name in known:
        return name
    why = nearest(name, known) or ", which is unknown"
    allowed = f"; known: {', '.join(known)}" if len(known) <= 16 else ""
    raise UserError(f"{flag} got '{name}'{why}{allowed}")
