"""Which output of a network each class of the data is."""

from __future__ import annotations

import numpy as np
import pytest
import torchvision

from saturate.contracts import UserError
from saturate.dataset.model_classes import ModelClasses
from saturate.models import classification, detection, video

OURS = ModelClasses(names=("ant", "bee", "cow"), origin="--resume a.pt")
V2 = "IMAGENET1K_V2"
WNIDS = ModelClasses(
    names=classification.classes("resnet50", V2),
    origin=f"--weights {V2}",
    published=True,
)


@pytest.mark.parametrize("classes", [["ant", "bee", "dog"], ["0", "1", "2"]])
def test_names_are_found_in_any_order_and_unknown_ones_are_refused(
    classes: list[str],
) -> None:
    """Neither numbers nor as many names say that they are the same classes."""
    outputs, *said = OURS.numbers(["cow", "ant"])
    assert (outputs.tolist(), said) == ([2, 0], ["", False])
    known = r"is none of the 3 classes of --resume a.pt \('ant', 'bee', 'cow'\)"
    with pytest.raises(UserError, match=known):
        OURS.numbers(classes)


def test_one_name_for_two_classes_is_refused() -> None:
    """The name may be of two outputs, as in ImageNet, or of two classes, with a blank as underscore."""
    names = ("crane", "ant", "crane", "a bee", "a_bee", "tabby cat")
    model = ModelClasses(names=names, origin="w", published=True)
    outputs, *_ = model.numbers(["ant", "a_bee", "a bee"])
    assert outputs.tolist() == [1, 4, 3], "the very name first"
    for classes, said in (
        (["ant", "crane"], "class 'crane' and the outputs 0, 2 of w are not one each"),
        (["tabby cat", "tabby_cat"], "class 'tabby cat' and the outputs 5 of w"),
    ):
        with pytest.raises(UserError, match=said):
            model.numbers(classes)


def test_classes_of_imagenet() -> None:
    """Folders by name, ImageNet-V2's numbers, and a thousand other names, which are a doubt."""
    assert WNIDS.names == tuple(sorted(WNIDS.names)) and len(set(WNIDS.names)) == 1000
    wnids = ["n15075141", "n01871265", "n01440764"]  # as a part of ImageNet-A is
    outputs, *said = WNIDS.numbers(wnids)
    assert (outputs.tolist(), said) == ([999, 101, 0], ["", False])
    numbers = sorted(map(str, range(1000)))
    outputs, line, doubtful = WNIDS.numbers(numbers)
    assert outputs.tolist() == [int(name) for name in numbers] != list(range(1000))
    assert "are numbers" in line and not doubtful
    others = [f"class {i:03}" for i in range(1000)]
    outputs, line, doubtful = WNIDS.numbers(others)
    assert doubtful and "mean nothing" in line
    assert np.array_equal(outputs, np.arange(1000))
    with pytest.raises(UserError, match="none of the 1000 classes"):
        WNIDS.numbers(others[:999])


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
