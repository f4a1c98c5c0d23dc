"""Operations are drawn as published: names, strengths and chances of torchvision and timm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from saturate.contracts import UserError
from saturate.models import Native
from saturate.plan.augment import (
    UNTOUCHED,
    Augment,
    Augmentation,
    Auto,
    Blur,
    Erase,
    Grayscale,
    Jitter,
    Look,
    turns,
)
from saturate.plan.autoaugment import policy_of
from saturate.settings.config import build
from saturate.tasks._plans import image_policies
from tests.conformance.plans import checksum

SIDE = 224
COUNT = 40_000
IDS = np.arange(COUNT)
SIZES = np.full((COUNT, 2), SIDE)


@pytest.mark.parametrize(
    "name", ["rand", "rand-m11", "rand-n0", "rand-m9-n1.5", "rand-m9-w0", "", "3a"]
)
def test_a_name_that_is_none_is_a_mistake(name: str) -> None:
    with pytest.raises(UserError, match="--auto-augment"):
        policy_of(name)


def test_a_name_may_say_everything() -> None:
    """Two operations at a probability of a half are timm's own."""
    short = policy_of("rand-m9-mstd0.5-inc1")
    assert policy_of("rand-m9-n2-mstd0.5-p0.5-inc1") == short


def test_settings_are_read() -> None:
    given: dict[str, Any] = {
        "auto_augment": "rand-m9-inc1",
        "color_jitter": 0.3,
        "hue_jitter": 0.1,
        "vflip": 0.2,
    }
    given |= {"grayscale": 0.4, "blur": 0.5, "erase": 0.6, "erase_mode": "rand"}
    native = Native(size=SIDE, mean=(0.4, 0.6, 0.8), std=(0.2, 0.2, 0.2))
    policy, validation = image_policies(build(given).augmentation, native)
    assert (
        policy.vflip == 0.2
        and validation.augment == UNTOUCHED
        and validation.vflip == 0
    )
    look = Look(mean=(102, 153, 204), std=(51, 51, 51))
    wanted = (
        Auto(auto_augment="rand-m9-inc1", look=look),
        Jitter(color_jitter=0.3, hue_jitter=0.1, look=look),
        Grayscale(grayscale=0.4, look=look),
        Blur(blur=0.5, look=look),
        Erase(erase=0.6, erase_mode="rand", look=look),
    )
    assert policy.augment == Augment(wanted)


LOOK = Look(mean=(102, 153, 204), std=(51, 52, 53))
GOLDEN: dict[str | Augmentation, float] = {
    "randaugment": 464363.7706399262,
    "trivialaugment": 219331.3226414211,
    "autoaugment": 295285.10644583404,
    "3augment": 450294.12415471673,
    "rand-m9-mstd0.5-inc1": 1362892.4871512577,
    "rand-m7-n3-p0.8": 3334401.883370802,
    "rand-m5-mstd101-inc1": 1405187.9769491446,
    Jitter(color_jitter=0.4, hue_jitter=0.1): 177303.38843410334,
    Jitter(color_jitter=0.4, look=Look(pixelwise=True)): 95922.22083002329,
    Grayscale(grayscale=0.3): 23506.0,
    Blur(blur=0.4): 59668.15599654615,
    Erase(erase=0.7, look=LOOK): 107799675378.0,
    Erase(erase=0.7, erase_mode="rand", look=LOOK): 107799605534.33635,
    Erase(erase=0.7, erase_mode="pixel", look=LOOK): 107800742462.0,
}
"""An augmentation, or a value of --auto-augment -> the checksum of what it draws; see
tests.conformance.plans.checksum."""


@pytest.mark.parametrize("given", GOLDEN, ids=str)
def test_what_is_drawn_stays(given: str | Augmentation) -> None:
    augmentation = (
        Auto(auto_augment=given, look=LOOK) if isinstance(given, str) else given
    )
    assert augmentation.on and not type(augmentation)().on
    drawn = augmentation.draw(3, 1, IDS[:200], SIZES[:200])
    assert checksum([drawn]) == pytest.approx(GOLDEN[given], rel=1e-6)
    alone = augmentation.draw(3, 1, IDS[[31, 4]], SIZES[:2])
    np.testing.assert_array_equal(drawn[[31, 4]], alone)


def test_which_way_images_turn_stays() -> None:
    turned = turns(3, 1, IDS, flip=0.3, upside_down=0.2)
    assert np.bincount(turned).tolist() == [22515, 9531, 5588, 2366]
