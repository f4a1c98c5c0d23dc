"""Operations are drawn as published: names, strengths and chances of torchvision and timm."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from torchvision.transforms import v2
from torchvision.transforms.autoaugment import AutoAugmentPolicy

from contracts import UserError
from models import Native
from models.classification import MEAN, STD
from plan import affine
from plan.augment import (
    TRIES,
    UNTOUCHED,
    Augment,
    Auto,
    Blur,
    Erase,
    Grayscale,
    Jitter,
    Look,
    turns,
)
from plan.autoaugment import (
    AUTOAUGMENT,
    IMAGENET,
    NAMES,
    POLICIES,
    RANDAUGMENT,
    TIMM,
    TIMM_INCREASING,
    TRIVIALAUGMENT,
    Scale,
    Space,
    policy_of,
)
from plan.clips import ClipPlan
from plan.geometry import FLIP, MIRROR
from plan.images import ImagePlan
from plan.ops import KEY_BITS, WIDTH, Op
from settings.config import build, parse
from tasks import kind_named, kind_of
from tasks._plans import clip_policy, image_policies, opened
from tests.conformance.plans import Videos

SIDE = 224
COUNT = 40_000
IDS = np.arange(COUNT)
SIZES = np.full((COUNT, 2), SIDE)


def ours(name: str) -> str:
    """The name of a transform of torchvision's or timm's, as NAMES has it."""
    name = name.replace("Increasing", "").removesuffix("Rel")
    snake = "".join(
        "_" + letter.lower() if letter.isupper() else letter for letter in name
    )[1:]
    return {"auto_contrast": "autocontrast"}.get(snake, snake)


def given(scale: Scale | None, strength: float, *, negative: bool = False) -> float:
    assert scale is not None
    return float(scale(np.array([strength]), np.array([negative]), SIDE)[0])


@pytest.mark.parametrize(
    ("policy", "space", "bins"),
    [
        (v2.RandAugment(), RANDAUGMENT, 31),
        (v2.TrivialAugmentWide(), TRIVIALAUGMENT, 31),
        (v2.AutoAugment(), AUTOAUGMENT, 10),
    ],
    ids=["randaugment", "trivialaugment", "autoaugment"],
)
def test_strengths_are_torchvisions(policy: Any, space: Space, bins: int) -> None:
    theirs = {ours(name): entry for name, entry in policy._AUGMENTATION_SPACE.items()}
    assert theirs.keys() - {"identity"} == space.keys() - {"identity"}
    for name, (magnitudes, signed) in theirs.items():
        scale = space[name]
        values = magnitudes(bins, SIDE, SIDE)
        assert (values is None) == (scale is None)
        for place in range(bins if scale else 0):
            found = given(scale, place / (bins - 1))
            wanted = float(values[place]) * (255 if name == "solarize" else 1)
            if name.startswith("translate"):
                wanted = int(wanted + 1e-4)  # torch's linspace gives 15.999998 for 16
            assert found == pytest.approx(wanted, abs=1e-4), (name, place)
            if scale and found:
                assert (
                    given(scale, place / (bins - 1), negative=True) == -found
                ) == signed, name


def test_pairs_are_torchvisions() -> None:
    theirs = v2.AutoAugment(AutoAugmentPolicy.IMAGENET)._policies
    assert [
        [(ours(name), chance, level or 0) for name, chance, level in pair]
        for pair in theirs
    ] == [list(pair) for pair in IMAGENET]


@pytest.mark.parametrize("increasing", [True, False])
def test_strengths_are_timms(increasing: bool) -> None:
    timm = pytest.importorskip("timm.data.auto_augment")
    space = TIMM_INCREASING if increasing else TIMM
    names = timm._RAND_INCREASING_TRANSFORMS if increasing else timm._RAND_TRANSFORMS
    assert {ours(name) for name in names} == space.keys()
    hints = {"translate_const": 100}
    for name in names:
        scale = space[ours(name)]
        if scale is None:
            continue
        for level in (0, 1, 3.3, 7, 10):
            argument, *_ = timm.LEVEL_TO_ARG[name](level, hints)
            if ours(name).startswith("translate"):
                argument *= SIDE
            found = {
                given(scale, level / 10, negative=negative)
                for negative in (False, True)
            }
            if NAMES.index(ours(name)) in map(
                NAMES.index, ("color", "contrast", "brightness", "sharpness")
            ):
                found = {1 + value for value in found}
            assert any(value == pytest.approx(argument, abs=1e-6) for value in found), (
                name,
                level,
            )


def test_names_and_signs_come_evenly() -> None:
    policy = policy_of("randaugment")
    assert policy is not None
    draws = np.random.default_rng(1).random((COUNT, policy.uniforms))
    which, values = policy.draw(draws, SIDE)
    shares = np.bincount(which.ravel(), minlength=len(NAMES)) / which.size
    wanted = [1 / len(RANDAUGMENT) if name in RANDAUGMENT else 0 for name in NAMES]
    np.testing.assert_allclose(shares, wanted, atol=0.005)
    turned = values[which == NAMES.index("rotate")]
    assert set(np.abs(turned).round(6)) == {9.0} and (
        turned < 0
    ).mean() == pytest.approx(0.5, abs=0.03)
    assert np.abs(np.corrcoef(which, rowvar=False)[0, 1]) < 0.02


def test_timms_strings_say_how_strong_how_many_and_how_often() -> None:
    growing: Any = policy_of("rand-m7-inc1")
    plain: Any = policy_of("rand-m7")
    assert growing.space is TIMM_INCREASING and plain.space is TIMM
    policy = policy_of("rand-m7-n3-mstd0.5-inc1")
    assert policy is not None and policy.slots == 3
    which, values = policy.draw(
        np.random.default_rng(2).random((COUNT, policy.uniforms)), SIDE
    )
    assert (which >= 0).mean() == pytest.approx(0.5, abs=0.01)
    degrees = np.abs(values[which == NAMES.index("rotate")]) / 3
    assert degrees.mean() == pytest.approx(
        7, abs=0.05
    ) and degrees.std() == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "rand-m9-mstd101",
            "rand-m7-n1-mstd200-inc1",
            "rand-mstd1000-p1",
            "rand-m9-mstd0.5-inc1",
        ),
        *("rand-m10-mstd100-inc1", "rand-m3-p0.2-n1", "rand-m0-mstd2", "rand-m5-inc2"),
    ],
)
def test_timms_strings_draw_what_timm_draws(name: str) -> None:
    """Return how often each operation comes, and mean, deviation and quantiles of its numbers."""
    timm = pytest.importorskip("timm.data.auto_augment")
    random.seed(0)
    theirs = timm.rand_augment_transform(name, {"translate_const": 100})
    policy: Any = policy_of(name)
    which, values = policy.draw(
        np.random.default_rng(0).random((COUNT, policy.uniforms)), SIDE
    )
    assert which.shape[1] == theirs.num_layers
    assert (which >= 0).mean() == pytest.approx(theirs.ops[0].prob, abs=0.01)
    for op in theirs.ops:
        own = values[which == NAMES.index(ours(op.name))]
        drawn: list[float] = []
        op.prob = 1.0
        op.aug_fn = lambda image, *numbers, drawn=drawn, **_: drawn.append(
            numbers[0] if numbers else 0
        )
        for _ in range(2000):
            op(None)
        wanted = np.array(drawn, float) * (
            SIDE if op.name.startswith("Translate") else 1
        )
        wanted -= any(
            word in op.name for word in ("Color", "Contrast", "Brightness", "Sharpness")
        )
        wanted *= op.name != "AutoContrast"
        near = 0.08 * max(np.ptp(wanted), 1e-4)
        shares = (0.05, 0.2, 0.35, 0.8, 0.95)
        found, expected = (
            np.r_[one.mean(), one.std(), np.quantile(one, shares)]
            for one in (own, wanted)
        )
        np.testing.assert_allclose(found, expected, atol=near, rtol=0, err_msg=op.name)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "rand",
            "rand-m11",
            "rand-x3",
            "randaug",
            "rand-m",
            "rand-n0",
            "rand-m9-n1.5",
            "",
            "rand-inc0.5",
        ),
        # of timm, with another meaning than any here
        *(
            "rand-m15-mmax20",
            "rand-m9-tweights",
            "rand-m9-t3a",
            "rand-mstd1-mstd2",
            "rand-m9-w0",
        ),
        *("augmix-m5-w4-d2", "original-mstd0.5", "v0", "3a"),
    ],
)
def test_a_name_that_is_none_is_a_mistake(name: str) -> None:
    with pytest.raises(UserError, match="--auto-augment"):
        policy_of(name)


def test_trivialaugment_and_autoaugment_and_three_augment() -> None:
    draws = np.random.default_rng(3).random((COUNT, 5))
    which, values = POLICIES["trivialaugment"].draw(draws, SIDE)  # type: ignore[union-attr]
    turned = np.abs(values[which == NAMES.index("rotate")])
    assert (
        which.shape == (COUNT, 1)
        and len(np.unique(turned.round(5))) == 31
        and turned.max() == 135
    )
    which, values = POLICIES["autoaugment"].draw(draws, SIDE)  # type: ignore[union-attr]
    chance = np.mean([[part[1] for part in pair] for pair in IMAGENET])
    assert (which >= 0).mean() == pytest.approx(chance, abs=0.01)
    turned = values[which == NAMES.index("rotate")]
    assert set(np.abs(turned).round(3)) == {10.0, 26.667, 30.0}  # 3, 8 and 9 of 9
    assert (turned < 0).mean() == pytest.approx(0.5, abs=0.03)
    which, values = POLICIES["3augment"].draw(draws, SIDE)  # type: ignore[union-attr]
    assert set(values[which == NAMES.index("solarize")]) == {128.0}
    blurred = values[which == NAMES.index("blur")]
    assert len(blurred) / COUNT == pytest.approx(1 / 3, abs=0.01)
    assert (
        blurred.min() >= 0.1
        and blurred.max() <= 2
        and blurred.mean() == pytest.approx(1.05, abs=0.02)
    )


def test_nothing_is_drawn_where_all_is_off() -> None:
    assert Augment().draw(0, 0, IDS, SIZES) is None


def test_jitter_is_colorjitters() -> None:
    drawn = Jitter(color_jitter=0.4, hue_jitter=0.1).draw(1, 0, IDS, SIZES)
    assert drawn.shape[1] == 4
    assert (
        np.sort(drawn[:, :, 0], axis=1)
        == sorted((Op.BRIGHTNESS, Op.CONTRAST, Op.SATURATION, Op.HUE))
    ).all()
    for op in (Op.BRIGHTNESS, Op.CONTRAST, Op.SATURATION):
        its = drawn[drawn[:, :, 0] == op]
        assert np.bincount(
            np.argmax(drawn[:, :, 0] == op, axis=1)
        ) / COUNT == pytest.approx(0.25, abs=0.01)
        assert (
            its[:, 1].min() >= 0.6
            and its[:, 1].max() <= 1.4
            and its[:, 1].std() == pytest.approx(0.231, abs=0.005)
        )
    boxes = Jitter(color_jitter=0.4, look=Look(pixelwise=True)).draw(1, 0, IDS, SIZES)
    assert Op.CONTRAST not in boxes[:, :, 0]


def test_flips_are_drawn_apart() -> None:
    drawn = turns(1, 0, IDS, flip=0.3, upside_down=0.2)
    shares = np.bincount(drawn, minlength=8) / COUNT
    wanted = np.zeros(8)
    wanted[[0, MIRROR, FLIP, MIRROR | FLIP]] = (
        0.7 * 0.8,
        0.3 * 0.8,
        0.7 * 0.2,
        0.3 * 0.2,
    )
    np.testing.assert_allclose(shares, wanted, atol=0.01)


def test_hue_greyscale_and_blur_come_as_often_and_as_strong_as_said() -> None:
    parts = (Jitter(hue_jitter=0.1), Grayscale(grayscale=0.2), Blur(blur=0.3))
    drawn = Augment(parts).draw(1, 0, IDS, SIZES)
    assert drawn is not None
    turned = drawn[:, :4, 1][drawn[:, :4, 0] == Op.HUE]
    assert len(turned) == COUNT and (turned.min(), turned.max()) == pytest.approx(
        (-0.1, 0.1), abs=1e-4
    )
    assert turned.std() == pytest.approx(0.2 / 12**0.5, rel=0.02)
    grey, blurred = (drawn[:, 4:, 0] == (Op.GREYSCALE, Op.BLUR)).T
    assert (grey.mean(), blurred.mean()) == pytest.approx((0.2, 0.3), abs=0.01)
    assert np.abs(np.corrcoef(grey, blurred)[0, 1]) < 0.02
    sigmas = drawn[blurred, 5, 1]
    assert (sigmas.min(), sigmas.max(), sigmas.mean()) == pytest.approx(
        (0.1, 2, 1.05), abs=0.02
    )


@pytest.mark.parametrize(("mode", "spread"), [("const", 0.0), ("rand", 1.0)])
def test_what_a_rectangle_becomes(mode: Any, spread: float) -> None:
    """--mean, or one colour around it; noise within it, of --std, is --erase-mode pixel's alone."""
    mean, std = np.array([10.0, 20, 30]), np.array([4.0, 5, 6])
    look = Look(mean=(10, 20, 30), std=(4, 5, 6))
    drawn = Erase(erase=1.0, erase_mode=mode, look=look).draw(1, 0, IDS, SIZES)
    colours, deviations = drawn[:, 0, 5:8], drawn[:, 0, 8:11]
    assert not deviations.any()
    np.testing.assert_allclose(colours.mean(axis=0), mean, atol=0.1)
    np.testing.assert_allclose(colours.std(axis=0), spread * std, rtol=0.02)


