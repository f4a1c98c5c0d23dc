"""--weights reads the files that people own, in every layout."""

from __future__ import annotations

import argparse
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from saturate.models import Loaded, Unusable
from saturate.models.classification import build
from saturate.system import torch_files

ARCH = "shufflenet_v2_x0_5"
State = Mapping[str, Any]


def network(
    classes: int = 10, *, weights: Path | str | None = None
) -> tuple[nn.Module, Loaded]:
    return build(
        ARCH,
        classes=classes,
        shape=(2, 3, 64, 64),
        weights=None if weights is None else str(weights),
    )


@cache
def trained() -> nn.Module:
    torch.manual_seed(1)
    return network()[0]


@cache
def averaged() -> AveragedModel:
    """An average of the trained network and a second one, as torch.optim.swa_utils keeps it."""
    torch.manual_seed(2)
    average = AveragedModel(trained(), use_buffers=True)
    average.update_parameters(trained())
    average.update_parameters(network()[0])
    return average


def after(prefix: str, state: State) -> dict[str, Any]:
    return {prefix + name: value for name, value in state.items()}


def lightning(state: State) -> dict[str, Any]:
    """What Trainer.save_checkpoint writes of a LightningModule that has its network as `self.model`."""
    return {
        "state_dict": state,
        "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.5)}},
        "hyper_parameters": {"arch": ARCH, "root": Path("data")},
    }


def of_references(model: State, **more: Any) -> dict[str, Any]:
    """What torchvision's references/classification/train.py writes; `args` is an argparse.Namespace."""
    args = argparse.Namespace(model=ARCH, device="cuda")
    return {"model": model, "optimizer": {"state": {}}, "args": args, **more}


def of_timm(state: State, **more: Any) -> dict[str, Any]:
    """What timm's CheckpointSaver writes; its metric is a number of NumPy."""
    return {"arch": ARCH, "state_dict": state, "metric": np.float64(0.5), **more}


LAYOUTS: dict[str, Callable[[State], Any]] = {
    "plain": lambda state: OrderedDict(state),
    "nested": lambda state: {"state": {"model": after("model.", state), "seed": 1}},
    "compiled DDP in Lightning": lambda state: lightning(
        after("model._orig_mod.module.", state)
    ),
    "references": of_references,
    "timm": of_timm,
    "ours": lambda state: {"format": 2, "model": state, "arch": ARCH, "classes": []},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout(layout: str, tmp_path: Path) -> None:
    content = LAYOUTS[layout](trained().state_dict())
    torch.save(content, tmp_path / "a.pth")
    module, loaded = network(weights=tmp_path / "a.pth")
    assert loaded == Loaded()
    assert_equal(module.state_dict(), trained().state_dict())


def assert_equal(one: State, other: State) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


AVERAGES: dict[str, tuple[Callable[[State, State], Any], str]] = {
    "timm": (
        lambda state, average: of_timm(state, state_dict_ema=average),
        "'state_dict_ema', not 'state_dict'",
    ),
    "references": (
        lambda state, average: of_references(
            state,
            model_ema={**after("module.", average), "n_averaged": torch.tensor(2)},
        ),
        "'model_ema.module', not 'model'",
    ),
    "AveragedModel": (lambda state, average: averaged().state_dict(), ""),
}


@pytest.mark.parametrize("layout", AVERAGES)
def test_the_average_is_taken_and_said(layout: str, tmp_path: Path) -> None:
    make, said = AVERAGES[layout]
    average = averaged().module.state_dict()
    assert not torch.equal(average["fc.weight"], trained().state_dict()["fc.weight"])
    torch.save(make(trained().state_dict(), average), tmp_path / "a.pth")
    module, loaded = network(weights=tmp_path / "a.pth")
    assert_equal(module.state_dict(), average)
    assert loaded.anew == [] and len(loaded.notes) == bool(said)
    assert not said or loaded.notes[0].endswith(f"took the weights {said}")


@pytest.mark.parametrize(
    ("best_of", "takes"),
    [("network", "model"), ("average", "ema"), (None, "ema")],  # None: a last.pt
)
def test_ours_is_of_the_weights_that_it_says(
    best_of: str | None, takes: str, tmp_path: Path
) -> None:
    average = after("module.", averaged().module.state_dict())
    states = {"model": trained().state_dict(), "ema": average}
    about = {"format": 2, "arch": ARCH, "classes": ["a"], "manifest": ""}
    of = {"best_of": best_of} if best_of else {}
    torch.save({**states, **about, **of}, tmp_path / "a.pt")
    module, loaded = network(weights=tmp_path / "a.pt")
    wanted = trained() if takes == "model" else averaged().module
    assert_equal(module.state_dict(), wanted.state_dict())
    assert f"took the weights '{takes}" in loaded.notes[0]


def safetensors(path: Path, state: State) -> Path:
    from safetensors.torch import save_file

    save_file({name: value.clone() for name, value in state.items()}, path)
    return path


def test_safetensors(tmp_path: Path) -> None:
    state = trained().state_dict()
    for name in ("a.safetensors", "a.bin"):  # by its bytes, not by its name
        path = safetensors(tmp_path / name, after("model.", state))
        module, _ = network(weights=path)
        assert_equal(module.state_dict(), state)
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(path.read_bytes()[:9000])
    assert "is no safetensors file" in refusal(cut)


class Touch:
    """Unpickling this would run code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return exec, (f"import pathlib; pathlib.Path({str(self.path)!r}).touch()",)


def test_objects_in_a_file_are_never_made(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    torch.save(
        {"model": trained().state_dict(), "args": Touch(mark)}, tmp_path / "a.pth"
    )
    module, _ = network(weights=tmp_path / "a.pth")
    assert_equal(module.state_dict(), trained().state_dict())
    for content in ({"model": Touch(mark)}, trained(), {"epoch": 3}, [1, 2], b"PK cut"):
        if isinstance(content, bytes):
            (tmp_path / "c.pth").write_bytes(content)
            assert "is no checkpoint that can be read" in refusal(tmp_path / "c.pth")
            continue
        torch.save(content, tmp_path / "b.pth")
        assert "holds no tensors by name; save the state" in refusal(tmp_path / "b.pth")
    assert not mark.exists()
    torch.load(tmp_path / "a.pth", weights_only=False)
    assert mark.exists(), "this file would have run code"
    torch.save({"model": {}, "args": argparse.Namespace(lr=1)}, tmp_path / "a.pt")
    with pytest.raises(torch_files.Unreadable, match=r"GLOBAL argparse\.Namespace"):
        torch_files.load(tmp_path / "a.pt")  # a checkpoint of ours has no foreign class


def refusal(path: Path) -> str:
    with pytest.raises(Unusable) as caught:
        network(weights=path)
    said = str(caught.value)
    assert said.startswith(f"--weights {path} ")
    assert "\n" not in said and len(said) < 600
    return said


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda value: value.to(torch.int8), "(1024, 192, 1, 1) int8"),
        (lambda value: value[1:], "(1023, 192, 1, 1)"),
    ],
)
def test_numbers_that_mean_something_else_are_refused(
    make: Callable[[torch.Tensor], torch.Tensor], said: str, tmp_path: Path
) -> None:
    state = dict(trained().state_dict())
    state["conv5.0.weight"] = make(state["conv5.0.weight"])
    torch.save(state, tmp_path / "a.pth")
    assert f"'conv5.0.weight' is {said}" in refusal(tmp_path / "a.pth")
