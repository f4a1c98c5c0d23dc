"""`python -m scripts.make_settings`: writes docs/settings.md, every flag of train.py, from `settings/`.

A test fails where the page is not what this program writes.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import yaml

from saturate.contracts import UserError
from saturate.settings.cli import Settings, described
from saturate.settings.config import FACTS_OF, GROUPS, flags_of
from saturate.settings.help import OURS
from saturate.tasks import tables

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "settings.md"
USES = 3
"""Pages and presets that are named where a flag is used."""
OWN = {
    "blur": "0.1",
    "freeze": "'conv1|bn1|layer[123]'",
    "label-separator": "','",
    "manifest-dir": "MANIFESTS",
    "max-pixels": "300000000",
    "pixel-loss": "l1",
    "save-every-minutes": "10",
    "score-threshold": "0.3",
    "timeout-minutes": "30",
    "val-fold": "0",
    "val-seed": "1",
    "val-every": "5",
    "vflip": "0.5",
    "grayscale": "0.1",
    "longer-side": "1333",
    "keep-empty": "true",
    "trainable-layers": "3",
    "decode-threads": "4",
    "sync-bn": "true",
}
"""Examples of flags that no page and no preset uses with a value, or with a telling one."""
HEAD = """# Settings

Every flag of `train.py`, written by `python -m scripts.make_settings`. A preset (`--config FILE`) has the same names
with underscores. `python train.py --help` shows those that most runs need, and `--help-all` all of them.
"""


def page() -> str:
    """Return the text of docs/settings.md."""
    used, elsewhere, given = _uses(), _elsewhere(), _given()
    lines = [HEAD]
    for group, cls in GROUPS.items():
        about = " ".join((cls.__doc__ or "").split())
        lines.append(f"## {group.capitalize()}\n\n{_marked(about)}\n")
        for name, info in cls.model_fields.items():
            text, default, values = described(info, tables())
            flag = name.replace("_", "-")
            shown = values.replace("|", " or ").replace("TEXT", "text")
            bare = "true" in values  # --quiet
            uses = (
                words
                for words in given[flag]
                if (words or bare) and _fits(cls, name, words)
            )
            example = " ".join([f"--{flag}", *next(uses, [])])
            facts = [
                f"values: {_marked(shown)}",
                f"example: `{example}`",
            ]
            if default:
                facts.append(f"default: `{default}`")
            facts += [f"{title}: {value}" for title, value in _scope(name)]
            if others := elsewhere[flag]:
                facts.append(f"elsewhere: {', '.join(f'`{one}`' for one in others)}")
            if places := used[flag][:USES]:
                facts.append(f"used in {', '.join(places)}")
            lines.append(f"### --{flag}\n\n{_marked(text)}\n")
            lines.append("".join(f"- {fact}\n" for fact in facts))
    return "\n".join(lines)


def _scope(name: str) -> Iterator[tuple[str, str]]:
    """Yield which tasks read a setting, and beside which other one."""
    facts = FACTS_OF[name]
    if facts.tasks:
        yield "read by", ", ".join(f"`--task {task}`" for task in facts.tasks)
    if facts.needs:
        other, *values = facts.needs
        flag = other.replace("_", "-")
        chosen = ", ".join(f"`{value}`" for value in values)
        yield "beside", f"`--{flag}`" + (f" {chosen}" if chosen else "")


def _elsewhere() -> dict[str, list[str]]:
    """Return the names that other programs have for a flag of ours, by its name."""
    names = defaultdict(list)
    for name, ours in OURS.items():
        if name.replace("_", "-") != (flag := ours.split()[0].lstrip("-").rstrip(",")):
            names[flag].append(name.replace("-", "_") if "-" in name else name)
    return names


def _uses() -> dict[str, list[str]]:
    """Return links to the pages, and names of the presets, that use a flag, by its name."""
    uses = defaultdict(list)
    pages = sorted((ROOT / "docs").glob("*.md"))
    for path in [
        path
        for path in pages
        if path not in (PAGE, ROOT / "docs/map.md", ROOT / "docs/changes.md")
    ]:
        text = path.read_text(encoding="utf-8")
        for flag in dict.fromkeys(re.findall(r"(?<![\w-])--([a-z][a-z0-9-]+)", text)):
            uses[flag].append(f"[{path.stem}]({path.name})")
    for path in sorted((ROOT / "configs").rglob("*.yaml")):
        for name in re.findall(
            r"^(\w+):", path.read_text(encoding="utf-8"), re.MULTILINE
        ):
            uses[name.replace("_", "-")].append(f"`{path.relative_to(ROOT)}`")
    return uses


def _given() -> dict[str, list[list[str]]]:
    """Return the values that are given to a flag: by OWN, commands of train.py, other code of pages, presets."""
    given = defaultdict(list, {flag: [[value]] for flag, value in OWN.items()})
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    # a use ends where a line, inline code or a command does, and at a comment
    parts = [
        part
        for path in pages
        if path not in (PAGE, ROOT / "docs/map.md", ROOT / "docs/changes.md")
        for part in re.split(
            r"[`#|;&>\n]", path.read_text(encoding="utf-8").replace("\\\n", " ")
        )
    ]
    for part in sorted(parts, key=lambda part: "train.py" not in part):
        for use in re.split(r"(?:^|\s)--(?=[a-z])", part)[1:]:
            flag, *words = use.split()
            given[flag] += [words, words[:1]]
    for path in sorted((ROOT / "configs").rglob("*.yaml")):
        preset = yaml.safe_load(path.read_text(encoding="utf-8"))
        for name, value in preset.items() if isinstance(preset, dict) else ():
            words = value if isinstance(value, list) else [value]
            given[name.replace("_", "-")].append(
                [json.dumps(word).strip('"') for word in words]
            )
    return given


def _fits(cls: type[Settings], name: str, words: list[str]) -> bool:
    """Return whether these are words that a flag takes; one without any is an example where it needs none."""
    try:
        cls.model_validate(flags_of([f"--{name}", *shlex.split(" ".join(words))]))
    except (UserError, ValueError):  # of pydantic too, and of a quote left open
        return False
    return True


def _marked(text: str) -> str:
    """Return text whose flags, files and patterns are code, so that Markdown leaves them as they are."""
    words = " ".join(text.split())
    return re.sub(
        r"(?<![\w`])(--[a-z][\w-]*|[\w./]*[<>*_|\[\]{}][^\s,;:)]*)", r"`\1`", words
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
