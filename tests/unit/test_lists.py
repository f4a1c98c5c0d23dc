"""The grammar of lists: separators, quotes, headings, labels, and that time grows with the length alone."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from contracts import UserError
from dataset.scan.lists import HEAD, MOST_CLASSES, Grammar, Labels, List, class_names

IMAGES = Grammar(expected="a line is 'path label'")
VIDEOS = Grammar(expected="a line is 'path label'", separators="\t;,", segments=True)


def listed(folder: Path, text: str | bytes, grammar: Grammar = IMAGES) -> List:
    path = folder / "train.csv"
    path.write_bytes(
        text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    )
    return List(path, grammar)


def rows(
    folder: Path, text: str | bytes, grammar: Grammar = IMAGES
) -> list[tuple[int, list[str]]]:
    found = listed(folder, text, grammar)
    skip = bool(found.heading(lambda name: (folder / name).exists()))
    return list(found.rows(skip=skip))


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        pytest.param(
            "a b.jpg 3\nc,d.jpg\t4\n\n  e.jpg  5 ",
            ["a b.jpg 3", "c,d.jpg 4", "e.jpg 5"],
            id="blanks",
        ),
        pytest.param(
            "a,b.jpg\t3\nc d.jpg\ttabby cat",
            ["a,b.jpg 3", "c d.jpg tabby cat"],
            id="tabs",
        ),
        pytest.param(
            'a b.jpg, "cat, big"\n"c, d.jpg",dog',
            ["a b.jpg cat, big", "c, d.jpg dog"],
            id="commas",
        ),
        pytest.param(
            '"a ""x"".jpg",3\n"b\nc.jpg",4\nb"c.jpg,5"',
            ['a "x".jpg 3', "b\nc.jpg 4", 'b"c.jpg 5"'],
            id="quotes",
        ),
        pytest.param(
            '"a;b.jpg";3\nc,d.jpg;4', ["a;b.jpg 3", "c,d.jpg 4"], id="semicolons"
        ),
        pytest.param("a.jpg,3\r\nb.jpg,4\r\n", ["a.jpg 3", "b.jpg 4"], id="crlf"),
        pytest.param(
            b"\xef\xbb\xbfa.jpg,3\nb\xff.jpg,4",
            ["a.jpg 3", "b\udcff.jpg 4"],
            id="bom, no utf-8",
        ),
        pytest.param(
            "a.jpg,3\na.jpg,3\na.jpg,4",
            ["a.jpg 3", "a.jpg 3", "a.jpg 4"],
            id="duplicates",
        ),
        pytest.param(
            "path,label\na.jpg,3\nb.jpg,4", ["a.jpg 3", "b.jpg 4"], id="heading"
        ),
        pytest.param(
            "image.path,label\na.jpg,cat\nb.jpg,dog",
            ["a.jpg cat", "b.jpg dog"],
            id="heading.dot",
        ),
        pytest.param(
            "Image Name,species\na,cat\nb,dog",
            ["a cat", "b dog"],
            id="heading of words",
        ),
        pytest.param(
            "x,Class_Name\n1,cat\n2,dog", ["1 cat", "2 dog"], id="heading of labels"
        ),
        pytest.param("img_1,cat\nimg_2,dog", ["img_1 cat", "img_2 dog"], id="keys"),
        pytest.param(
            "image_id,label\n1,cat\n2,dog", ["1 cat", "2 dog"], id="heading of keys"
        ),
        pytest.param(
            "gone.jpg,cat\na.jpg,dog\nb.jpg,dog",
            ["gone.jpg cat", "a.jpg dog", "b.jpg dog"],
            id="none",
        ),
        pytest.param(
            "a.jpg,3,,\nb.jpg,4,,", ["a.jpg 3", "b.jpg 4"], id="a spreadsheet's"
        ),
    ],
)
def test_lines(text: str | bytes, fields: list[str], tmp_path: Path) -> None:
    grammar = VIDEOS if ";" in str(text) else IMAGES
    assert [" ".join(found) for _, found in rows(tmp_path, text, grammar)] == fields


def test_semicolons_are_part_of_images_names(tmp_path: Path) -> None:
    assert rows(tmp_path, "a;b.jpg 3\nc;d.jpg 4") == [
        (1, ["a;b.jpg", "3"]),
        (2, ["c;d.jpg", "4"]),
    ]


def test_one_separator_a_file_is_found_in_its_first_lines(tmp_path: Path) -> None:
    text = "".join(f"{i} x.jpg,3\n" for i in range(HEAD)) + "a b\tc.jpg,4\n"
    assert rows(tmp_path, text)[-1] == (HEAD + 1, ["a b\tc.jpg", "4"])
    assert rows(tmp_path, "a,b.jpg 3\nc d.jpg 4\ne.jpg 5")[0] == (1, ["a,b.jpg", "3"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a.jpg,3\nb.jpg\nc.jpg,4", "line 2 is 'b.jpg'; a line is 'path label'"),
        ("a.jpg,3\n\nb.jpg,4,5", "line 3 is 'b.jpg,4,5'"),
        ("a.jpg,3\nb.jpg,", "line 2 is 'b.jpg,'"),
        ("a.jpg,3\nb\0.jpg,4", r"line 2 is 'b\\x00.jpg,4'"),
        (
            'a.jpg,3\n"b.jpg,4' + "x" * 200_000,
            "line 2 cannot be split .*is a quote left open",
        ),
        ('"a\n.jpg",3\nb.jpg\nc.jpg,4', "line 3 is 'b.jpg'"),
        (
            'a.jpg,3\n"b.jpg,4\nc.jpg",5',
            "line 2 cannot be split .*is a quote left open",
        ),
        (
            'a.jpg,3\n"b.jpg,4\nc.jpg,5"\nd.jpg,6',
            "line 2 cannot be split .*is a quote left open",
        ),
        ('a.jpg,"5 inch\nb.jpg,7 inch\nc.jpg,5"', "line 1 cannot be split"),
        ('a.jpg\t"5 inch" disk\nb.jpg\t7 inch', "line 1 cannot be split"),
        ('a.jpg,a\nb.jpg,"a\nc.jpg,b', "line 2 cannot be split"),
        ("a.jpg,3".encode("utf-16"), "is in UTF-16; save it as UTF-8"),
    ],
)
def test_errors_name_the_line(text: str | bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said) as caught:
        rows(tmp_path, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line", ["{} 3", "a{}b 3", "a,{},b", '"{}",3', "{}\t{}", "a 3 4 {}"]
)
def test_time_is_linear_in_blanks(line: str, tmp_path: Path) -> None:
    """A regular expression took 19 s for 800 blanks."""
    began = time.process_time()
    for text in (
        line.format(" " * 100_000, " " * 100_000),
        line.format("a " * 50_000, "b " * 50_000),
    ):
        for grammar in (IMAGES, VIDEOS):
            try:
                rows(tmp_path, text, grammar)
            except UserError:
                continue
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("labels", "given", "named", "classes", "expected", "fixed"),
    [
        ("3 0 03", None, None, "0 1 2 3", [3, 0, 3], True),
        ("dog cat dog", None, None, "cat dog", [1, 0, 1], False),
        ("1 0", None, "zebra ant eel", "zebra ant eel", [1, 0], True),
        ("ant zebra", None, "zebra ant eel", "zebra ant eel", [1, 0], True),
        ("1 0", "ant zebra", "zebra ant eel", "ant zebra", [0, 1], True),
        ("1", "0 1 2", None, "0 1 2", [1], True),
        (
            "s://b?1 s://b?2 a\u200bb",
            None,
            None,
            "a\u200bb s://b?1 s://b?2",
            [1, 2, 0],
            False,
        ),
    ],
)
def test_labels(
    labels: str,
    given: str | None,
    named: str | None,
    classes: str,
    expected: list[int],
    fixed: bool,
    tmp_path: Path,
) -> None:
    found = Labels(listed(tmp_path, ""))
    numbers = [
        found.number(label, line) for line, label in enumerate(labels.split(), 1)
    ]
    if named:
        (tmp_path / "classes.txt").write_text(named.replace(" ", "\r\n"))
    which, class_of, says = found.classes(
        given and given.split(), class_names(tmp_path / "no", tmp_path)
    )
    assert (which, class_of[np.array(numbers)].tolist(), says) == (
        classes.split(),
        expected,
        fixed,
    )


@pytest.mark.parametrize(
    ("labels", "given", "named", "said"),
    [
        (
            "1 cat",
            None,
            None,
            "line 1 has the label '1' and line 2 'cat'; labels are all numbers from 0 or all",
        ),
        (
            "-1 -1",
            None,
            None,
            "line 1 has the label '-1'; labels are whole numbers from 0",
        ),
        (
            "1 20240101",
            None,
            None,
            "line 2 has the label '20240101'; labels are numbers of classes",
        ),
        (
            "cat cow",
            "cat",
            None,
            "line 2 has the label 'cow', which is none of the 1 classes of the training data",
        ),
        (
            "cat cow",
            None,
            "cat",
            "line 2 has the label 'cow', which is none of the 1 classes of classes.txt",
        ),
        (
            "0 2",
            None,
            "cat cow",
            "line 2 has the label '2', and classes.txt names 2 classes, 0 to 1",
        ),
        ("0", None, "cat cat", "classes.txt names 'cat' twice"),
        ("0", None, " ", "classes.txt is empty"),
        (
            "0",
            None,
            "cat  dog",
            "classes.txt line 2 is empty; each line names the class of its number",
        ),
        (
            "cafe\u0301",
            "caf\u00e9",
            None,
            "none of the 1 classes of the training data; its accents are in anoth",
        ),
        (
            "caf\udce9",
            None,
            "caf\u00e9",
            "classes of classes.txt; the list is not in UTF-8",
        ),
    ],
)
def test_labels_that_mean_nothing(
    labels: str, given: str | None, named: str | None, said: str, tmp_path: Path
) -> None:
    found = Labels(listed(tmp_path, ""))
    for line, label in enumerate(labels.split(), 1):
        found.number(label, line)
    if named:
        (tmp_path / "classes.txt").write_text(named.replace(" ", "\n"))
    with pytest.raises(UserError, match=said):
        found.classes(given and given.split(), class_names(tmp_path))


def test_paths_in_place_of_labels_end_soon(tmp_path: Path) -> None:
    found = Labels(listed(tmp_path, ""))
    for line in range(MOST_CLASSES):
        found.number(f"a/{line}.jpg", line)
    with pytest.raises(UserError, match="line 7 has yet another label"):
        found.number("b.jpg", 7)
