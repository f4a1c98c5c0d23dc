"""What a preset may hold that would fill a screen or the memory: one short line each."""

from __future__ import annotations

from pathlib import Path

import pytest

from contracts import UserError
from settings.config import parse
from settings.preset import LARGEST_PRESET
from tasks._results import Results


@pytest.mark.parametrize("key", ["lr", "mean", "short_sides", "data"])
@pytest.mark.parametrize(
    "nest",
    ["[N, N, N, N, N, N, N, N]", "{a: N, b: N, c: N, d: N}"],
    ids=["lists", "mappings"],
)
def test_aliases_are_not_written_out(key: str, nest: str, tmp_path: Path) -> None:
    """Each of them has several of the one before: the last one, written out, fills any memory."""
    value = "1"
    for level in range(16):
        value = nest.replace("N", f"&a{level} {value}", 1).replace("N", f"*a{level}")
    (tmp_path / "a.yaml").write_text(f"{key}: {value}\n")
    with pytest.raises(UserError) as caught:
        parse(["--config", str(tmp_path / "a.yaml")])
    said = str(caught.value)
    assert f"--{key.replace('_', '-')} got " in said and "..." in said
    assert len(said) < 600 and "\n" not in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"lr: " + b"x" * 5000, "got 'x"),
        (b"? " + b"lr" * 5000 + b"\n: 1", "unknown key 'lr"),
        (b"lr: " + b"[" * 3000, "nested too deep"),
        (b"#" * (LARGEST_PRESET + 1), "is larger than 1,048,576 bytes"),
        (None, "a device or a pipe, and not a regular file"),
    ],
    ids=["long value", "long key", "deep", "long", "no end"],
)
def test_a_preset_that_would_fill_a_screen_or_the_memory(
    content: bytes | None, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.yaml"
    path.symlink_to("/dev/zero") if content is None else path.write_bytes(content)
    with pytest.raises(UserError, match=said) as caught:
        parse(["--config", str(path)])
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "value",
    [
        "2024-02-30",
        "9" * 5000,
        "!!float abc",
        "!!bool abc",
        "!!timestamp abc",
        "!!int ''",
    ],
    ids=lambda value: value[:12],
)
def test_a_value_that_is_none_is_one_line(value: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"seed: {value}\n")
    with pytest.raises(UserError, match="does not parse as YAML") as caught:
        parse(["--config", str(path)])
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_results_from_a_device() -> None:
    with pytest.raises(UserError, match="--score /dev/zero: a device or a pipe"):
        Results.read(Path("/dev/zero"))
