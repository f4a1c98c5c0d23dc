"""What recipes of others need of the step: optimisers, averages, clipping, losses, layers' rates."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm.optim
import torch
import torchvision
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from saturate.contracts import Batch
from saturate.engine import optimizers
from saturate.engine.checkpoint import Checkpoints, Progress, Resume, write
from saturate.engine.distributed import ProcessWorld
from saturate.engine.ema import Ema
from saturate.engine.step import Step
from saturate.models import classification as registry
from saturate.settings.optimisation import Optimisation
from saturate.tasks.classification import Classification, binary_cross_entropy
from tests.unit.steps import CPU, composed
from tests.unit.test_step import Net, assert_alike, batch_of, step_of

CASES: dict[str, dict[str, Any]] = {
    **{
        name: {"optimizer": name, "lr": 0.01}
        for name, kind in optimizers.OPTIMIZERS.items()
        if kind.capturable
    },
    "ema": {"ema": 0.7},
    "ema warmed up": {"ema": 0.99, "ema_warmup": True},
    "value": {"clip_grad_value": 0.01},
    "agc": {"clip_grad_agc": 0.02},
    "norm": {"clip_grad_norm": 0.02},
    "layers": {"layer_decay": 0.5},
    "bce": {"loss": "bce", "bce_threshold": 0.1},
}


def run(step: Step, batches: range, *, size: int = 1, lr: float = 0.01) -> None:
    """Take a step for each `size` batches."""
    numbers = list(batches)
    for at in range(0, len(numbers), size):
        step(
            (batch_of(n) for n in numbers[at : at + size]), lr=lr, epoch=0, position=at
        )


def joined(one: Batch, two: Batch) -> Batch:
    """Return two batches as one of twice the size."""
    return replace(
        one,
        images=torch.cat([one.images, two.images]),
        sizes=torch.cat([one.sizes, two.sizes]),
        targets={"labels": torch.cat([one.targets["labels"], two.targets["labels"]])},
        valid=torch.cat([one.valid, two.valid]),
        ids=np.concatenate([one.ids, two.ids]),
        rows=None,
    )


@pytest.mark.parametrize("case", CASES)
def test_two_batches_are_one_of_twice_the_size(case: str) -> None:
    settings = CASES[case]
    parts, whole = Net(), Net()
    start = [p.detach().clone() for p in parts.parameters()]
    of_parts = step_of(parts, accumulate=2, **settings)
    of_whole = step_of(whole, **settings)
    run(of_parts, range(6), size=2)
    for at in (0, 2, 4):
        batch = joined(batch_of(at), batch_of(at + 1))
        of_whole(iter([batch]), lr=0.01, epoch=0, position=at)
    assert_alike(parts, whole)
    for old, moved in zip(start, parts.parameters(), strict=True):
        assert not torch.equal(old, moved)
    if of_parts.ema is not None and of_whole.ema is not None:
        for a, b in zip(of_parts.ema.tensors(), of_whole.ema.tensors(), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_goes_on_bit_for_bit(case: str, tmp_path: Path) -> None:
    settings = CASES[case]
    whole, first, rest = (step_of(Net(), **settings) for _ in range(3))
    run(whole, range(6))
    run(first, range(3))
    name = settings.get("optimizer", "sgd")
    identity: dict[str, Any] = {"arch": "net", "classes": ["a"], "manifest": ""}
    about = {**identity, "config": {"optimizer": name}}
    kept = Checkpoints(
        folder=tmp_path,
        world=ProcessWorld(CPU),
        module=first.module,
        step=first,
        about=about,
    )
    content = kept.content(Progress(step=3))
    assert content is not None
    write(tmp_path / "last.pt", content)
    run(rest, range(9, 10))  # what was there is written over
    resume = Resume(path=tmp_path / "last.pt")
    resume.fits(
        task="classification",
        config=about["config"],
        world=ProcessWorld(CPU),
        **identity,
    )
    resume.into(rest.module, rest, optimizer=name)
    run(rest, range(3, 6))
    for a, b in zip(whole.state_tensors(), rest.state_tensors(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "case", [name for name in CASES if name not in ("sgd", "adamw")]
)
def test_a_step_that_overflows_changes_nothing(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither weights nor state nor average; and the host does not ask the device for it."""
    step = composed(
        Net(),
        Classification(np.zeros(1, np.int64)),
        Optimisation(**CASES[case]),
        precision="fp16",
    )
    step.scaler.update(1.0)
    run(step, range(2))
    before = [tensor.detach().clone() for tensor in step.state_tensors()]
    step.scaler.update(3e38)
    # torch's are fused, and Muon's AdamW counts on the device, on a GPU alone
    if case in ("lamb", "lars", "lion"):
        monkeypatch.setattr(
            torch.Tensor,
            "item",
            lambda self: pytest.fail("the host waits for the device"),
        )
    outcome = step(iter([batch_of(2)]), lr=0.01, epoch=0, position=0)
    monkeypatch.undo()
    assert float(outcome[3]) == pytest.approx(3e38), "the scale before its update"
    scales = {id(step.scaler._scale), id(step.scaler._growth_tracker)}
    for tensor, old in zip(step.state_tensors(), before, strict=True):
        assert id(tensor) in scales or torch.equal(tensor, old)
    assert float(step.scaler.get_scale()) < 3e38


