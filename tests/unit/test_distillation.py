"""The loss of a student beside a teacher, and which checkpoints teach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from saturate.contracts import Batch, UserError
from saturate.models import Unusable
from saturate.models.classification import native
from saturate.system.torch_files import load
from saturate.tasks.classification import KIND, Classification
from saturate.tasks.distillation import Distilled, read_teacher
from tests.unit.test_classification import batch_of, rows

SHAPE = (2, 3, 64, 64)


class Fixed(nn.Module):
    """A network whose logits do not depend on the images."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.logits + 0 * images.sum()


def softmax(logits: np.ndarray) -> np.ndarray:
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(exponents / exponents.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_loss_is_the_own_and_the_distance(share: float) -> None:
    rng = np.random.default_rng(0)
    own, told = rng.normal(size=(2, 3, 5))
    labels = np.array([1, 4, -1])
    batch = Batch(
        images=torch.zeros(3, 3, 8, 8),
        targets={"labels": torch.tensor(labels)},
        ids=np.arange(3),
        valid=torch.tensor([True, True, False]),
        sizes=torch.full((3, 2), 8),
    )
    teacher = Fixed(torch.tensor(told))
    task = Distilled(Classification(labels), teacher, share, temperature=2.0)
    logits = torch.tensor(own, requires_grad=True)
    losses = task.losses((logits, logits), batch)
    losses.sum().backward()

    p, q = softmax(told / 2), softmax(own / 2)
    distance = 4 * (p * np.log(p / q)).sum(axis=1)
    entropy = -np.log(softmax(own)[np.arange(3), labels])
    expected = (1 - share) * entropy + share * distance
    expected[2] = 0  # no sample
    np.testing.assert_allclose(losses.detach(), expected, rtol=1e-5)
    assert teacher.logits.grad is None and logits.grad is not None
    assert not logits.grad[2].any()


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_classes_count_alike_beside_a_teacher(share: float) -> None:
    """Each class has half of the loss, of nine samples of one and one of another, where all answers are alike."""
    labels = np.array([0] * 9 + [1])
    weights = np.array([10 / (2 * 9)] * 9 + [10 / 2])
    own = Classification(labels, weights=weights)
    batch = batch_of(torch.from_numpy(labels))
    for name, value in own.targets(rows(list(range(10)))).items():
        batch.targets[name] = torch.from_numpy(value)
    told = [2.0, -1.0]
    teacher = Fixed(torch.tensor([told] * 10))
    task = Distilled(own, teacher, share, temperature=2.0)
    losses = task.losses(torch.zeros(10, 2), batch)

    distance = 0.0
    for p in softmax(np.array([told]) / 2)[0]:
        distance += 4 * p * np.log(p / 0.5)
    each = (1 - share) * np.log(2) + share * distance
    np.testing.assert_allclose(losses, [each * weight for weight in weights], rtol=1e-5)
    assert float(losses[9] / losses.sum()) == pytest.approx(0.5)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    network, _ = KIND.registry.build("squeezenet1_1", classes=2, shape=SHAPE)
    made_for = native("squeezenet1_1")
    path = tmp_path_factory.mktemp("teacher") / "best.pt"
    content = {
        "format": 1,
        "arch": "squeezenet1_1",
        "classes": ["cat", "dog"],
        "manifest": "none",
        "used": {"mean": list(made_for.mean), "std": list(made_for.std)},
        "model": network.state_dict(),
    }
    torch.save(content, path)
    return path


def taught_by(path: Path, **how: Any) -> nn.Module:
    made_for = native("squeezenet1_1")
    return read_teacher(str(path), KIND, made_for, ["cat", "dog"], SHAPE, **how)


def test_a_teacher_is_the_checkpoints_network_and_is_frozen(checkpoint: Path) -> None:
    teacher = taught_by(checkpoint)
    assert not teacher.training
    assert not any(value.requires_grad for value in teacher.parameters())
    for name, value in load(checkpoint)["model"].items():
        torch.testing.assert_close(teacher.state_dict()[name], value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"classes": ["dog", "cat"]},
            "not on the 2 of --data: 'dog' where --data has 'cat'",
        ),
        ({"used": {"mean": [0.5] * 3, "std": [0.5] * 3}}, "give --mean 0.5 0.5 0.5"),
        ({"arch": "mine:net"}, "no file of weights has code run"),
        ({"arch": "r3d_18"}, "--teacher .* got 'r3d_18', which is for --task video"),
        ({"model": None}, "no checkpoint of a run"),
    ],
)
def test_what_cannot_teach(
    checkpoint: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    content = load(checkpoint) | changes
    if content["model"] is None:  # somebody else's
        content = {"state_dict": {}}
    torch.save(content, tmp_path / "best.pt")
    with pytest.raises((UserError, Unusable), match=message):
        taught_by(tmp_path / "best.pt")


def test_a_teacher_takes_growing_images(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(module: nn.Module, shape: tuple[int, ...]) -> None:
        raise AssertionError(f"{shape} is none")

    monkeypatch.setattr("saturate.tasks.distillation.dry_run", refuses)
    message = (
        r"^--teacher .*: --image-size-start 32 does not suit .*\(2, 3, 32, 32\) is none"
    )
    with pytest.raises(Unusable, match=message):
        taught_by(checkpoint, start=32)
