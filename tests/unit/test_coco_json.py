"""The text of an annotation file, read in pieces."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dataset.coco import annotation_file
from dataset.coco.annotation_file import NotCoco, entries

KEYS = ("images", "annotations", "categories")
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-9, 9) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
LISTS = st.tuples(*(st.lists(ANY, max_size=3) for _ in KEYS))
OTHERS = st.dictionaries(st.text(max_size=3), ANY, max_size=2)


def read(text: str, piece: int) -> list[tuple[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(annotation_file, "PIECE", piece)
        return list(entries(io.StringIO(text), KEYS))


def entries_of(whole: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(key, entry) for key in whole if key in KEYS for entry in whole[key]]


@example(([0.5e30, True], [-0.25], []), {"": 0.5}, [3, 0, 1, 2, 4], 1, None, True)
@given(
    LISTS,
    OTHERS,
    st.permutations(range(5)),
    st.integers(1, 40),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
)
def test_entries_are_those_of_the_whole_text(
    lists: Any, others: Any, order: list[int], piece: int, indent: Any, ascii: bool
) -> None:
    pairs = [*zip(KEYS, lists, strict=True)]
    pairs += [(f"_{key}", value) for key, value in others.items()]
    written = dict(pairs[place] for place in order if place < len(pairs))
    text = json.dumps(written, indent=indent, ensure_ascii=ascii)
    assert read(text, piece) == entries_of(written)


@given(
    LISTS,
    st.integers(0, 300),
    st.sampled_from(["", "x", '"', "}", "]", ",", ":", "\\", "\n", "1"]),
    st.booleans(),
    st.integers(1, 40),
)
def test_damaged_text_is_refused_where_json_is(
    lists: Any, place: int, put_in: str, cut: bool, piece: int
) -> None:
    text = json.dumps(dict(zip(KEYS, lists, strict=True)))
    place %= len(text)
    damaged = text[:place] + put_in + ("" if cut else text[place + 1 :])
    try:
        # of a name that is there twice JSON takes the last value, and this one both
        pairs = json.loads(damaged, object_pairs_hook=lambda pairs: pairs)
        whole = json.loads(damaged)
        good = len(pairs) == len(whole) and all(
            type(whole[key]) is list for key in KEYS
        )
    except (ValueError, LookupError, TypeError):
        good = False
    if good:
        assert read(damaged, piece) == entries_of(whole)
    else:
        with pytest.raises(NotCoco):
            read(damaged, piece)


def test_damage_is_found_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotation_file, "PIECE", 100)
    file = io.StringIO('{"images": [{"id": tru}, ' + "1, " * 10_000 + "1]}")
    with pytest.raises(NotCoco, match="character 19"):
        list(entries(file, KEYS))
    assert file.tell() == 100