class Centred(nn.Module):
    """A network that assigns a new tensor to its buffer, has a mask of -inf, and counts."""

    centre: torch.Tensor
    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.register_buffer("centre", torch.zeros(4))
        self.register_buffer("mask", torch.full((2,), -torch.inf))
        self.register_buffer("cache", torch.zeros(1), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(self.layer(images))
        self.centre = self.centre + found.detach().mean(0)
        return found - self.centre


@pytest.mark.parametrize(
    ("decay", "warm_up"), [(0.9, False), (0.6, True)], ids=["torch", "timm"]
)
def test_the_average_is_torchs_and_timms(decay: float, warm_up: bool) -> None:
    """From the first step on, buffers too; AveragedModel loads it by its names."""
    from timm.utils import ModelEmaV3

    net = Centred()
    if not warm_up:  # timm averages a shared weight twice
        net.again = net.layer.weight
    of_torch = AveragedModel(
        net, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True
    )
    of_timm = ModelEmaV3(net, decay=decay, use_warmup=warm_up)
    ours = Ema(net, decay=decay, warm_up=warm_up)
    torch.manual_seed(0)
    for step in range(1, 6):
        for parameter in net.parameters():
            parameter.data += torch.randn_like(parameter)
        net(torch.randn(8, 3))
        of_torch.update_parameters(net)
        of_timm.update(net, step=step)
        ours.update(None)
    state = ours.state_dict()
    assert state.keys() == of_torch.state_dict().keys()
    assert torch.equal(state["module.mask"], net.mask)
    # torch has no warm-up, and timm leaves other buffers as they were
    theirs = of_torch.module if not warm_up else of_timm.module
    for name, average in theirs.state_dict().items():
        if average.is_floating_point() and name != "mask":  # of -inf, which is nan
            torch.testing.assert_close(state[f"module.{name}"], average)
    moved = net.state_dict()["norm.running_mean"]
    assert not torch.equal(state["module.norm.running_mean"], moved)
    of_torch.load_state_dict(state)
    again = Ema(net, decay=decay, warm_up=warm_up)
    again.load_state_dict(state)
    for one, other in zip(ours.tensors(), again.tensors(), strict=True):
        assert torch.equal(one, other)
    own = [tensor.data_ptr() for tensor in (*net.parameters(), *net.buffers())]
    with ours.in_network():
        for name in ("layer.weight", "norm.running_var", "centre"):
            assert torch.equal(net.state_dict()[name], state[f"module.{name}"])
    assert own == [tensor.data_ptr() for tensor in (*net.parameters(), *net.buffers())]


def groups_of(module: nn.Module, **settings: Any) -> dict[str, dict[str, Any]]:
    """Return the optimiser's group of each parameter."""
    optimizer = optimizers.build(module, Optimisation(weight_decay=0.1, **settings))
    names = {id(p): name for name, p in module.named_parameters()}
    found = {names[id(p)]: g for g in optimizer.param_groups for p in g["params"]}
    assert len(found) == len(names)
    return found


def decayed(module: nn.Module, **settings: Any) -> set[str]:
    groups = groups_of(module, **settings).items()
    return {name for name, group in groups if group["weight_decay"]}


VITS = "vit_tiny_patch16_224 swin_tiny_patch4_window7_224 davit_tiny"


@pytest.mark.parametrize("arch", VITS.split())
def test_what_decays_is_timms(arch: str) -> None:
    with torch.device("meta"):
        module = timm.create_model(arch)
    named = module.no_weight_decay() if hasattr(module, "no_weight_decay") else ()
    groups = timm.optim.param_groups_weight_decay(
        module, 0.1, no_weight_decay_list=named
    )
    theirs = {id(p) for g in groups if g["weight_decay"] for p in g["params"]}
    names = {name for name, p in module.named_parameters() if id(p) in theirs}
    assert decayed(module) == names


@pytest.mark.parametrize(
    ("arch", "no_decay", "but"),
    [
        ("swin_t", (), ""),
        (
            "swin_t",
            ("*.relative_position_bias_table",),
            ".relative_position_bias_table",
        ),
        ("vit_b_32", ("class_token", "*.pos_embedding"), "class_token .pos_embedding"),
    ],
)
def test_what_decays_is_torchvisions(
    arch: str, no_decay: tuple[str, ...], but: str
) -> None:
    """Its references' --norm-weight-decay 0 --bias-weight-decay 0, where norms and what is named bias do not
    decay, and --transformer-embedding-decay 0. It decays a bias of another name, as docs/recipes.md says."""
    with torch.device("meta"):
        module = torchvision.models.get_model(arch)
    norms = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)
    theirs = {
        f"{part}.{name}".removeprefix(".")
        for part, layer in module.named_modules()
        for name, _ in layer.named_parameters(recurse=False)
        if not isinstance(layer, norms) and name not in ("bias", "in_proj_bias")
    }
    theirs -= {name for name in theirs if but and name.endswith(tuple(but.split()))}
    assert decayed(module, no_decay=no_decay) == theirs