def test_rectangles_are_random_erasings() -> None:
    look = Look(mean=(1, 2, 3), std=(4, 5, 6))
    drawn = Erase(erase=0.25, erase_mode="pixel", look=look).draw(1, 0, IDS, SIZES)
    chosen = drawn[:, 0, 0] == Op.ERASE
    assert chosen.mean() == pytest.approx(0.25, abs=0.01) and TRIES == 10
    x0, y0, x1, y1, *rest = drawn[chosen, 0, 1:].T
    assert min(x0.min(), y0.min()) == 0 and max(x1.max(), y1.max()) == SIDE
    area, ratio = (x1 - x0) * (y1 - y0) / SIDE**2, (y1 - y0) / (x1 - x0)
    assert (
        area.min() > 0.019
        and area.max() < 0.34
        and area.mean() == pytest.approx(0.175, abs=0.004)
    )
    assert np.log(ratio).mean() == pytest.approx(0, abs=0.03) and np.log(
        ratio
    ).max() < np.log(3.5)
    assert np.transpose(rest[:6])[0].tolist() == [1, 2, 3, 4, 5, 6]
    keys = np.stack(rest[6:])
    assert (
        keys == np.floor(keys)
    ).all() and 0.99 * 2**KEY_BITS < keys.max() < 2**KEY_BITS
    assert (
        len(np.unique(keys[0])) > 0.99 * chosen.sum()
        and np.abs(np.corrcoef(keys)[0, 1]) < 0.03
    )


