"""Losses, and PSNR and SSIM against a float64 reference that is written from their definitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from saturate.contracts import Array, Batch, Split, UserError
from saturate.models.superres import enlarged
from saturate.plan.patches import HIGH
from saturate.settings.config import Config, build
from saturate.tasks import kind_of, superres
from saturate.tasks.batching import Batching
from saturate.tasks.kind import Opening
from saturate.tasks.superres import Fidelity, Superres
from tests.unit.superres_files import CPU, feed_of, halved, opened, write
from tests.unit.test_meter import alone
from tests.unit.test_splits import Console
from tests.unit.test_superres_loader import passed

SHAVE = 3


def rounded(levels: Array) -> Array:
    return np.clip(np.round(levels), 0, 255)


def y_of(rgb: Array) -> Array:
    """Return whole levels [H, W, 1] of MATLAB's rgb2ycbcr of uint8."""
    return rounded(16 + (rgb @ np.array([65.481, 128.553, 24.966]) / 255))[..., None]


def psnr(one: Array, other: Array) -> float:
    error = np.mean((one - other) ** 2)
    return 100.0 if error == 0 else float(10 * np.log10(255**2 / error))


def ssim(one: Array, other: Array) -> float:
    """Return the mean over channels and windows of 11 x 11 (Wang et al. 2004)."""
    places = np.arange(11) - 5
    window = np.exp(-(places[:, None] ** 2 + places**2) / (2 * 1.5**2))
    window /= window.sum()

    def weighted(values: Array) -> Array:
        views = np.lib.stride_tricks.sliding_window_view(values, (11, 11), (0, 1))
        return (views * window).sum(axis=(-2, -1))

    x, y = weighted(one), weighted(other)
    xx, yy, xy = (
        weighted(one * one) - x * x,
        weighted(other * other) - y * y,
        weighted(one * other) - x * y,
    )
    first, second = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    return float(
        np.mean(
            (2 * x * y + first)
            * (2 * xy + second)
            / ((x * x + y * y + first) * (xx + yy + second))
        )
    )


MEANS = "psnr", "psnr_bicubic", "ssim", "ssim_bicubic"


def output(sample: int, high: torch.Tensor, channels: int) -> torch.Tensor:
    """Return what a network may say of an image: something like it, with values outside of [0, 1]."""
    noise = torch.randn(high.shape, generator=torch.Generator().manual_seed(sample)) / 5
    return (high + noise)[:, :channels] if sample else high[:, :channels]


def batches_of(split: Split) -> list[Batch]:
    """Return the batches of a validation."""
    return passed(feed_of(split, patch=None, batch_size=1))


@pytest.mark.parametrize(("of_luma", "channels"), [(True, 1), (True, 3), (False, 3)])
def test_figures_are_the_references(
    of_luma: bool, channels: int, tmp_path: Path
) -> None:
    images = list(write(tmp_path / "data/val", 5).values())
    split = opened(tmp_path / "data", "val")

    metric = Fidelity(device=CPU, scale=2, of_luma=of_luma, shave=SHAVE, samples=5)
    for batch in batches_of(split):
        metric.update(output(int(batch.ids[0]), batch.targets[HIGH], channels), batch)
    whole = metric.result(alone())
    # of three images bicubic, the network's and the original
    # three images, each in three ways of 256 px with 8 px between, and a caption of 25
    shape = (1, 3 * (256 + 8 + 25), 3 * (256 + 8), 3)
    assert whole["extras"]["images"]["val/crops"].shape == shape
    expected: dict[str, list[float]] = {name: [] for name in MEANS}
    inside = slice(SHAVE, -SHAVE)
    for sample, pixels in enumerate(images):
        small = halved(pixels, 2)
        large = pixels[: 2 * small.shape[0], : 2 * small.shape[1]].astype(np.float64)
        high = torch.from_numpy(large / 255).float().permute(2, 0, 1)[None]
        ours = rounded(
            255 * output(sample, high, channels)[0].double().permute(1, 2, 0).numpy()
        )
        planes = torch.from_numpy(small.astype(np.float64)).permute(2, 0, 1)[None]
        bicubic = rounded(enlarged(planes, 2)[0].permute(1, 2, 0).numpy())
        if of_luma:
            large, bicubic = y_of(large), y_of(bicubic)
            ours = y_of(ours) if channels == 3 else ours
        for name, levels in (("", ours), ("_bicubic", bicubic)):
            one, other = levels[inside, inside], large[inside, inside]
            expected[f"psnr{name}"].append(psnr(one, other))
            expected[f"ssim{name}"].append(ssim(one, other))
    for name, values in expected.items():
        assert whole[name] == pytest.approx(np.mean(values), abs=1e-9), name
    assert whole["samples"] == 5 and whole["outputs_not_finite"] == 0