def test_rates_of_layers_are_timms() -> None:
    with torch.device("meta"):
        module = timm.create_model("vit_tiny_patch16_224", depth=3)
    found = groups_of(module, layer_decay=0.5)
    names = {id(p): name for name, p in module.named_parameters()}
    for group in timm.optim.param_groups_layer_decay(module, layer_decay=0.5):
        for parameter in group["params"]:
            ours = found[names[id(parameter)]]
            assert ours["lr"] == pytest.approx(0.1 * group["lr_scale"])


@pytest.mark.parametrize(
    ("arch", "layers"),
    [
        ("resnet18", "conv1.weight 1 layer1.1.conv1.weight 4 fc.bias 11"),
        (
            "vit_b_32",
            "class_token 0 encoder.layers.encoder_layer_3.ln_1.bias 5 heads.head.bias 15",
        ),
    ],
)
def test_other_networks_are_layered_by_their_blocks(arch: str, layers: str) -> None:
    with torch.device("meta"):
        found = groups_of(torchvision.models.get_model(arch), layer_decay=0.5)
    *words, last = layers.split()
    for name, layer in zip(words[::2], [*words[1::2], last], strict=True):
        assert found[name]["lr_scale"] == 0.5 ** (int(last) - int(layer))


def test_blocks_of_a_list_are_layers_wherever_it_lies() -> None:
    """The embedding is layer 0, the blocks of the encoder are 1 to 3, and the head is 4, as in transformers."""

    def block() -> nn.Module:
        return nn.ModuleDict({"norm": nn.LayerNorm(4), "up": nn.Linear(4, 4)})

    encoder = nn.ModuleDict({"blocks": nn.ModuleList(block() for _ in range(3))})
    parts = {"embed": nn.Linear(4, 4), "encoder": encoder, "head": nn.Linear(4, 2)}
    found = groups_of(nn.ModuleDict(parts), layer_decay=0.5)
    blocks = [f"encoder.blocks.{place}.up" for place in range(3)]
    for layer, name in enumerate(("embed", *blocks, "head")):
        assert found[f"{name}.weight"]["lr_scale"] == 0.5 ** (4 - layer), name


