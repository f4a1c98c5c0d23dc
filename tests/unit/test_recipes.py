"""What recipes of others need of the step: optimisers, averages, clipping, losses, layers' rates."""

from __future__ import annotations

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

from contracts import Batch
from engine import optimizers, schedules
from engine.checkpoint import Checkpoints, Progress, Resume, write
from engine.distributed import ProcessWorld
from engine.ema import Ema
from engine.fp32_weights import Masters
from engine.step import Step
from models import Unusable, recompute
from models import classification as registry
from models import timm as timm_registry
from settings.optimisation import Optimisation
from tasks.classification import Classification, binary_cross_entropy
from tests.unit.steps import composed
from tests.unit.test_step import CPU, Net, assert_alike, batch_of, step_of

OF_ALL = sorted(name for name in optimizers.OPTIMIZERS if not name.startswith("apex"))
CASES: dict[str, dict[str, Any]] = {
    **{name: {"optimizer": name, "lr": 0.01} for name in OF_ALL},
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
    of_parts, of_whole = (
        step_of(parts, accumulate=2, **settings),
        step_of(whole, **settings),
    )
    start = [p.detach().clone() for p in parts.parameters()]
    run(of_parts, range(6), size=2)
    for at in (0, 2, 4):
        of_whole(
            iter([joined(batch_of(at), batch_of(at + 1))]),
            lr=0.01,
            epoch=0,
            position=at,
        )
    assert_alike(parts, whole)
    assert all(
        not torch.equal(a, b) for a, b in zip(start, parts.parameters(), strict=True)
    )
    if of_parts.ema is not None and of_whole.ema is not None:
        for a, b in zip(of_parts.ema.tensors(), of_whole.ema.tensors(), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_goes_on_bit_for_bit(case: str, tmp_path: Path) -> None:
    settings = CASES[case]
    whole, first, rest = (step_of(Net(), **settings) for _ in range(3))
    run(whole, range(6))
    run(first, range(3))
    config = {"optimizer": settings.get("optimizer", "sgd")}
    about = {
        "arch": "net",
        "classes": ["a"],
        "manifest": "",
        "config": config,
        "used": {},
    }
    kept = Checkpoints(
        folder=tmp_path,
        world=ProcessWorld(CPU),
        module=first.module,
        step=first,
        about=about,
    )
    write(tmp_path / "last.pt", kept.content(Progress(step=3)))
    run(rest, range(9, 10))  # what was there is written over
    resume = Resume(path=tmp_path / "last.pt")
    resume.fits(
        task="classification", arch="net", classes=("a",), manifest="", config=config
    )
    resume.into(rest.module, rest, optimizer=config["optimizer"])
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
    run(step, range(2, 3))
    monkeypatch.undo()
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


def trained_beside(update: Any, ours: Ema, net: Centred) -> None:
    torch.manual_seed(0)
    for step in range(1, 6):
        for parameter in net.parameters():
            parameter.data += torch.randn_like(parameter)
        net(torch.randn(8, 3))
        update(step)
        ours.update(None)


def test_the_average_is_torchs() -> None:
    """The average is torch's from the first step on, buffers too; AveragedModel loads it by its names."""
    net = Centred()
    net.again = net.layer.weight
    theirs = AveragedModel(
        net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True
    )
    ours = Ema(net, {}, decay=0.9, warm_up=False)
    trained_beside(lambda _: theirs.update_parameters(net), ours, net)
    state = ours.state_dict()
    assert state.keys() == theirs.state_dict().keys()
    for name, average in theirs.state_dict().items():
        if (
            average.is_floating_point() and name != "module.mask"
        ):  # the mean of -inf is nan there
            torch.testing.assert_close(state[name], average)
    assert not torch.equal(
        state["module.norm.running_mean"], net.state_dict()["norm.running_mean"]
    )
    theirs.load_state_dict(state)
    again = Ema(net, {}, decay=0.9, warm_up=False)
    again.load_state_dict(state)
    for one, other in zip(ours.tensors(), again.tensors(), strict=True):
        assert torch.equal(one, other)
    own = [tensor.data_ptr() for tensor in (*net.parameters(), *net.buffers())]
    with ours.in_network():
        torch.testing.assert_close(
            net.layer.weight.detach(), state["module.layer.weight"]
        )
        torch.testing.assert_close(
            net.norm.running_var, state["module.norm.running_var"]
        )
        assert torch.equal(net.centre, state["module.centre"])
    assert own == [tensor.data_ptr() for tensor in (*net.parameters(), *net.buffers())]


@pytest.mark.parametrize("warm_up", [False, True])
def test_the_average_is_timms(warm_up: bool) -> None:
    from timm.utils import ModelEmaV3

    net = Centred()
    theirs = ModelEmaV3(net, decay=0.6, use_warmup=warm_up)
    ours = Ema(net, {}, decay=0.6, warm_up=warm_up)
    trained_beside(lambda step: theirs.update(net, step=step), ours, net)
    state = ours.state_dict()
    assert torch.equal(state["module.mask"], net.mask)
    for name, average in theirs.module.state_dict().items():
        if name != "mask":
            torch.testing.assert_close(state[f"module.{name}"], average)


def test_the_average_is_of_the_masters() -> None:
    """A step of 2^-20 is below what fp16 weights can add; fp32 masters have it, and so has their average."""
    module = nn.Linear(3, 4)
    masters = Masters(module)
    average = Ema(module, masters.of, decay=0.5, warm_up=False)
    average.update(None)  # the first one copies
    before = {name: master.detach().clone() for name, master in masters.names.items()}
    for master in masters.names.values():
        master.data += 2.0**-20
    average.update(None)
    for name, value in before.items():
        found = average.state_dict()[f"module.{name}"]
        torch.testing.assert_close(
            found - value, torch.full_like(value, 2.0**-21), rtol=0.1, atol=0
        )


@pytest.mark.parametrize("decay", [0.5, 1.0])
def test_rates_of_layers_and_what_does_not_decay(decay: float) -> None:
    from timm.optim import param_groups_layer_decay

    module, _ = timm_registry.build(
        "timm/vit_tiny_patch16_224", classes=5, shape=(2, 3, 32, 32)
    )
    settings = Optimisation(
        optimizer="adamw", layer_decay=decay, no_decay=("*.qkv.weight", "pos_embed")
    )
    optimizer = optimizers.build(module, settings)
    optimizers.LearningRates(optimizer).set(2.0)
    names = {id(p): name for name, p in module.named_parameters()}
    found = {names[id(p)]: g for g in optimizer.param_groups for p in g["params"]}
    assert len(found) == len(names)
    for group in param_groups_layer_decay(module, layer_decay=decay):
        for parameter in group["params"]:
            assert found[names[id(parameter)]]["lr"] == pytest.approx(
                2 * group["lr_scale"]
            )
    for name, group in found.items():
        wanted = (
            1e-4
            if name.endswith(".weight") and "norm" not in name and "qkv" not in name
            else 0.0
        )
        assert group["weight_decay"] == wanted, name


def decayed(module: nn.Module, **settings: Any) -> set[str]:
    optimizer = optimizers.build(module, Optimisation(weight_decay=0.1, **settings))
    names = {id(p): name for name, p in module.named_parameters()}
    return {
        names[id(p)]
        for g in optimizer.param_groups
        if g["weight_decay"]
        for p in g["params"]
    }


@pytest.mark.parametrize(
    "arch",
    [
        *("tf_efficientnet_cc_b0_4e", "vit_tiny_patch16_224", "convnext_atto"),
        "swin_tiny_patch4_window7_224",
        *(
            "beit_base_patch16_224",
            "cait_xxs24_224",
            "pvt_v2_b0",
            "maxvit_rmlp_pico_rw_256",
            "levit_128s",
        ),
        *(
            "davit_tiny",
            "eva02_tiny_patch14_224",
            "gmlp_s16_224",
            "mobilevitv2_050",
            "ghostnetv3_100",
        ),
    ],
)
def test_what_decays_is_timms(arch: str) -> None:
    with torch.device("meta"):
        module = timm.create_model(arch)
    named = module.no_weight_decay() if hasattr(module, "no_weight_decay") else ()
    groups = timm.optim.param_groups_weight_decay(
        module, 0.1, no_weight_decay_list=named
    )
    theirs = {
        id(p) for group in groups if group["weight_decay"] for p in group["params"]
    }
    assert decayed(module) == {
        name for name, p in module.named_parameters() if id(p) in theirs
    }


@pytest.mark.parametrize(
    ("arch", "layer_of", "last"),
    [
        (
            "resnet18",
            {"conv1.weight": 1, "layer1.1.conv1.weight": 4, "fc.bias": 11},
            11,
        ),
        (
            "vit_b_32",
            {
                "class_token": 0,
                "encoder.layers.encoder_layer_3.ln_1.bias": 5,
                "heads.head.bias": 15,
            },
            15,
        ),
    ],
)
def test_other_networks_are_layered_by_their_blocks(
    arch: str, layer_of: dict[str, int], last: int
) -> None:
    module = torchvision.models.get_model(arch)
    optimizer = optimizers.build(module, Optimisation(layer_decay=0.5))
    names = {id(p): name for name, p in module.named_parameters()}
    found = {
        names[id(p)]: g["lr_scale"] for g in optimizer.param_groups for p in g["params"]
    }
    assert {name: found[name] for name in layer_of} == {
        name: 0.5 ** (last - layer) for name, layer in layer_of.items()
    }


@pytest.mark.parametrize(
    ("name", "clip", "theirs"),
    [
        ("lamb", 0.0, partial(timm.optim.Lamb, max_grad_norm=1.0)),
        (
            "lamb",
            5.0,
            partial(timm.optim.Lamb, max_grad_norm=None),
        ),  # the step clips in its place
        ("lars", 0.0, partial(timm.optim.Lars, momentum=0.8)),
        ("lion", 0.0, timm.optim.Lion),
        ("muon", 0.0, partial(timm.optim.Muon, momentum=0.8)),
    ],
)
def test_optimisers_are_timms(name: Any, clip: float, theirs: Any) -> None:
    """Steps with the same gradients give the weights of the library's own optimiser."""
    ours, wanted = Net(), Net()
    settings = Optimisation(
        optimizer=name, lr=0.01, momentum=0.8, nesterov=False, weight_decay=0.1
    )
    one = optimizers.build(ours, settings.model_copy(update={"clip_grad_norm": clip}))
    parted = [
        [p for p in wanted.parameters() if (p.ndim > 1) is decayed]
        for decayed in (True, False)
    ]
    groups = zip(parted, (0.1, 0.0), strict=True)
    other = theirs(
        [{"params": params, "weight_decay": decay} for params, decay in groups], lr=0.01
    )
    for step in range(3):
        torch.manual_seed(step)
        for a, b in zip(ours.parameters(), wanted.parameters(), strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        one.step()
        other.step()
    assert_alike(ours, wanted)


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


@pytest.mark.parametrize(
    ("clip", "largest"),
    [({"clip_grad_value": 0.001}, 0.001), ({"clip_grad_agc": 1e-3}, None)],
)
def test_gradients_are_clipped(clip: dict[str, Any], largest: float | None) -> None:
    """With SGD without momentum the step is the gradient; of AGC the last layer keeps its own."""
    net, plain = Net(), Net()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    free: dict[str, Any] = {
        "momentum": 0.0,
        "weight_decay": 0.0,
        "norm_weight_decay": 0.0,
    }
    run(step_of(net, **free, **clip), range(1), lr=1.0)
    run(step_of(plain, **free), range(1), lr=1.0)
    for name, p in net.named_parameters():
        taken = before[name] - p.detach()
        whole = before[name] - dict(plain.named_parameters())[name].detach()
        if largest is not None:
            torch.testing.assert_close(taken, whole.clamp(-largest, largest))
        elif name.startswith("head"):
            torch.testing.assert_close(taken, whole)
        else:
            units = (
                before[name].flatten(1).norm(dim=1)
                if p.ndim > 1
                else before[name].norm()
            )
            moved = taken.flatten(1).norm(dim=1) if p.ndim > 1 else taken.norm()
            torch.testing.assert_close(
                moved, units.clamp(min=1e-3) * 1e-3, rtol=1e-3, atol=1e-7
            )


class Blocks(nn.Module):
    """Two blocks with batch norm and dropout in a list."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        parts = [
            nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.BatchNorm1d(6)})
            for _ in range(2)
        ]
        for part in parts:
            part.forward = lambda x, part=part: nn.functional.dropout(
                part["b"](part["a"](x)), 0.5
            )
        self.blocks = nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_blocks_that_compute_again_train_alike() -> None:
    """Gradients, dropout and running statistics are those of before, bit for bit."""
    plain, again = Blocks(), Blocks()
    assert recompute.recompute_blocks(again, "blocks") == 2
    calls = list[int]()
    again.get_submodule("blocks.0.a").register_forward_hook(lambda *_: calls.append(1))
    for net in (plain, again):
        torch.manual_seed(3)
        net(torch.randn(5, 6)).square().sum().backward()
    for a, b in zip(plain.parameters(), again.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None and torch.equal(a.grad, b.grad)
    assert all(
        torch.equal(a, b) for a, b in zip(plain.buffers(), again.buffers(), strict=True)
    )
    assert len(calls) == 2, "once forward, once in the backward pass"
    assert plain.state_dict().keys() == again.state_dict().keys()


@pytest.mark.parametrize(
    ("arch", "blocks"),
    [
        ("resnet18", 8),
        ("vit_b_32", 12),
        ("convnext_tiny", 18),
        ("mobilenet_v3_small", 11),
        ("alexnet", 0),
    ],
)
def test_where_blocks_are(arch: str, blocks: int) -> None:
    with torch.device("meta"):
        module, _ = registry.build(arch, classes=5, shape=(2, 3, 224, 224))
    if blocks:
        assert recompute.recompute_blocks(module, arch) == blocks
    else:
        with pytest.raises(
            Unusable, match="--grad-checkpointing is not for --arch alexnet"
        ):
            recompute.recompute_blocks(module, arch)


def test_stochastic_depth() -> None:
    with torch.device("meta"):
        module, _ = registry.build(
            "swin_t", classes=5, shape=(2, 3, 224, 224), stochastic_depth=0.4
        )
        for arch in ("timm/swin_tiny_patch4_window7_224",):
            theirs, _ = timm_registry.build(
                arch, classes=5, shape=(2, 3, 224, 224), stochastic_depth=0.4
            )
    depths: list[Any] = [
        one.p for one in module.modules() if type(one).__name__ == "StochasticDepth"
    ]
    assert (
        depths[0] == 0
        and max(depths) == pytest.approx(0.4)
        and depths == sorted(depths)
    )
    of_timm: list[Any] = [
        one.drop_prob for one in theirs.modules() if type(one).__name__ == "DropPath"
    ]
    assert max(of_timm) == pytest.approx(0.4)
    with pytest.raises(
        Unusable, match=r"--stochastic-depth 0\.4 is not for --arch resnet18"
    ):
        registry.build(
            "resnet18", classes=5, shape=(2, 3, 32, 32), stochastic_depth=0.4
        )
    with pytest.raises(Unusable, match="drop_path_rate"):
        timm_registry.build(
            "timm/vgg11", classes=5, shape=(2, 3, 32, 32), stochastic_depth=0.4
        )


def test_the_rate_of_a_step_and_warm_up_by_steps() -> None:
    settings = Optimisation(
        lr=0.1, lr_per=256, warmup_steps=20, warmup_start=0.5, epochs=10
    )
    found, told = schedules.settled(settings, 1024, 512)
    assert (
        told[0]
        == "the learning rate is --lr 0.1 x 512 samples a step / --lr-per 256 = 0.2"
    )
    assert schedules.learning_rate(0.0, found) == pytest.approx(0.1)
    assert schedules.learning_rate(5.0, found) == pytest.approx(0.15)
    assert schedules.learning_rate(10.0, found) == pytest.approx(0.2)
    assert schedules.settled(Optimisation(), 1000, 512) == (Optimisation(), [])


@pytest.mark.parametrize(
    ("arch", "no_decay", "but"),
    [
        *[
            (arch, (), "")
            for arch in ("resnet50", "convnext_tiny", "efficientnet_v2_s")
        ],
        ("swin_t", (), ""),
        (
            "swin_t",
            ("*.relative_position_bias_table",),
            ".relative_position_bias_table",
        ),
        (
            "vit_b_32",
            ("class_token", "*.pos_embedding"),
            "class_token encoder.pos_embedding",
        ),
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