def test_a_crop_is_the_middle_and_white_where_the_picture_ends() -> None:
    columns = torch.arange(superres.CROP + 20) / 255
    wide = superres._crop(columns.expand(3, 100, -1))
    assert wide[0, :, 0].tolist() == [*range(10, superres.CROP + 10)]
    assert (wide[:100, 0, 0] == 10).all() and (wide[100:] == 255).all()
    narrow = superres._crop(columns[:30].expand(3, 300, -1))
    assert narrow[0, :, 0].tolist() == [*range(30), *[255] * (superres.CROP - 30)]


def test_an_output_that_is_no_number_counts_as_black_for_white(tmp_path: Path) -> None:
    write(tmp_path / "data/val", 2)
    metric = Fidelity(device=CPU, scale=2, of_luma=True, shave=0, samples=2)
    for batch in batches_of(opened(tmp_path / "data", "val")):
        metric.update(batch.targets[HIGH] * (torch.nan if batch.ids[0] else 1), batch)
    found = metric.result(alone())
    assert (found["psnr"], found["outputs_not_finite"], found["samples"]) == (
        50.0,
        1,
        2,
    )
    # both are shown, 256 px with 8 px between and a caption of 25
    crops = found["extras"]["images"]["val/crops"]
    assert crops.shape[1] == 2 * (256 + 8 + 25)


def test_losses_are_those_of_the_papers() -> None:
    high = torch.rand(2, 3, 4, 4)
    valid, ids = torch.tensor([True, False]), np.array([0, -1])
    batch = Batch(
        images=high, sizes=torch.zeros(2, 2), targets={HIGH: high}, valid=valid, ids=ids
    )

    def losses(arch: str, outputs: torch.Tensor, **settings: Any) -> list[float]:
        config = build(
            {"task": "superres", "arch": arch, "loader": "synthetic", **settings}
        )
        kind = kind_of(config)
        splits = kind.splits(Opening.from_config(config, "synthetic", Console()))
        task = kind.tasks(splits, 0.0)[0]
        assert isinstance(task, Superres)
        return [float(loss) for loss in task.losses(outputs, batch)]

    assert losses("edsr_baseline", high + 0.5) == pytest.approx([0.5, 0])
    assert losses("edsr_baseline", high + 0.5, pixel_loss="mse") == pytest.approx(
        [0.25, 0]
    )
    y = (
        16 + 65.481 * high[:, :1] + 128.553 * high[:, 1:2] + 24.966 * high[:, 2:]
    ) / 255
    assert losses("espcn", y + 0.5) == pytest.approx([0.25, 0])
    assert losses("srcnn_955", y - 0.5) == pytest.approx([0.25, 0])


def made(config: Config) -> tuple[Any, Any]:
    """Return the plans of a run, whose tasks can be made too."""
    kind = kind_of(config)
    splits = kind.splits(Opening.from_config(config, config.loading.loader, Console()))
    native = kind.registry.native(config.model.arch or kind.arch)
    plans = kind.plans(splits, native, Batching.from_config(config))
    kind.tasks(splits, 0.0)
    return plans


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"arch": "srcnn", "psnr": "rgb"},
            "--psnr rgb: --arch srcnn gives the luma alone; --psnr y",
        ),
        (
            {"scale": 3, "patch_size": 32},
            "--patch-size 32 is no multiple of --scale 3; 30 or 33",
        ),
        (
            {"loader": "paired"},
            "--data is missing: --loader paired reads files; a folder with DIV2K",
        ),
    ],
)
def test_a_mistake_is_one_line(settings: dict[str, Any], said: str) -> None:
    config = build({"task": "superres", "loader": "synthetic", **settings})
    with pytest.raises(UserError, match=said):
        made(config)


def test_the_patch_is_the_papers_unless_said_otherwise() -> None:
    for settings, small in (
        ({}, 17),
        ({"arch": "srcnn", "scale": 3}, 11),
        ({"patch_size": 64}, 32),
    ):
        config = build({"task": "superres", "loader": "synthetic", **settings})
        plan, val = made(config)
        assert (plan.rows(0, 0)[0].sizes == small).all() and val.batch_size == 1
