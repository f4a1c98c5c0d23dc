"""The table of optimisers, and fp16 weights with fp32 masters."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from contracts import UserError
from engine import optimizers, precision
from engine.fp32_weights import Masters
from settings.optimisation import Optimisation


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 6), nn.LayerNorm(6), nn.BatchNorm1d(6), nn.Linear(6, 2)
    )


def test_masters_are_what_the_optimiser_moves() -> None:
    """A gradient of 2^-20 with a rate of 1 is below what fp16 weights can add; in the masters it adds up."""
    module = net()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    masters = Masters(module)
    assert [str(p.dtype).removeprefix("torch.float") for p in module.parameters()] == [
        *("16", "16"),
        *("32",) * 4,
        *("16", "16"),
    ]
    settings = Optimisation(lr=1.0, momentum=0.0, weight_decay=0.0)
    optimizer = optimizers.build(module, settings, masters.of)
    for _ in range(64):
        for half in masters.of:
            half.grad = torch.full_like(half, 2.0**-20)
        masters.take_gradients()
        optimizer.step()
        optimizer.zero_grad()
        masters.give_weights()
        masters.forget_gradients(set_to_none=True)
    state = masters.in_state(module.state_dict())
    for name, master in masters.names.items():
        torch.testing.assert_close(state[name], before[name] - 64 * 2.0**-20)
        assert torch.equal(dict(module.named_parameters())[name], master.half())
    assert state["1.weight"].dtype == torch.float32


def test_a_forward_pass_of_fp16_weights() -> None:
    module = net()
    with torch.no_grad():
        expected = module(torch.ones(3, 4))
        Masters(module)
        with precision.autocast("fp16-pure", torch.device("cpu")):
            found = module(torch.ones(3, 4).half())
    torch.testing.assert_close(found.float(), expected, atol=5e-3, rtol=0)


def test_no_gpu_no_fp16_weights() -> None:
    with pytest.raises(UserError, match="--precision fp16-pure is for a GPU"):
        precision.choose("fp16-pure", torch.device("cpu"))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "it is not installed"),
        ({"__init__.py": "raise SystemExit"}, "is another project of that name"),
        (
            {"__init__.py": "", "optimizers/__init__.py": "import not_here"},
            "No module named 'not_here'",
        ),
    ],
)
def test_apex_is_nvidias(
    files: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyPI's apex is another project, which has no apex.optimizers and is not run."""
    for name, text in files.items():
        file = tmp_path / "apex" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "apex"]:
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    with pytest.raises(UserError, match=f"apex-sgd is of NVIDIA's apex: .*{said}"):
        optimizers._apex_sgd([], Optimisation(), True)


def test_a_rate_on_a_device_is_written_where_it_changes() -> None:
    optimizer = optimizers.build(net(), Optimisation(lr=0.1))
    groups = optimizer.param_groups
    shared = torch.tensor(0.1)  # as groups on a GPU have it
    for group in groups:
        group["lr"] = shared
    rates = optimizers.LearningRates(optimizer)
    for rate, writes in ((0.1, 1), (0.1, 1), (0.2, 2), (0.2, 2), (0.1, 3)):
        rates.set(rate)
        assert shared._version == writes and float(shared) == pytest.approx(rate)
    before = rates.read()
    rates.set(0.5)
    rates.write(before)
    assert float(shared) == pytest.approx(0.1)
    groups[1]["lr"] = torch.tensor(7.0)  # of a checkpoint
    rates.set(0.1)
    assert rates.read() == pytest.approx([0.1] * len(groups))
