"""Which output of a network each class of the data is."""

from __future__ import annotations

import numpy as np
import pytest
import torchvision

from contracts import UserError
from dataset.model_classes import ModelClasses
from models import classification, detection, video

OURS = ModelClasses(names=("ant", "bee", "cow"), origin="--resume a.pt")
V2 = "IMAGENET1K_V2"
WNIDS = ModelClasses(
    names=classification.classes("resnet50", V2),
    origin=f"--weights {V2}",
    published=True,
)


def test_names_are_found_in_any_order() -> None:
    assert OURS.numbers(["cow", "ant"])[0].tolist() == [2, 0]
    assert OURS.numbers(["cow", "ant"])[1:] == ("", False)


@pytest.mark.parametrize(
    "classes", [["ant", "bee", "dog"], ["0", "1", "2"], ["Ant"], ["a"] * 3]
)
def test_unknown_names_are_refused(classes: list[str]) -> None:
    """Neither numbers nor as many names say that they are the same classes."""
    with pytest.raises(
        UserError,
        match=r"is none of the 3 classes of --resume a.pt \('ant', 'bee', 'cow'\)",
    ):
        OURS.numbers(classes)


def test_one_name_for_two_classes_is_refused() -> None:
    """The name may be of two outputs, as in ImageNet, or of two classes, with a blank as underscore."""
    cranes = ModelClasses(
        names=("crane", "ant", "crane", "a bee", "a_bee"), origin="w", published=True
    )
    found, *_ = cranes.numbers(["ant", "a_bee", "a bee"])
    assert found.tolist() == [1, 4, 3], "the very name first"
    with pytest.raises(
        UserError, match="class 'crane' and the outputs 0, 2 of w are not one each"
    ):
        cranes.numbers(["ant", "crane"])
    with pytest.raises(UserError, match="class 'tabby cat' and the outputs 0 of w"):
        ModelClasses(names=("tabby cat",), origin="w").numbers(
            ["tabby cat", "tabby_cat"]
        )


def test_imagenets_folders() -> None:
    assert WNIDS.names == tuple(sorted(WNIDS.names)) and len(set(WNIDS.names)) == 1000
    assert [WNIDS.names[place] for place in (0, 101, 999)] == [
        "n01440764",
        "n01871265",
        "n15075141",
    ]
    found, said, doubtful = WNIDS.numbers(
        ["n15075141", "n01871265"]
    )  # as a part of ImageNet-A is
    assert (found.tolist(), said, doubtful) == ([999, 101], "", False)


def test_imagenet_v2s_numbers() -> None:
    classes = sorted(map(str, range(1000)))
    found, said, doubtful = WNIDS.numbers(classes)
    assert found.tolist() == [int(name) for name in classes] != list(range(1000))
    assert "are numbers" in said and not doubtful


def test_a_thousand_other_names_are_a_doubt() -> None:
    found, said, doubtful = WNIDS.numbers([f"class {i:03}" for i in range(1000)])
    assert (
        doubtful and "mean nothing" in said and np.array_equal(found, np.arange(1000))
    )
    with pytest.raises(UserError, match="none of the 1000 classes"):
        WNIDS.numbers([f"class {i:03}" for i in range(999)])


def test_published_names() -> None:
    kinetics = ModelClasses(
        names=video.classes("r3d_18", "DEFAULT"), origin="w", published=True
    )
    assert len(kinetics.names) == 400
    assert kinetics.numbers(["riding_a_bike", "abseiling"])[0].tolist() == [
        kinetics.names.index("riding a bike"),
        kinetics.names.index("abseiling"),
    ]
    coco = ModelClasses(
        names=detection.classes("fcos_resnet50_fpn", "COCO_V1"),
        origin="w",
        published=True,
    )
    assert coco.numbers(["toothbrush", "person"])[0].tolist() == [90, 1]
    assert (
        video.classes("r3d_tiny", "a.pt")
        == detection.classes("fcos_tiny", "a.pt")
        == ()
    )
    assert classification.classes("resnet50", "last.pt") == ()
    file = torchvision.models.ResNet50_Weights.IMAGENET1K_V2.url.rpartition("/")[2]
    assert classification.classes("resnet50", f"downloads/{file}") == WNIDS.names