def test_of_the_policys_maps_those_that_follow_are_one() -> None:
    parts = (Auto(auto_augment="rand-m9-n4-p1-inc1"), Grayscale(grayscale=1.0))
    drawn = Augment(parts).draw(3, 1, IDS[:2000], SIZES[:2000])
    assert drawn is not None and drawn.shape[1] == 5
    for names in drawn[:, :4, 0]:
        some = names[names > 0]
        assert not ((some[1:] == Op.AFFINE) & (some[:-1] == Op.AFFINE)).any()
    np.testing.assert_array_equal(affine.composed(drawn), drawn)


def test_outside_of_a_map_lies_the_mean_of_timm_and_torchvisions_black() -> None:
    look = Look(mean=(102, 153, 204))
    for name, fill in (("rand-m9-inc1", look.mean), ("randaugment", (0, 0, 0))):
        drawn = Auto(auto_augment=name, look=look).draw(0, 0, IDS[:99], SIZES[:99])
        maps = drawn[drawn[:, :, 0] == Op.AFFINE]
        assert len(maps) > 9 and (maps[:, 7:11] == (1, *fill)).all()


def test_a_row_depends_on_its_sample_alone() -> None:
    first = (
        Auto(auto_augment="randaugment"),
        Jitter(color_jitter=0.3),
        Grayscale(grayscale=0.2),
    )
    augment = Augment((*first, Blur(blur=0.2), Erase(erase=0.3)))
    all_, some = (
        augment.draw(7, 3, IDS[:50], SIZES[:50]),
        augment.draw(7, 3, IDS[[31, 4]], SIZES[:2]),
    )
    assert all_ is not None and some is not None
    np.testing.assert_array_equal(all_[[31, 4]], some)
    other = augment.draw(7, 4, IDS[:50], SIZES[:50])
    assert other is not None and (other != all_).any(axis=(1, 2)).all()


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
    plan = ImagePlan(
        seed=1,
        batch_size=64,
        heights=SIZES[:64, 0],
        widths=SIZES[:64, 0],
        policy=policy,
    )
    rows = plan.rows(0, 0)[0]
    assert rows.ops is not None and rows.ops.shape == (64, 2 + 4 + 3, WIDTH)
    assert 0 < (rows.turns & FLIP > 0).sum() < 32


