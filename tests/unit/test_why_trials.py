"""Changes that `saturate why` tries in a step: held while they are tried, and taken back."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
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


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have autocast's regions told to hooks.py, on a machine that torch takes for one with a GPU."""
    common = torch.cuda.amp.common
    monkeypatch.setattr(common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    for name, hook in (
        ("__enter__", hooks._computes_in),
        ("__exit__", hooks._computed_in),
    ):
        # `around` sets it for good: monkeypatch knows what was there
        monkeypatch.setattr(torch.autocast, name, getattr(torch.autocast, name))
        hooks.around(torch.autocast, name, hook)


OFF = {
    "torch.autocast": lambda: torch.autocast("cuda", enabled=False),
    "torch.cuda.amp.autocast": lambda: torch.cuda.amp.autocast(enabled=False),
}
IS_ON = True, torch.bfloat16, False
"""Whether autocast is on, its type, and whether it keeps casted weights."""


def state() -> tuple[bool, torch.dtype, bool]:
    kind = torch.get_autocast_dtype("cuda")
    return torch.is_autocast_enabled("cuda"), kind, torch.is_autocast_cache_enabled()


@pytest.mark.filterwarnings("ignore:`torch.cuda.amp:FutureWarning")
@pytest.mark.parametrize("switch", OFF.values(), ids=OFF)
@pytest.mark.usefixtures("hooked")
def test_an_autocast_that_is_switched_off_does_not_hide_the_one_that_is_tried(
    switch: Callable[[], Any],
) -> None:
    """Many loops have `autocast("cuda", enabled=amp)` around each step, and some keep it from step to step."""
    before, once = state(), switch()
    with trials.autocast(torch.bfloat16, []):
        for _ in range(2):
            with once:
                assert state() == IS_ON
            # behind it, what was tried goes on
            assert state() == IS_ON
    with once:
        assert not torch.is_autocast_enabled("cuda")
    assert state() == before


@pytest.mark.usefixtures("hooked")
def test_what_computes_in_fp32_in_any_autocast_does_so_where_one_is_tried() -> None:
    """A region within the switched-off one, and what torch itself switches off for an operator of fp32."""
    seen = []

    class Operator(torch.autograd.Function):
        @staticmethod
        @partial(torch.amp.custom_fwd, device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            seen.append(torch.is_autocast_enabled("cuda"))
            return x

    with trials.autocast(torch.bfloat16, []):
        Operator.apply(torch.ones(1))
        with OFF["torch.autocast"](), OFF["torch.autocast"]():
            seen.append(torch.is_autocast_enabled("cuda"))
    assert seen == [False, False]


def test_tf32_is_taken_back() -> None:
    before = torch.get_float32_matmul_precision()
    with trials.tf32([]):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


def test_a_gain_is_the_ratio_of_times_of_as_many_steps() -> None:
    """Steps of 3 s take 1 s, 1.5 s and 2 s with the change; those behind each switch take 100 s, and do not count."""
    clock = [0.0]
    blocks = iter([1.0, 1.5, 2.0])
    step_s = [3.0]

    @contextmanager
    def made(_: Any) -> Iterator[None]:
        step_s[0] = next(blocks)
        yield
        step_s[0] = 3.0

    trial = trials.Trial(bool, made)
    gains = []

    def given() -> Iterator[Any]:
        gains.extend((yield from trials.gains(batches, trial, [], 5, lambda: clock[0])))

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
        ("H200", {}, ["channels_last", *HALVES]),
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
