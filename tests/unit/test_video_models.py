"""The registry of architectures for clips: heads fitted to the classes, weights from files, and one line when
they do not fit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from models import Loaded, Unusable, classification
from models.video import auxiliary_weight, build, names, native

ARCHITECTURES = [
    "mc3_18",
    "mvit_v1_b",
    "mvit_v2_s",
    "r2plus1d_18",
    "r3d_18",
    "s3d",
    "swin3d_b",
    "swin3d_s",
    "swin3d_t",
]
HEADS = {
    "mvit_v1_b": "head.1",
    "mvit_v2_s": "head.1",
    "s3d": "classifier.1",
    **dict.fromkeys(["swin3d_b", "swin3d_s", "swin3d_t"], "head"),
}


def clips(side: int, *, frames: int = 16, batch_size: int = 2) -> tuple[int, ...]:
    return (batch_size, 3, frames, side, side)


def shapes(arch: str, classes: int) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        module, fresh = build(arch, classes=classes, shape=clips(native(arch).size))
    assert fresh.anew == []
    return {name: tuple(value.shape) for name, value in module.state_dict().items()}


def save(path: Path, module: nn.Module) -> Path:
    torch.save({"format": 1, "model": module.state_dict()}, path)
    return path


# --- names, sizes, heads ------------------------------------------------------------------------------------


def test_every_video_architecture_and_nothing_else() -> None:
    assert set(ARCHITECTURES) <= set(names())
    assert not set(names()) & set(classification.names())
    assert {auxiliary_weight(arch) for arch in names()} == {0.0}


@pytest.mark.parametrize(
    ("arch", "size"),
    [
        ("r3d_18", 112),
        ("mc3_18", 112),
        ("r2plus1d_18", 112),
        ("s3d", 224),
        ("mvit_v2_s", 224),
        ("swin3d_t", 224),
    ],
)
def test_the_size_it_was_made_for(arch: str, size: int) -> None:
    assert native(arch).size == size


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_heads_are_fitted_to_the_classes(arch: str) -> None:
    """The number of classes changes the shape of the last layer, of nothing else."""
    seven, eleven = shapes(arch, 7), shapes(arch, 11)
    assert seven.keys() == eleven.keys()
    head = HEADS.get(arch, "fc")
    assert {name for name in seven if seven[name] != eleven[name]} == {f"{head}.weight", f"{head}.bias"}
    assert (seven[f"{head}.bias"], eleven[f"{head}.bias"]) == ((7,), (11,))


@pytest.mark.parametrize(
    ("arch", "side", "frames"),
    [("r3d_18", 32, 4), ("mc3_18", 48, 1), ("r2plus1d_18", 112, 8), ("swin3d_t", 64, 7)],
)
def test_other_sizes_and_lengths(arch: str, side: int, frames: int) -> None:
    with torch.device("meta"):
        module, _ = build(arch, classes=3, shape=clips(side, frames=frames))
        assert module.eval()(torch.zeros(clips(side, frames=frames))).shape == (2, 3)


REFUSED = [
    ("mvit_v2_s", clips(112), "--clip-frames 16 of --image-size 112", "224 pixels and 16 frames"),
    ("mvit_v2_s", clips(224, frames=8), "--clip-frames 8 of --image-size 224", "224 pixels and 16 frames"),
    ("s3d", clips(224, frames=4), "--clip-frames 4", "224 pixels"),
    ("s3d", clips(64), "--image-size 64", "224 pixels"),
    (
        "r3d_18",
        clips(8, frames=1, batch_size=1),
        "--clip-frames 1 of --image-size 8 with --batch-size 1",
        "112 pixels",
    ),
]


@pytest.mark.parametrize(
    ("arch", "shape", "got", "made_for"), REFUSED, ids=[f"{arch}-{got}" for arch, _, got, _ in REFUSED]
)
def test_clips_that_cannot_be_taken_are_one_line(
    arch: str, shape: tuple[int, ...], got: str, made_for: str
) -> None:
    with pytest.raises(Unusable) as caught, torch.device("meta"):
        build(arch, classes=3, shape=shape)
    said = str(caught.value)
    assert "\n" not in said and got in said and f"--arch {arch}" in said and made_for in said


# --- weights ------------------------------------------------------------------------------------------------


def small(arch: str, classes: int, weights: Path | None = None) -> tuple[nn.Module, Loaded]:
    shape = clips(224) if arch == "s3d" else clips(32, frames=4)
    return build(arch, classes=classes, shape=shape, weights=None if weights is None else str(weights))


@pytest.mark.parametrize("arch", ["s3d", "mc3_18"])
def test_weights_from_a_file(arch: str, tmp_path: Path) -> None:
    """All of them for the same classes; for others the head alone starts anew and is named."""
    module, _ = small(arch, 5)
    path = save(tmp_path / "a.pt", module)
    for classes in (5, 3):
        loaded, fresh = small(arch, classes, path)
        head = HEADS.get(arch, "fc")
        assert fresh.anew == ([] if classes == 5 else [f"{head}.weight", f"{head}.bias"])
        for name, value in loaded.state_dict().items():
            assert name in fresh.anew or torch.equal(value, module.state_dict()[name]), name


def refusal(arch: str, weights: Any) -> str:
    with pytest.raises(Unusable) as caught:
        small(arch, 5, weights)
    said = str(caught.value)
    assert "\n" not in said and said.startswith(f"--weights {weights}")
    return said


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt", small("mc3_18", 5)[0])
    assert (
        "--arch r3d_18: 'layer2.0.conv1.0.weight' is (128, 64, 1, 3, 3) there, (128, 64, 3, 3, 3) here"
        in refusal("r3d_18", path)
    )
    assert "--arch s3d: it has no 'classifier.1.bias'" in refusal("s3d", path)
    path.write_bytes(path.read_bytes()[:1000])
    assert "no checkpoint" in refusal("mc3_18", path)
    assert "no such file" in refusal("r3d_18", "IMAGENET1K_V1") and "KINETICS400_V1" in refusal(
        "r3d_18", "IMAGENET1K_V1"
    )
