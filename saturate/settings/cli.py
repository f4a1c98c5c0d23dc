"""Command line -> Settings: a field is a flag, its docstring is its help, and a wrong value is one line.

argparse splits the words, and pydantic alone reads them. Must not know: any setting.
"""

from __future__ import annotations

import argparse
import difflib
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo

from saturate.contracts import UserError
from saturate.settings.preset import shown
from saturate.settings.types import Facts
from saturate.system.urls import taken
from saturate.system.user_files import local_path

OR_URL = "or a URL"
"""Marks a setting that may be a URL."""
POSITIONAL = "positional"
"""Marks a setting whose values stand behind a program's name without a flag."""


class Settings(BaseModel):
    """Settings are frozen and keyword-only, and refuse unknown keys, and URLs where none is expected.

    Of one that may be without a value, `none` says so, on a command line and in a preset.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True
    )
    facts: ClassVar[Facts] = Facts()

    @field_validator("*", mode="before")
    @classmethod
    def _on_this_machine(cls, value: object, info: ValidationInfo) -> object:
        field = cls.model_fields[str(info.field_name)]
        if _is_none(value, field):
            return None
        if OR_URL not in field.metadata:
            for each in value if isinstance(value, tuple | list) else (value,):
                if isinstance(each, str | Path):
                    local_path(each)
        return value


def _is_none(value: object, field: FieldInfo) -> bool:
    """Whether a value is the word `none`, of a setting that may be without one."""
    word = value[0] if isinstance(value, list) and len(value) == 1 else value
    optional = NoneType in _kinds(field.annotation)
    return optional and isinstance(word, str) and word.casefold() == "none"


def _text(place: object) -> object:
    return taken(str(place)) if isinstance(place, str | Path) else place


FolderOrUrl = Annotated[str | None, BeforeValidator(_text), OR_URL]
"""A folder or URL is kept as text, since a Path of s3://bucket would be s3:/bucket. The text has no secret."""

S = TypeVar("S", bound=Settings)


def flags(cls: type[S], argv: list[str], *, prog: str) -> S:
    """Return the settings that flags ask for. Raises UserError; --help prints and exits 0."""
    argv = [*map(taken, argv)]
    words = flag_words({prog: cls}, argv, prog=prog, about=cls.__doc__)
    try:
        return cls.model_validate(words)
    except ValidationError as error:
        raise UserError(f"flags: {refusal(error)}") from None


def flag_words(
    groups: Mapping[str, type[Settings]],
    argv: list[str],
    *,
    prog: str,
    about: str | None,
    tables: Mapping[str, Iterable[str]] | None = None,
    answer: Callable[[str], str] = lambda _: "",
) -> dict[str, Any]:
    """Return the words behind each flag, by the name of its setting: text, or a list where it takes several.

    `tables`: in the docstrings of settings "{name}" stands for what the table of that name has. `answer` says
    what a word that is no flag is called here, or "". Raises UserError; --help prints and exits 0.
    """
    parser = _Parser(
        prog=prog,
        usage="%(prog)s [FLAG VALUE ...]",
        description=about,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=_Help,
    )
    fields: dict[str, FieldInfo] = {}
    for group, cls in groups.items():
        section = parser.add_argument_group(f"{group} options", cls.__doc__)
        for name, info in cls.model_fields.items():
            fields[name] = info
            _add(section, name, info, tables or {})
    dashed = [_with_dashes(word) for word in argv]
    values, unknown = parser.parse_known_args(dashed)
    if unknown:
        known = [name.replace("_", "-") for name in fields]
        # a word behind the first one that is no flag is mostly the value of an unknown flag
        asked = [
            word
            for at, word in enumerate(unknown)
            if not at or (word.startswith("-") and word.lstrip("-")[:1].isalpha())
        ]
        # flags of ours that mean something else to others have an answer, too
        taken = [f"--{name.replace('_', '-')}" for name in vars(values)]
        others = [flag for flag in taken if answer(flag)]
        before = [word for word in dashed[: dashed.index(unknown[0])] if "--" in word]
        is_number = unknown[0].replace(".", "", 1).isdigit()
        if is_number and before and before[-1] in others:
            asked = asked[1:] + others
        elif any(word.startswith("-") and answer(word) for word in asked):
            asked += others
        problem, *more = (_of_unknown(word, known, answer) for word in asked)
        lists_all = "--help-all" if prog == "train.py" else f"{prog} --help"
        if more:
            more = [problem, *more]
            problem = f"{len(more)} are unknown"
        raise UserError(f"flags: {problem}; {lists_all} lists every setting", *more)
    words = vars(values)
    for name, value in words.items():
        if "" in (value if isinstance(value, list) else [value]):
            flag = name.replace("_", "-")
            remedy = "give one, or leave the flag out"
            # an empty path would be the current folder
            raise UserError(f"flags: --{flag} got an empty value; {remedy}")
        if _is_none(value, fields[name]):
            words[name] = None
        elif (members := _members(fields[name])) and len(value) != members:
            flag = name.replace("_", "-")
            raise UserError(f"flags: --{flag}: expected {members} arguments")
    return words