@pytest.mark.parametrize(
    ("task", "refused", "taken"),
    [
        # boxes: what moves pixels, looks beyond one, or mixes images
        (
            "detection",
            "auto_augment blur mixup cutmix",
            "color_jitter hue_jitter grayscale erase",
        ),
        ("video", "interpolation", "auto_augment blur mixup cutmix erase vflip"),
    ],
)
def test_what_boxes_and_clips_refuse(task: str, refused: str, taken: str) -> None:
    kind = kind_named(task)
    assert [flag for flag in refused.split() if kind.reads(flag)] == []
    assert [flag for flag in taken.split() if not kind.reads(flag)] == []


def test_what_repeats_leave_out_is_told() -> None:
    console = MagicMock()
    config = parse(["--repeats", "3"])
    splits = opened(config, "synthetic", "images", console)
    said = "--repeats 3 shows 427,056 of 1,281,167 samples in an epoch, each 3 times, and leaves 854,111 out"
    console.info.assert_any_call(f"train: {said}")
    native = Native(size=SIDE, mean=MEAN, std=STD)
    training: Any
    training, _ = kind_of(config).plans(
        config, splits, native, seed=0, world_size=1, rank=0
    )
    assert training.repeats == 3


def test_a_clip_has_one_draw() -> None:
    """A clip is changed by the settings of images, and `Rows.ops` has one row for it, whatever its frames."""
    config = build(
        {"auto_augment": "rand-m9-inc1", "erase": 0.6, "vflip": 0.2, "task": "video"}
    )
    policy = clip_policy(
        config.augmentation, config.clips, Native(size=SIDE, mean=MEAN, std=STD)
    )
    assert (
        policy.augment
        == image_policies(config.augmentation, Native(SIDE, MEAN, STD))[0].augment
    )
    plan = ClipPlan(columns=Videos(9), policy=policy, seed=3, batch_size=9)
    rows = plan.rows(0, 0)[0]
    assert (
        rows.frames is not None
        and rows.ops is not None
        and rows.ops.shape == (9, 2 + 1, WIDTH)
    )
    assert len(np.unique(rows.ops.reshape(9, -1), axis=0)) == 9
    assert replace(plan, training=False).rows(0, 0)[0].ops is None


@pytest.mark.parametrize(
    ("start", "ramp", "said"),
    [
        (16, None, "need each other"),
        (None, [1, 2], "need each other"),
        (SIDE, [1, 2], f"--image-size-start {SIDE} is not smaller"),
        (16, [2, 2], "--image-size-ramp got 2 2"),
    ],
)
def test_growing_images_that_do_not_grow_are_a_mistake(
    start: int | None, ramp: Any, said: str
) -> None:
    settings = build({"image_size_start": start, "image_size_ramp": ramp}).augmentation
    with pytest.raises(UserError, match=said):
        image_policies(settings, Native(size=SIDE, mean=MEAN, std=STD))