def test_a_feature_pyramid_is_one_layer() -> None:
    """Its convolutions, each of a level, lie beside each other."""
    pyramid = torchvision.ops.FeaturePyramidNetwork([4, 4, 4], 4)
    parts = {"backbone": nn.Linear(4, 4), "fpn": pyramid, "head": nn.Linear(4, 2)}
    found = groups_of(nn.ModuleDict(parts), layer_decay=0.5)
    scales = {found[name]["lr_scale"] for name in found if name.startswith("fpn.")}
    assert scales == {0.5} and found["backbone.weight"]["lr_scale"] == 0.25


APART = {"apex-sgd", "apex-lamb"}
"""Optimisers that need a package and a GPU: test_apex_is_called_as_it_wants."""
LIBRARYS: dict[Any, Any] = {
    "sgd": partial(torch.optim.SGD, momentum=0.8),
    "adamw": torch.optim.AdamW,
    "lamb": partial(timm.optim.Lamb, max_grad_norm=1.0),
    "lars": partial(timm.optim.Lars, momentum=0.8),
    "lion": timm.optim.Lion,
    "muon": partial(timm.optim.Muon, momentum=0.8),
}


@pytest.mark.parametrize("name", sorted({*optimizers.OPTIMIZERS} - APART))
def test_optimisers_are_those_of_libraries(name: Any) -> None:
    """Steps with the same gradients give the weights of torch's or timm's own optimiser."""
    assert name in LIBRARYS, f"--optimizer {name} has no case in LIBRARYS"
    ours, wanted = Net(), Net()
    settings = Optimisation(
        optimizer=name, lr=0.01, momentum=0.8, nesterov=False, weight_decay=0.1
    )
    one = optimizers.build(ours, settings)
    parted = [
        [p for p in wanted.parameters() if (p.ndim > 1) is d] for d in (True, False)
    ]
    groups = [
        {"params": p, "weight_decay": d}
        for p, d in zip(parted, (0.1, 0.0), strict=True)
    ]
    other = LIBRARYS[name](groups, lr=0.01)
    for step in range(3):
        torch.manual_seed(step)
        for a, b in zip(ours.parameters(), wanted.parameters(), strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        one.step()
        other.step()
    assert_alike(ours, wanted)


APEX = """
import torch

class FusedSGD(torch.optim.SGD):
    def __init__(self, params, lr, momentum=0, dampening=0, weight_decay=0, nesterov=False,
                 wd_after_momentum=False, materialize_master_grads=True, set_grad_none=False):
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov)

    def zero_grad(self):
        raise NotImplementedError

class FusedLAMB(torch.optim.SGD):
    def __init__(self, params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01,
                 amsgrad=False, adam_w_mode=True, grad_averaging=True, set_grad_none=False, max_grad_norm=1.0,
                 use_nvlamb=False):
        super().__init__(params, lr, weight_decay=weight_decay)
        self.max_grad_norm = max_grad_norm

    zero_grad = FusedSGD.zero_grad
"""
"""What apex.optimizers takes at its commit 6424da3b; its zero_grad takes no set_to_none."""


@pytest.fixture
def apex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package of that name, without kernels."""
    folder = tmp_path / "apex/optimizers"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").write_text(APEX)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("apex", "apex.optimizers"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("apex")
@pytest.mark.parametrize("clip", [0.0, 2.0])
def test_apex_is_called_as_it_wants(clip: float) -> None:
    """FusedSGD moves a weight as by hand; FusedLAMB clips gradients by itself, unless --clip-grad-norm does."""
    weight = torch.nn.Parameter(torch.tensor([[2.0]]))
    asked = Optimisation(
        optimizer="apex-sgd", lr=0.1, momentum=0.5, nesterov=False, clip_grad_norm=clip
    )
    make = optimizers.OPTIMIZERS["apex-sgd"].make
    groups = [{"params": [weight], "weight_decay": 0.25}]
    sgd = make(groups, asked, True)
    for _ in range(2):
        weight.grad = torch.tensor([[1.0]])
        sgd.step()
    # 1 + 0.25 * 2 = 1.5 -> 1.85; 0.5 * 1.5 + 1 + 0.25 * 1.85 = 2.2125
    assert weight.item() == pytest.approx(1.85 - 0.1 * 2.2125)
    sgd.zero_grad(set_to_none=True)
    assert weight.grad is None
    lamb = make(groups, asked.model_copy(update={"optimizer": "apex-lamb"}), True)
    assert vars(lamb)["max_grad_norm"] == (0.0 if clip else 1.0)


@pytest.mark.parametrize("clip", ["value", "agc"])
def test_gradients_are_clipped(clip: str) -> None:
    """With SGD without momentum the step is the gradient; of AGC the last layer keeps its own."""
    free: dict[str, Any] = {
        "momentum": 0.0,
        "weight_decay": 0.0,
        "norm_weight_decay": 0.0,
    }
    before = dict(Net().named_parameters())
    moved = []
    clipped: dict[str, Any] = {f"clip_grad_{clip}": 1e-3}
    for more in ({}, clipped):
        net = Net()
        run(step_of(net, **free, **more), range(1), lr=1.0)
        moved.append({n: (before[n] - p).detach() for n, p in net.named_parameters()})
    for name, whole in moved[0].items():
        if clip == "value":
            expected = whole.clamp(-1e-3, 1e-3)
        elif name.startswith("head"):
            expected = whole
        else:
            weights = before[name].detach()
            axes = tuple(range(1, whole.ndim)) or (0,)
            units, norms = (
                torch.linalg.vector_norm(x, dim=axes, keepdim=True)
                for x in (weights, whole)
            )
            expected = whole * (units.clamp(min=1e-3) * 1e-3 / norms).clamp(max=1)
        torch.testing.assert_close(moved[1][name], expected, rtol=1e-3, atol=1e-7)


def test_what_muon_moves() -> None:
    module, _ = registry.build("mobilenet_v3_small", classes=5, shape=(2, 3, 32, 32))
    optimizer = optimizers.build(module, Optimisation(optimizer="muon"))
    moved = {
        id(p) for g in optimizer.param_groups if g["use_muon"] for p in g["params"]
    }
    for name, layer in module.named_modules():
        for parameter in layer.parameters(recurse=False):
            depthwise = isinstance(layer, nn.Conv2d) and layer.groups > 1
            matrix = parameter.ndim > 1 and not depthwise
            assert (id(parameter) in moved) == matrix, name


@pytest.mark.parametrize(
    ("smoothing", "threshold"), [(0.1, None), (0.1, 0.2), (0.0, 0.0)]
)
def test_binary_cross_entropy_is_timms(
    smoothing: float, threshold: float | None
) -> None:
    from timm.loss import BinaryCrossEntropy

    logits = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 5, 2, 2])
    theirs = BinaryCrossEntropy(
        smoothing=smoothing, target_threshold=threshold, reduction="none"
    )
    expected = theirs(logits, labels).mean(dim=1) * torch.tensor([1, 1, 0, 1])
    valid = torch.tensor([True, True, False, True])
    found = binary_cross_entropy(
        logits, nn.functional.one_hot(labels, 6), valid, smoothing, threshold
    )
    torch.testing.assert_close(found, expected)
