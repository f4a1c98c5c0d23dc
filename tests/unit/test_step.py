"""The training step against a loop written out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from torch import nn

from saturate.contracts import Batch
from saturate.engine.step import Step
from saturate.settings.optimisation import Optimisation
from saturate.tasks.classification import IGNORE, Classification
from tests.unit.steps import composed

pytestmark = pytest.mark.usefixtures("one_thread")
CLASSES, SIZE = 5, 6
SETTINGS: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "nesterov": True}
SETTINGS |= {"weight_decay": 0.02, "norm_weight_decay": 0.003}


class Net(nn.Module):
    """Convolution, norm, dropout, linear; remembers the last dropout mask."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)
        self.head = nn.Linear(4 * 16, CLASSES)
        self.dropout = dropout
        self.masks: list[torch.Tensor] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = functional.relu(self.norm(self.conv(images))).flatten(1)
        if self.dropout:
            mask = functional.dropout(torch.ones_like(hidden), self.dropout)
            self.masks.append(mask)
            hidden = hidden * mask
        out: torch.Tensor = self.head(hidden)
        return out


def batch_of(seed: int, valid: list[int] | None = None) -> Batch:
    """Six samples, of which `valid` (all unless given) count; the labels of the others are IGNORE."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.tensor([valid is None or i in valid for i in range(SIZE)])
    labels = torch.randint(0, CLASSES, (SIZE,), generator=generator)
    ids = np.arange(SIZE) + SIZE * seed
    return Batch(
        images=torch.randn(SIZE, 3, 6, 6, generator=generator),
        sizes=torch.full((SIZE, 2), 6),
        targets={"labels": torch.where(counts, labels, IGNORE)},
        valid=counts,
        ids=ids,
    )


def step_of(
    net: nn.Module,
    *,
    accumulate: int = 1,
    clip: float = 0.0,
    smoothing: float = 0.0,
    seed: int = 0,
    **more: Any,
) -> Step:
    optimisation = Optimisation(
        **SETTINGS | {"accumulate": accumulate, "clip_grad_norm": clip} | more
    )
    task = Classification(
        np.zeros(1, np.int64),
        label_smoothing=smoothing,
        binary=optimisation.loss == "bce",
        threshold=optimisation.bce_threshold,
    )
    return composed(net, task, optimisation, seed=seed)


def assert_alike(one: nn.Module, other: nn.Module) -> None:
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(
            a, b, rtol=2e-5, atol=2e-6, msg=f"{name} is {a}, not {b}"
        )


PARTLY = [None, [0, 1, 2], [5], [0, 1, 2, 3, 4], [2, 4], None]


def by_hand(
    net: Net,
    optimizer: torch.optim.Optimizer,
    batches: list[Batch],
    lr: float,
    clip: float = 0.0,
    smoothing: float = 0.0,
) -> tuple[float, int, float]:
    """Take a step on the mean over the valid samples of some batches. Returns their loss, count, and norm."""
    images = torch.cat([batch.images[batch.valid] for batch in batches])
    labels = torch.cat([batch.targets["labels"][batch.valid] for batch in batches])
    loss = functional.cross_entropy(
        net(images), labels, label_smoothing=smoothing, reduction="sum"
    )
    optimizer.zero_grad()
    (loss / len(labels)).backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), clip or torch.inf)
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    return loss.item(), len(labels), norm.item()


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(("clip", "smoothing"), [(0.0, 0.1), (0.3, 0.0)])
@pytest.mark.parametrize("invalid", [False, True])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_the_same_weights_as_a_loop_by_hand(
    accumulate: int, clip: float, smoothing: float, invalid: bool, name: str
) -> None:
    net, reference = Net(), Net()
    step = step_of(
        net, accumulate=accumulate, clip=clip, smoothing=smoothing, optimizer=name
    )
    weights, rest = (
        [p for p in reference.parameters() if (p.ndim > 1) is decays]
        for decays in (True, False)
    )
    groups = [
        {"params": weights, "weight_decay": SETTINGS["weight_decay"]},
        {"params": rest, "weight_decay": SETTINGS["norm_weight_decay"]},
    ]
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(groups)
    if name == "sgd":
        optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True)
    for k in range(6):
        batches = [
            batch_of(k * accumulate + m, PARTLY[(k + m) % 6] if invalid else None)
            for m in range(accumulate)
        ]
        lr = 0.1 / (k + 1)
        *found, scale = step(
            iter(batches), lr=lr, epoch=0, position=k, want_norm=True
        ).tolist()
        expected = by_hand(reference, optimizer, batches, lr, clip, smoothing)
        assert found == pytest.approx(expected, rel=1e-4) and scale == 1.0
    assert_alike(net, reference)
    assert not any(p.grad.any() for p in net.parameters() if p.grad is not None)


def test_a_whole_batch_is_scaled_by_exactly_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The factor is applied without asking the device, and changes no bit where every row has a sample."""
    factors: list[float] = []
    monkeypatch.setattr(
        torch, "_foreach_mul_", lambda gradients, factor: factors.append(float(factor))
    )
    step = step_of(Net(), accumulate=3)
    for at, valid in enumerate((None, [0, 1, 2])):
        batches = iter([batch_of(0), batch_of(1, valid), batch_of(2)])
        outcome = step(batches, lr=0.1, epoch=0, position=at)
        assert torch.isnan(outcome[2]), "nobody has asked for the norm"
    assert factors == [1.0, pytest.approx(18 / 15)]


