"""The text of an annotation file, read in pieces."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dataset.coco import annotation_file
from dataset.coco.annotation_file import NotCoco, entries

KEYS = ("images", "annotations", "categories")
ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


def read(text: str, piece: int) -> list[tuple[str, Any]]:
    before = annotation_file.PIECE
    annotation_file.PIECE = piece
    try:
        return list(entries(io.StringIO(text), KEYS))
    finally:
        annotation_file.PIECE = before


DOCUMENT = st.tuples(
    st.dictionaries(st.text(max_size=3), ANY, max_size=2),
    *(st.lists(ANY, max_size=3) for _ in KEYS),
)


@example(({"": 0.5}, [1.5e30, True], [-0.25], []), [3, 0, 1, 2, 4], 1, None, True)
@given(
    DOCUMENT,
    st.permutations(range(5)),
    st.integers(1, 40),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
)
def test_entries_are_those_of_the_whole_text(
    parts: Any, order: list[int], piece: int, indent: int | None, plain: bool
) -> None:
    other, *lists = parts
    pairs = [
        *zip(KEYS, lists, strict=True),
        *((f"_{key}", value) for key, value in other.items()),
    ]
    written = dict(pairs[place] for place in order if place < len(pairs))
    text = json.dumps(written, indent=indent, ensure_ascii=plain)
    assert read(text, piece) == [
        (key, entry) for key, some in written.items() if key in KEYS for entry in some
    ]


@given(
    DOCUMENT,
    st.integers(0, 300),
    st.sampled_from(["", "x", '"', "}", "]", ",", ":", "\\", "\n", "1"]),
    st.booleans(),
    st.integers(1, 40),
)
def test_damaged_text_is_refused_where_json_is(
    parts: Any, place: int, put_in: str, cut: bool, piece: int
) -> None:
    text = json.dumps(dict(zip(KEYS, parts[1:], strict=True)))
    place %= len(text)
    damaged = text[:place] + put_in + ("" if cut else text[place + 1 :])
    try:
        whole = json.loads(damaged)
    except ValueError:
        with pytest.raises(NotCoco):
            read(damaged, piece)
        return
    if isinstance(whole, dict) and all(
        isinstance(whole.get(key), list) for key in KEYS
    ):
        if len(set(re.findall(r'"(\w+)": ', damaged))) >= len(KEYS):
            assert read(damaged, piece) == [
                (key, entry) for key in whole if key in KEYS for entry in whole[key]
            ]
    else:
        with pytest.raises(NotCoco):
            read(damaged, piece)


def test_damage_is_found_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotation_file, "PIECE", 100)
    file = io.StringIO('{"images": [{"id": tru}, ' + "1, " * 10_000 + "1]}")
    with pytest.raises(NotCoco, match="character 19"):
        list(entries(file, KEYS))
    assert file.tell() == 100
