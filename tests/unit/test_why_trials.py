"""Changes that `saturate why` tries in a step: held while they are tried, and taken back."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from saturate.why import hooks, trials

HALVES = [
    "torch.autocast('cuda', torch.bfloat16)",
    "torch.autocast('cuda', torch.float16) with a GradScaler",
]


def test_channels_last_holds_for_weights_and_momentum_and_is_taken_back() -> None:
    """Weights [8, 3, 2, 2] in channels_last have the strides (12, 1, 6, 3)."""
    convolution = torch.nn.Conv2d(3, 8, 2)
    weights = convolution.weight
    optimizer = torch.optim.SGD(convolution.parameters(), 0.1, momentum=0.9)
    convolution(torch.ones(2, 3, 4, 4)).sum().backward()
    optimizer.step()
    momentum = optimizer.state[weights]["momentum_buffer"]
    before = [(one.data_ptr(), one.tolist()) for one in (weights, momentum)]
    with trials.channels_last([optimizer]):
        assert weights.stride() == momentum.stride() == (12, 1, 6, 3)
        weights.data.mul_(2)
    assert [(one.data_ptr(), one.tolist()) for one in (weights, momentum)] == before
    assert weights.stride() == momentum.stride() == (12, 4, 2, 1)


def test_weights_of_two_optimisers_are_taken_back() -> None:
    """An optimiser that wraps another has its weights, too: SAM's does."""
    weights = torch.nn.Conv2d(3, 8, 2).weight
    optimizers = [torch.optim.SGD([weights], 0.1) for _ in range(2)]
    before = weights.data_ptr()
    with trials.channels_last(optimizers):
        assert weights.stride() == (12, 1, 6, 3)
    assert weights.data_ptr() == before and weights.stride() == (12, 4, 2, 1)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_autocast_is_of_the_type_that_its_name_has(
    half: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch leaves it off where there is no GPU
    monkeypatch.setattr(
        torch.cuda.amp.common, "amp_definitely_not_available", lambda: False
    )
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    (name,) = (one for one in HALVES if str(half) in one)
    with trials.TRIALS[name].made([]):
        assert torch.is_autocast_enabled("cuda")
        assert torch.get_autocast_dtype("cuda") == half
    assert not torch.is_autocast_enabled("cuda")


def test_an_autocast_that_is_switched_off_does_not_hide_the_one_that_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many loops have `autocast("cuda", enabled=amp)` around each step."""
    monkeypatch.setattr(
        torch.cuda.amp.common, "amp_definitely_not_available", lambda: False
    )
    whole = torch.autocast.__enter__
    monkeypatch.setattr(
        torch.autocast, "__enter__", lambda self: hooks._computes_in(whole, self)
    )

    def computed_in() -> tuple[bool, torch.dtype]:
        with torch.autocast("cuda", enabled=False):
            return torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")

    off = computed_in()
    assert not off[0]
    # float16 is what a switch that is off has by itself: only its state tells
    with trials.autocast(torch.float16, []):
        assert computed_in() == (True, torch.float16)
        # behind it, what was tried goes on
        assert torch.is_autocast_enabled("cuda")
    assert computed_in() == off and not torch.is_autocast_enabled("cuda")


def test_tf32_is_taken_back() -> None:
    before = torch.get_float32_matmul_precision()
    with trials.tf32([]):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


def test_a_gain_is_the_ratio_of_times_of_as_many_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps of 3 s take 1 s, 1.5 s and 2 s with the change; those behind each switch take 100 s, and do not count."""
    clock = [0.0]
    blocks = iter([1.0, 1.5, 2.0])
    step_s = [3.0]

    @contextmanager
    def made(_: Any) -> Iterator[None]:
        step_s[0] = next(blocks)
        yield
        step_s[0] = 3.0

    monkeypatch.setattr(trials, "synchronised", lambda: clock[0])
    trial = trials.Trial(bool, made)
    gains = []

    def given() -> Iterator[Any]:
        gains.extend((yield from trials.gains(batches, trial, [], 5)))

    batches: Any = itertools.repeat("batch")
    number = 0
    for batch in given():
        assert batch == "batch"
        clock[0] += 100.0 if number % 9 < 4 else step_s[0]
        number += 1
    assert number == 3 * 2 * (4 + 5)
    assert gains == [1.5, 2.0, 3.0]


@pytest.mark.parametrize(
    ("gpu", "settings", "names"),
    [
        (None, {}, []),
        ("H200", {}, [*HALVES, "channels_last"]),
        ("H200", {"autocast": "torch.float16"}, ["channels_last"]),
        ("H200", {"dtypes": ["torch.bfloat16"]}, ["channels_last"]),
        ("H200", {"channels_last": True}, HALVES),
        ("H200", {"compiled": True}, HALVES),
        ("H200", {"has_convolutions": False}, HALVES),
    ],
)
def test_what_is_tried(
    gpu: Any,
    settings: dict[str, Any],
    names: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    plain = {"dtypes": ["torch.float32"], "autocast": "", "channels_last": False}
    plain |= {"has_convolutions": True, "compiled": False}
    facts = {"hardware": {"gpu": gpu}, "settings": plain | settings}
    found = [one for one in trials.that_apply(facts) if "matmul" not in one]
    assert found == names