def test_parts_of_the_loss_are_summed_over_the_valid_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = iter([{"box": torch.tensor(value)} for value in (1.0, 4.0)])
    monkeypatch.setattr(Classification, "parts", lambda *_: next(parts))
    step = step_of(Net(), accumulate=2)
    batches = iter([batch_of(0), batch_of(1, [0, 1])])
    outcome = step(batches, lr=0.1, epoch=0, position=0)
    # of six samples and of two
    assert step.loss_terms == ("box",) and outcome[4:].tolist() == [6 * 1 + 2 * 4]


def test_a_step_without_a_valid_sample_only_decays_and_coasts() -> None:
    """And a frozen parameter stays."""
    net = Net()
    net.conv.requires_grad_(False)
    frozen = net.conv.weight.clone()
    step = step_of(net, weight_decay=0.0, norm_weight_decay=0.0)
    step(iter([batch_of(1)]), lr=0.1, epoch=0, position=1)
    trained = [p for p in net.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in trained]
    state = [step.optimizer.state[p]["momentum_buffer"].clone() for p in trained]
    outcome = step(iter([batch_of(2, [])]), lr=0.1, epoch=0, position=2, want_norm=True)
    assert outcome.tolist() == [0.0, 0.0, 0.0, 1.0]
    for p, old, momentum in zip(trained, before, state, strict=True):
        torch.testing.assert_close(p.detach(), old - 0.1 * 0.9 * 0.9 * momentum)
    assert torch.equal(net.conv.weight, frozen)


def mask(
    *, seed: int = 0, epoch: int = 0, position: int = 0, rank: int = 0, micro: int = 0
) -> bytes:
    net = Net(dropout=0.5)
    step = step_of(net, seed=seed, accumulate=2)
    step.world.rank = rank
    step(iter([batch_of(0), batch_of(1)]), lr=0.1, epoch=epoch, position=position)
    return net.masks[micro].numpy().tobytes()


def test_dropout_is_keyed_by_seed_epoch_position_and_rank() -> None:
    torch.manual_seed(123)
    first = mask()
    torch.rand(17)  # the generator's state is not looked at
    assert mask() == first
    each: dict[str, int] = {
        "seed": 1,
        "epoch": 1,
        "position": 64,
        "rank": 1,
        "micro": 1,
    }
    others = [mask(**{name: value}) for name, value in each.items()]
    others += [mask(seed=1, epoch=1), mask(epoch=1, position=64)]
    assert len({first, *others}) == 8


@pytest.mark.parametrize(
    "clip", [{}, {"clip": 0.3}, {"clip_grad_value": 0.01}, {"clip_grad_agc": 0.02}]
)
def test_the_scale_leaves_no_trace_in_the_weights(clip: dict[str, float]) -> None:
    net, scaled = Net(), Net()
    plain_step, scaled_step = step_of(net, **clip), step_of(scaled, **clip)  # type: ignore[arg-type]
    scaled_step.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for k in range(3):
        for step in (plain_step, scaled_step):
            step(iter([batch_of(k)]), lr=0.1, epoch=0, position=k)
    assert_alike(net, scaled)