def _of_unknown(word: str, known: list[str], answer: Callable[[str], str]) -> str:
    """Return what to say of a word of a command line that is no flag here."""
    if hint := answer(word):
        return word + hint
    return f"unknown flag '{word}'{nearest(word.lstrip('-'), known, prefix='--')}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"flags: {message.removeprefix('argument ')}")


class _Help(argparse.HelpFormatter):
    """Breaks lines between words alone: a name with dashes stays whole, and no last line has one word."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        words = " ".join(text.split())
        lines = textwrap.wrap(words, width, break_on_hyphens=False)
        for narrower in range(width - 1, width // 2, -1):
            if len(lines) < 2 or " " in lines[-1]:
                break
            lines = textwrap.wrap(words, narrower, break_on_hyphens=False)
        return lines

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = self._split_lines(text, width - len(indent))
        return "\n".join(indent + line for line in lines)


def _add(
    section: argparse._ArgumentGroup,
    name: str,
    info: FieldInfo,
    tables: Mapping[str, Iterable[str]],
) -> None:
    """Add a setting to a section of the parser."""
    text, default, values = described(info, tables)
    if default:
        text += f" [{default}]"
    kinds = _kinds(info.annotation)
    shape: dict[str, Any] = {"help": text.replace("%", "%%"), "metavar": values}
    if bool in kinds:
        shape |= {"nargs": "?", "const": "true"}
    if members := _members(info):
        # of an optional one `none` stands for all members
        shape["nargs"] = "+" if NoneType in kinds else members
    elif any(get_origin(kind) is tuple for kind in kinds):
        shape["nargs"] = "*"
    by_place = POSITIONAL in info.metadata
    section.add_argument(name if by_place else f"--{name.replace('_', '-')}", **shape)


def described(
    info: FieldInfo, tables: Mapping[str, Iterable[str]]
) -> tuple[str, str, str]:
    """Return what is told of a setting: its text, its default, "" for none, and the values that it takes."""
    text = info.description or ""
    for table, names in tables.items():
        text = text.replace(f"{{{table}}}", ", ".join(names))
    default = info.get_default(call_default_factory=True)
    several = default if isinstance(default, tuple) else (default,)
    default_text = "" if default in (None, (), "") else " ".join(map(str, several))
    return text, default_text, "|".join(map(_metavar, _kinds(info.annotation)))


def _members(info: FieldInfo) -> int:
    """Return how many values a setting takes together; 0: one, or any number."""
    tuples = [
        get_args(kind) for kind in _kinds(info.annotation) if get_origin(kind) is tuple
    ]
    return sum(len(members) for members in tuples if Ellipsis not in members)


def _kinds(annotation: object) -> list[Any]:
    """Return the types that a value may have, without what is annotated to them."""
    if get_origin(annotation) is Annotated:
        return _kinds(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [kind for each in get_args(annotation) for kind in _kinds(each)]
    return [annotation]


def _metavar(kind: object) -> str:
    """Return how help writes a value of this type."""
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        return "|".join(map(_metavar, _kinds(get_args(kind)[0])))
    names: dict[object, str] = {bool: "true|false", str: "TEXT", NoneType: "none"}
    return names.get(kind, str(getattr(kind, "__name__", kind)).upper())


def _with_dashes(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def refusal(error: ValidationError, depth: int = 0) -> str:
    """Return what is wrong with the first setting that pydantic refuses: flag, value, and what is allowed.

    `depth` is where the setting's name stands in pydantic's places.
    """
    errors = error.errors()
    first = errors[0]
    place = first["loc"][: depth + 1]
    flag = f"--{str(place[-1]).replace('_', '-')}"
    # one error for each type that the value may have
    messages = [each["msg"] for each in errors if each["loc"][: depth + 1] == place]
    others = [each.removeprefix("Input should be ") for each in messages[1:]]
    message = " or ".join([messages[0], *others])
    return flag + wrong(first["type"], message, shown(first["input"]))


def wrong(kind: str, message: str, got: str) -> str:
    """Return what is wrong with a setting, to stand behind its name, by pydantic's type of error and message.

    Our own checks raise ValueError, whose message says all. It does not repeat a URL, which may hold a
    signature.
    """
    if kind == "value_error":
        return f" {message.removeprefix('Value error, ')}"
    return f" got {got}: {message[0].lower()}{message[1:]}"


def nearest(name: str, known: Collection[str], *, prefix: str = "") -> str:
    """Return ' (did you mean a or b?)', each name behind the prefix, or '' when no name is near."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.55)
    names = " or ".join(prefix + one for one in close)
    return f" (did you mean {names}?)" if close else ""


def one_of(
    flag: str,
    name: str,
    known: Collection[str],
    *,
    auto: str | None = None,
    lister: str = "",
) -> str:
    """Return `name` when `known` has it, and `auto` for 'auto'. Raises UserError with the nearest names.

    `lister` is the program that lists `known`, where there are many.
    """
    if name == "auto" and auto is not None:
        return auto
    if name in known:
        return name
    why = nearest(name, known) or ", which is unknown"
    allowed = f"; {lister} lists them" if lister else ""
    if len(known) <= 16:
        allowed = f"; known: {', '.join(known)}"
    raise UserError(f"{flag} got '{name}'{why}{allowed}")
