"""The grammar of lists: separators, quotes, headings, labels, and that time grows with the length alone."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from saturate.dataset.scan.file_tree import Scan
from saturate.dataset.scan.lists import Grammar, Labels, List, class_names
from saturate.dataset.scan.manifest import Rejects
from tests.unit.folders import refused

IMAGES = Grammar(expected="a line is 'path label'")
VIDEOS = Grammar(expected="a line is 'path label'", separators="\t;,", segments=True)
Rows = list[tuple[int, list[str]]]


def listed(folder: Path, text: str | bytes, grammar: Grammar = IMAGES) -> List:
    path = folder / "train.csv"
    content = (
        text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    )
    path.write_bytes(content)
    return List(path, grammar)


def rows(folder: Path, text: str | bytes, grammar: Grammar = IMAGES) -> Rows:
    found = listed(folder, text, grammar)
    rejects = Rejects(io.StringIO())
    scan = Scan(root=folder, made=folder, rejects=rejects, progress=lambda *_: None)
    return list(found.rows(skip=found.heading(scan)))


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("a b.jpg 3\nc,d.jpg\t4\n\n  e.jpg  5 ", "a b.jpg 3|c,d.jpg 4|e.jpg 5"),
        ('a b.jpg, "cat, big"\n"c, d.jpg",dog', "a b.jpg cat, big|c, d.jpg dog"),
        ('"a ""x"".jpg",3\n"b\nc.jpg",4\nb"c,5"', 'a "x".jpg 3|b\nc.jpg 4|b"c 5"'),
        (b"\xef\xbb\xbfa.jpg,3\nb\xff.jpg,4", "a.jpg 3|b\udcff.jpg 4"),
        ("x,y\na.jpg,cat\nb.jpg,dog", "a.jpg cat|b.jpg dog"),
        ("img_1,cat\nimg_2,dog", "img_1 cat|img_2 dog"),
        ("image,cat\nb.jpg,cat\nc.jpg,dog", "image cat|b.jpg cat|c.jpg dog"),
    ],
)
def test_lines(text: str | bytes, fields: str, tmp_path: Path) -> None:
    assert "|".join(" ".join(found) for _, found in rows(tmp_path, text)) == fields


def test_semicolons_separate_lists_of_videos_alone(tmp_path: Path) -> None:
    text = "a;3\nc d;4"
    assert rows(tmp_path, text, VIDEOS) == [(1, ["a", "3"]), (2, ["c d", "4"])]
    text = "a;b.jpg 3\nc;d.jpg 4"
    assert rows(tmp_path, text) == [(1, ["a;b.jpg", "3"]), (2, ["c;d.jpg", "4"])]


OPEN = "cannot be split"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a.jpg,3\nb.jpg\nc.jpg,4", "line 2 is 'b.jpg'; a line is 'path label'"),
        ('"a\n.jpg",3\nb.jpg\nc.jpg,4\nd.jpg,5', "line 3 is 'b.jpg'"),
        ('a.jpg,3\n"b.jpg,4\nc.jpg",5', f"line 2 {OPEN}"),
        ('a.jpg\t"5 inch" disk\nb.jpg\t7 inch', f"line 1 {OPEN}"),
        ("a.jpg,3".encode("utf-16"), "line 1 is "),
    ],
)
def test_errors_name_the_line(text: str | bytes, said: str, tmp_path: Path) -> None:
    assert said in refused(lambda: rows(tmp_path, text))


@pytest.mark.parametrize(
    ("labels", "given", "named", "classes", "expected", "fixed"),
    [
        ("3 0 03", "", "", "0 1 2 3", [3, 0, 3], True),
        ("dog cat dog", "", "", "cat dog", [1, 0, 1], False),
        ("1 0", "", "zebra ant eel", "zebra ant eel", [1, 0], True),
        ("ant zebra", "", "zebra ant eel", "zebra ant eel", [1, 0], True),
        ("1 0", "ant zebra", "zebra ant eel", "ant zebra", [0, 1], True),
        ("1", "0 1 2", "", "0 1 2", [1], True),
    ],
)
def test_labels(
    labels: str,
    given: str,
    named: str,
    classes: str,
    expected: list[int],
    fixed: bool,
    tmp_path: Path,
) -> None:
    found = Labels(listed(tmp_path, ""))
    words = enumerate(labels.split(), 1)
    numbers = [found.number(label, line) for line, label in words]
    if named:
        (tmp_path / "classes.txt").write_text(named.replace(" ", "\r\n"))
    names = class_names(tmp_path / "no", tmp_path)
    which, class_of, says = found.classes(given.split() or None, names)
    assert (which, says) == (classes.split(), fixed)
    assert class_of[np.array(numbers)].tolist() == expected


@pytest.mark.parametrize(
    ("labels", "given", "named", "said"),
    [
        ("1 cat", "", "", "line 2 has the label 'cat', and all labels are numb"),
        (
            "cat cow",
            "cat",
            "",
            "line 2 has the label 'cow', which is none of the 1 cla",
        ),
        (
            "0 2",
            "",
            "cat cow",
            "line 2 has the label '2', and all labels are numb",
        ),
        ("0", "", "cat  dog", "classes.txt line 2 is empty; each line names the class"),
    ],
)
def test_labels_that_mean_nothing(
    labels: str, given: str, named: str, said: str, tmp_path: Path
) -> None:
    found = Labels(listed(tmp_path, ""))
    for line, label in enumerate(labels.split(), 1):
        found.number(label, line)
    if named:
        (tmp_path / "classes.txt").write_text(named.replace(" ", "\n"))
    classes = given.split() or None
    assert said in refused(lambda: found.classes(classes, class_names(tmp_path)))
