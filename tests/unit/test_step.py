"""The training step against a loop written out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from contracts import Batch, Rows
from engine import memory, optimizers
from engine.distributed import ProcessWorld
from engine.step import Step
from plan import draws
from report.phases import Phases
from settings.optimisation import Optimisation
from tasks.classification import IGNORE, Classification

CPU = torch.device("cpu")
CLASSES, SIZE = 5, 6
SETTINGS: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "nesterov": True}
SETTINGS |= {"weight_decay": 0.02, "norm_weight_decay": 0.003}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Net(nn.Module):
    """Convolution, norm, dropout, linear; remembers the last dropout mask."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv, self.norm, self.head = (
            nn.Conv2d(3, 4, 3),
            nn.GroupNorm(2, 4),
            nn.Linear(4 * 16, CLASSES),
        )
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
    ids, whole = np.arange(SIZE) + SIZE * seed, np.tile((0, 0, 6, 6), (SIZE, 1))
    rows = Rows(
        ids=ids,
        regions=whole,
        windows=whole,
        sizes=whole[:, 2:],
        turns=np.zeros(SIZE, np.uint8),
        valid=counts.numpy(),
    )
    return Batch(
        images=torch.randn(SIZE, 3, 6, 6, generator=generator),
        sizes=torch.full((SIZE, 2), 6),
        targets={"labels": torch.where(counts, labels, IGNORE)},
        valid=counts,
        ids=ids,
        rows=rows,
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
    return Step(
        module=net,
        task=Classification(
            np.zeros(1, np.int64),
            label_smoothing=smoothing,
            binary=optimisation.loss == "bce",
            threshold=optimisation.bce_threshold,
        ),
        optimisation=optimisation,
        precision="fp32",
        world=ProcessWorld(CPU),
        draw_key=partial(draws.key, seed, draws.Purpose.MODEL),
        phases=Phases(CPU),
    )


class ByHand:
    """SGD with Nesterov's momentum (Sutskever et al. 2013, as PyTorch writes it) on the mean over the valid
    samples of a step.
    """

    def __init__(self, net: Net, *, clip: float = 0.0, smoothing: float = 0.0) -> None:
        self.net, self.clip, self.smoothing = net, clip, smoothing
        self.momentum = {
            name: torch.zeros_like(p) for name, p in net.named_parameters()
        }

    def __call__(self, batches: list[Batch], lr: float) -> tuple[float, int, float]:
        losses: list[torch.Tensor] = []
        for batch in batches:
            keep = batch.valid
            outputs = self.net(batch.images[keep])
            labels = batch.targets["labels"][keep]
            likelihoods = -functional.log_softmax(outputs, dim=1)
            right = likelihoods[torch.arange(len(labels)), labels]
            losses += (
                (1 - self.smoothing) * right + self.smoothing * likelihoods.mean(dim=1)
            ).unbind()
        self.net.zero_grad()
        loss = torch.stack(losses).sum()
        (loss / len(losses)).backward()
        norm = float(torch.sqrt(sum((p.grad**2).sum() for p in self.net.parameters())))  # type: ignore[arg-type, misc, operator]
        with torch.no_grad():
            for name, p in self.net.named_parameters():
                assert p.grad is not None
                gradient = p.grad * (min(1.0, self.clip / norm) if self.clip else 1.0)
                gradient = gradient + p * (
                    SETTINGS["weight_decay"]
                    if p.ndim > 1
                    else SETTINGS["norm_weight_decay"]
                )
                self.momentum[name] = 0.9 * self.momentum[name] + gradient
                p.sub_(lr * (gradient + 0.9 * self.momentum[name]))
        return float(loss.detach()), len(losses), norm


def assert_alike(one: nn.Module, other: nn.Module) -> None:
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(
            a, b, rtol=2e-5, atol=2e-6, msg=f"{name} is {a}, not {b}"
        )


PARTLY = [None, [0, 1, 2], [5], [0, 1, 2, 3, 4], [2, 4], None]


@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("clip", [0.0, 0.3])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("invalid", [False, True])
def test_the_same_weights_as_a_loop_by_hand(
    accumulate: int, clip: float, smoothing: float, invalid: bool
) -> None:
    net, reference = Net(), Net()
    step = step_of(net, accumulate=accumulate, clip=clip, smoothing=smoothing)
    by_hand = ByHand(reference, clip=clip, smoothing=smoothing)
    for k in range(6):
        batches = [
            batch_of(k * accumulate + m, PARTLY[(k + m) % 6] if invalid else None)
            for m in range(accumulate)
        ]
        lr = 0.1 / (k + 1)
        loss, valid, norm, scale = step(
            iter(batches), lr=lr, epoch=0, position=k, want_norm=True
        ).tolist()
        expected = by_hand(batches, lr)
        assert (loss, valid, norm) == pytest.approx(expected, rel=1e-4) and scale == 1.0
    assert_alike(net, reference)


def test_a_whole_batch_is_scaled_by_exactly_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The factor is applied without asking the device, and changes no bit where every row has a sample."""
    factors: list[float] = []
    monkeypatch.setattr(
        torch, "_foreach_mul_", lambda gradients, factor: factors.append(float(factor))
    )
    step = step_of(Net(), accumulate=3)
    step(iter([batch_of(0), batch_of(1), batch_of(2)]), lr=0.1, epoch=0, position=0)
    step(
        iter([batch_of(0), batch_of(1, [0, 1, 2]), batch_of(2)]),
        lr=0.1,
        epoch=0,
        position=1,
    )
    assert factors == [1.0, pytest.approx(18 / 15)]


def test_pixels_of_a_sample_that_is_not_valid_change_nothing() -> None:
    nets = [Net(), Net()]
    for net, filling in zip(nets, (0.0, 1e3), strict=True):
        batch = batch_of(0, [0, 1, 2])
        batch.images[3:] = filling
        step_of(net)(iter([batch]), lr=0.1, epoch=0, position=0)
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_step_without_a_valid_sample_only_decays_and_coasts() -> None:
    net = Net()
    step = step_of(net, weight_decay=0.0, norm_weight_decay=0.0)
    start = [p.clone() for p in net.parameters()]
    loss, valid, norm, _ = step(
        iter([batch_of(0, [])]), lr=0.1, epoch=0, position=0, want_norm=True
    ).tolist()
    assert (loss, valid, norm) == (0.0, 0.0, 0.0)
    assert all(
        torch.equal(p, before)
        for p, before in zip(net.parameters(), start, strict=True)
    )

    step(iter([batch_of(1)]), lr=0.1, epoch=0, position=1)
    before = [p.clone() for p in net.parameters()]
    momenta = [
        step.optimizer.state[p]["momentum_buffer"].clone() for p in net.parameters()
    ]
    step(iter([batch_of(2, [])]), lr=0.1, epoch=0, position=2)
    for p, old, momentum in zip(net.parameters(), before, momenta, strict=True):
        torch.testing.assert_close(p.detach(), old - 0.1 * 0.9 * 0.9 * momentum)


def test_the_norm_is_told_when_asked_for() -> None:
    step = step_of(Net())
    assert torch.isnan(step(iter([batch_of(0)]), lr=0.1, epoch=0, position=0)[2])
    assert step(iter([batch_of(0)]), lr=0.1, epoch=0, position=0, want_norm=True)[2] > 0


def test_gradients_are_gone_after_a_step_and_no_batch_is_asked_for_in_vain() -> None:
    net = Net()
    batches = iter([batch_of(0), batch_of(1), batch_of(2)])
    step_of(net, accumulate=2)(batches, lr=0.1, epoch=0, position=0)
    assert not any(p.grad.any() for p in net.parameters() if p.grad is not None)
    assert next(batches).ids[0] == 2 * SIZE


def test_a_frozen_parameter_stays() -> None:
    net = Net()
    net.conv.requires_grad_(False)
    before = net.conv.weight.clone()
    step_of(net, clip=1.0)(iter([batch_of(0)]), lr=0.1, epoch=0, position=0)
    assert torch.equal(net.conv.weight, before)


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
    others = [
        mask(seed=1),
        mask(epoch=1),
        mask(position=64),
        mask(rank=1),
        mask(micro=1),
    ]
    others += [mask(seed=1, epoch=1), mask(epoch=1, position=64)]
    assert len({first, *others}) == 8


def test_a_scale_that_is_too_high_skips_the_step_and_says_so() -> None:
    net = Net()
    net.head.weight.data *= 1000  # gradients before it overflow
    step = step_of(net)
    step.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    before = [p.clone() for p in net.parameters()]
    scales = [
        float(step(iter([batch_of(i)]), lr=0.1, epoch=0, position=i)[3])
        for i in range(2)
    ]
    assert scales == [2.0**127, 2.0**126], "before its update"
    assert all(
        torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True)
    )


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


def test_adamw_follows_pytorchs() -> None:
    net, reference = Net(), Net()
    step = step_of(net, optimizer="adamw")
    parts = (
        [p for p in reference.parameters() if p.ndim > 1],
        [p for p in reference.parameters() if p.ndim < 2],
    )
    decays = SETTINGS["weight_decay"], SETTINGS["norm_weight_decay"]
    groups = [
        {"params": its, "weight_decay": decay}
        for its, decay in zip(parts, decays, strict=True)
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    for k in range(3):
        batch = batch_of(k)
        step(iter([batch]), lr=0.01, epoch=0, position=k)
        for group in optimizer.param_groups:
            group["lr"] = 0.01
        optimizer.zero_grad()
        functional.cross_entropy(
            reference(batch.images), batch.targets["labels"]
        ).backward()
        optimizer.step()
    assert_alike(net, reference)


def test_zero_momentum_is_plain_sgd() -> None:
    optimizer = optimizers.build(Net(), Optimisation(**SETTINGS | {"momentum": 0.0}))
    assert not optimizer.param_groups[0]["nesterov"] and not optimizer.state


# --- ranks --------------------------------------------------------------------------------------------------


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Let a step wrap its network as one of two ranks does, in a group of this process alone."""
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1
    )
    monkeypatch.setenv("WORLD_SIZE", "2")
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("ranks")
def test_a_backward_pass_that_broke_off_is_forgotten() -> None:
    """DistributedDataParallel would refuse every step after it."""
    net = Net()
    step = step_of(net)
    broken = net.head.register_full_backward_hook(lambda *_: pytest.fail("broken"))
    for _ in range(2):
        with pytest.raises((pytest.fail.Exception, RuntimeError)):
            step(iter([batch_of(0)]), lr=0.1, epoch=0, position=0)
    broken.remove()
    step.forget()
    with pytest.raises(RuntimeError, match="finished reduction"):
        step(iter([batch_of(0)]), lr=0.1, epoch=0, position=0)
    step.forget()
    step.wrap_again()
    assert step(iter([batch_of(0)]), lr=0.1, epoch=0, position=0)[1] == SIZE


@pytest.mark.usefixtures("ranks")
def test_the_search_for_a_batch_that_fits_asks_no_other_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its gradients are of black images: a rank that waits in its own step must not get them."""
    step = step_of(Net())
    step.module(batch_of(0).images)  # memory runs out behind this, in the backward pass
    shared: list[object] = []

    def share(
        _, bucket
    ):  # torch compares annotations with the type itself, and here they are words
        shared.append(bucket)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    assert isinstance(step.module, DistributedDataParallel)
    step.module.register_comm_hook(None, share)
    assert memory.largest_fit(step, 4, (3, 6, 6), CPU) == 3
    assert not shared
    assert all(parameter.grad is None for parameter in step.module.parameters())
