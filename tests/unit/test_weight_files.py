"""--weights reads the files that people own, in every layout."""

from __future__ import annotations

import argparse
import copy
import json
import struct
import zipfile
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

from models import Loaded, Unusable
from models.classification import build
from system import torch_files

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


def lightning(state: State, **more: Any) -> dict[str, Any]:
    """What Trainer.save_checkpoint writes of a LightningModule that has its network as `self.model`."""
    return {
        "epoch": 3,
        "global_step": 400,
        "pytorch-lightning_version": "2.5.1",
        "state_dict": state,
        "loops": {"fit_loop": {"state_dict": {}}},
        "callbacks": {
            "ModelCheckpoint{'monitor': None}": {"best_model_score": torch.tensor(0.5)}
        },
        "optimizer_states": [{"state": {}, "param_groups": [{"lr": 0.1}]}],
        "lr_schedulers": [],
        "hparams_name": "kwargs",
        "hyper_parameters": {"arch": ARCH, "lr": 0.1, "root": Path("data")},
        **more,
    }


def of_references(model: State, **more: Any) -> dict[str, Any]:
    """What torchvision's references/classification/train.py writes; `args` is an argparse.Namespace."""
    args = argparse.Namespace(model=ARCH, lr=0.1, device="cuda", output_dir="out")
    return {
        "model": model,
        "optimizer": {"state": {}, "param_groups": []},
        "epoch": 4,
        "args": args,
        **more,
    }


def of_timm(state: State, **more: Any) -> dict[str, Any]:
    """What timm's CheckpointSaver writes; its metric is a number of NumPy."""
    args = argparse.Namespace(model=ARCH)
    return {
        "epoch": 2,
        "arch": ARCH,
        "state_dict": state,
        "optimizer": {},
        "version": 2,
        "args": args,
        "metric": np.float64(0.5),
        **more,
    }


def compiled(name: str) -> str:
    """Name of a parameter whose stages were compiled one by one."""
    return name.replace("stage2.", "stage2._orig_mod.")


LAYOUTS: dict[str, Callable[[State], Any]] = {
    "plain": lambda state: OrderedDict(state),
    "state_dict": lambda state: {"state_dict": state, "epoch": 1},
    "model": lambda state: {"model": state, "epoch": 1},
    "model_state_dict": lambda state: {
        "epoch": 1,
        "model_state_dict": state,
        "optimizer_state_dict": {},
        "loss": 0.1,
    },
    "nested": lambda state: {
        "state": {"model": after("model.", state), "rank_zero_seed": 1}
    },
    "DDP": lambda state: after("module.", state),
    "compiled": lambda state: after("_orig_mod.", state),
    "DDP of compiled": lambda state: {"model": after("module._orig_mod.", state)},
    "compiled DDP in Lightning": lambda state: lightning(
        after("model._orig_mod.module.", state)
    ),
    "stages compiled": lambda state: {
        compiled(name): value for name, value in state.items()
    },
    "Lightning": lambda state: lightning(after("model.", state)),
    "Lightning with a loss": lambda state: lightning(
        {"loss.weight": torch.ones(10), **after("net.", state)}
    ),
    "references": of_references,
    "timm": of_timm,
    "timm with other classes of settings": lambda state: of_timm(
        state, args={"when": Path("out"), "n": np.int64(1)}
    ),
    "ours, format 1": lambda state: {
        "format": 1,
        "model": state,
        "arch": ARCH,
        "classes": ["a"],
        "progress": {},
    },
    "ours, format 2": lambda state: {
        "format": 2,
        "model": state,
        "arch": ARCH,
        "classes": ["a"],
        "used": {},
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout(layout: str, tmp_path: Path) -> None:
    content = LAYOUTS[layout](trained().state_dict())
    assert layout != "compiled" or not content.keys() & trained().state_dict().keys()
    torch.save(content, tmp_path / "a.pth")
    module, loaded = network(weights=tmp_path / "a.pth")
    assert loaded.anew == []
    assert_equal(module.state_dict(), trained().state_dict())
    if layout == "Lightning with a loss":
        (note,) = loaded.notes
        assert "took 'net.', left out 1 others, the first is 'loss.weight'" in note
    else:
        assert not loaded.notes


def assert_equal(one: State, other: State) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def under(key: str) -> tuple[Callable[[State, State], Any], str]:
    """Averaged weights beside the trained ones, and what is said of them."""
    return lambda state, average: {
        "model": state,
        key: average,
    }, f"'{key}', not 'model'"


AVERAGES: dict[str, tuple[Callable[[State, State], Any], str | None]] = {
    "timm": (
        lambda state, average: of_timm(state, state_dict_ema=average),
        "'state_dict_ema', not 'state_dict'",
    ),
    "references": (
        lambda state, average: of_references(
            state,
            model_ema={**after("module.", average), "n_averaged": torch.tensor(2)},
        ),
        "'model_ema', not 'model'",
    ),
    "Lightning's callback": (
        lambda state, average: lightning(
            after("model.", average),
            current_model_state=after("model.", state),
            averaging_state={"n_averaged": torch.tensor(2)},
        ),
        "'state_dict', not 'current_model_state'",
    ),
    "Lightning, two networks": (
        lambda state, average: lightning(
            after("model.", state) | after("model_ema.", average)
        ),
        "took 'model_ema.', not 'model.'",
    ),
    "AveragedModel": (lambda state, average: averaged().state_dict(), None),
    "ema of others": (
        lambda state, average: {"model": state, "ema": average},
        "'ema', not 'model'",
    ),
    "ema.shadow": (lambda state, average: {"ema": {"shadow": average}}, "'ema.shadow'"),
    "params": (
        lambda state, average: {"model": state, "model_ema": {"params": average}},
        "'model_ema.params', not 'model'",
    ),
    "swa_state_dict": (
        lambda state, average: {
            "model": state,
            "swa_state_dict": averaged().state_dict(),
        },
        "'swa_state_dict', not 'model'",
    ),
    "raw of DDP": (
        lambda state, average: {"model": after("module.", state), "ema_model": average},
        "'ema_model', not 'model'",
    ),
    **{
        key: under(key)
        for key in ("ema_weights", "ema_params", "averaged", "shadow", "ema_network")
    },
}


@pytest.mark.parametrize("layout", AVERAGES)
def test_the_average_is_taken_and_said(layout: str, tmp_path: Path) -> None:
    make, said = AVERAGES[layout]
    average = averaged().module.state_dict()
    assert not torch.equal(average["fc.weight"], trained().state_dict()["fc.weight"])
    torch.save(make(trained().state_dict(), average), tmp_path / "a.pth")
    module, loaded = network(weights=tmp_path / "a.pth")
    assert_equal(module.state_dict(), average)
    assert loaded.anew == [] and len(loaded.notes) == (said is not None)
    assert said is None or said in loaded.notes[0]


@pytest.mark.parametrize(
    ("best_of", "takes", "said"),
    [
        (
            "network",
            "model",
            "took the weights 'model', whose figure made it the best, not 'ema'",
        ),
        (
            "average",
            "ema",
            "took the averaged weights 'ema', whose figure made it the best, not 'model'",
        ),
        (None, "ema", "took the averaged weights 'ema', not 'model'"),  # a last.pt
    ],
)
def test_ours_is_of_the_weights_that_it_says(
    best_of: str | None, takes: str, said: str, tmp_path: Path
) -> None:
    average = {
        **after("module.", averaged().module.state_dict()),
        "n_averaged": torch.tensor(2),
    }
    states = {"model": trained().state_dict(), "ema": average}
    about = {"format": 2, "arch": ARCH, "classes": ["a"], "manifest": ""}
    of = {"best_of": best_of} if best_of else {}
    torch.save({**states, **about, **of}, tmp_path / "a.pt")
    module, loaded = network(weights=tmp_path / "a.pt")
    wanted = trained() if takes == "model" else averaged().module
    assert_equal(module.state_dict(), wanted.state_dict())
    assert loaded.notes == [f"--weights {tmp_path / 'a.pt'}: {said}"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"best": trained().state_dict()}, "took the weights 'model', not 'best'"),
        (
            {"ema": dict(averaged().module.named_parameters())},
            "took the weights 'model', not 'ema'",
        ),
        ({"average_meters": {"loss": torch.ones(1)}}, None),
    ],
    ids=["a second one", "an average without buffers", "no network"],
)
def test_a_second_state_dict_is_said(
    more: dict[str, Any], said: str | None, tmp_path: Path
) -> None:
    torch.save({"model": trained().state_dict(), **more}, tmp_path / "a.pth")
    module, loaded = network(weights=tmp_path / "a.pth")
    assert_equal(module.state_dict(), trained().state_dict())
    assert len(loaded.notes) == (said is not None)
    assert said is None or said in loaded.notes[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_the_networks(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    state = copy.deepcopy(trained()).to(dtype).state_dict()
    torch.save({"state_dict": state}, tmp_path / "half.pth")
    module, loaded = network(weights=tmp_path / "half.pth")
    assert loaded.anew == []
    for name, value in module.state_dict().items():
        assert value.dtype == trained().state_dict()[name].dtype
        assert torch.equal(value, state[name].to(value.dtype)), name


@pytest.mark.parametrize("other", [torch.int8, "sparse", "meta"])
def test_numbers_that_mean_something_else_are_refused(
    other: Any, tmp_path: Path
) -> None:
    state = dict(trained().state_dict())
    name = "conv5.0.weight"
    value = state[name].to_sparse() if other == "sparse" else state[name].to(other)
    torch.save(state | {name: value}, tmp_path / "a.pth")
    said = {"meta": "meta device", "sparse": f"'{name}' is sparse_coo there"}
    assert said.get(other, f"'{name}' is int8 there") in refusal(tmp_path / "a.pth")


def safetensors(path: Path, state: State) -> Path:
    """Write the format by hand: length of the header, header, numbers."""
    kinds = {torch.float32: "F32", torch.int64: "I64", torch.bfloat16: "BF16"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, value in state.items():
        numbers = (
            value.contiguous().view(torch.uint8).numpy().tobytes()
            if value.ndim
            else value.numpy().tobytes()
        )
        header[name] = {
            "dtype": kinds[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [len(data), len(data) + len(numbers)],
        }
        data += numbers
    words = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(words)) + words + data)
    return path


def test_safetensors(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    state = trained().state_dict()
    for name in ("a.safetensors", "a.bin"):  # by its bytes, not by its name
        module, loaded = network(
            weights=safetensors(tmp_path / name, after("model.", state))
        )
        assert loaded == Loaded()
        assert_equal(module.state_dict(), state)
    halves = {
        name: value.bfloat16() if value.is_floating_point() else value
        for name, value in state.items()
    }
    module, _ = network(weights=safetensors(tmp_path / "half.safetensors", halves))
    assert torch.equal(module.state_dict()["fc.weight"], halves["fc.weight"].float())
    whole = (tmp_path / "a.bin").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    assert "no safetensors file that can be read" in refusal(
        tmp_path / "cut.safetensors"
    )


def test_without_the_package_safetensors_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    path = safetensors(tmp_path / "a.safetensors", {"fc.weight": torch.zeros(2)})
    assert "pip install safetensors" in refusal(path)


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
    torch.save({"model": Touch(mark)}, tmp_path / "b.pth")
    assert (
        "'model' is an object of class builtins.exec; save its state_dict()"
        in refusal(tmp_path / "b.pth")
    )
    torch.save(trained(), tmp_path / "c.pth")
    assert (
        "an object of class torchvision.models.shufflenetv2.ShuffleNetV2; save"
        in refusal(tmp_path / "c.pth")
    )
    assert not mark.exists()
    torch.load(tmp_path / "a.pth", weights_only=False)
    assert mark.exists(), "this file would have run code"


def test_archives_of_old_versions_of_torch(tmp_path: Path) -> None:
    torch.save(
        of_references(trained().state_dict()),
        tmp_path / "a.pth",
        _use_new_zipfile_serialization=False,
    )
    assert_equal(
        network(weights=tmp_path / "a.pth")[0].state_dict(), trained().state_dict()
    )


def test_compressed_archives_are_not_read(tmp_path: Path) -> None:
    """A few kilobytes become gigabytes."""
    torch.save({"model": {"fc.weight": torch.zeros(1 << 20)}}, tmp_path / "a.pth")
    with (
        zipfile.ZipFile(tmp_path / "a.pth") as stored,
        zipfile.ZipFile(tmp_path / "b.pth", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for name in stored.namelist():
            bomb.writestr(name, stored.read(name))
    assert (tmp_path / "b.pth").stat().st_size < 50_000
    assert "a compressed archive, of 4,19" in refusal(tmp_path / "b.pth")
    assert "a device or a pipe" in refusal(Path("/dev/zero"))


def refusal(path: Path) -> str:
    with pytest.raises(Unusable) as caught:
        network(weights=path)
    said = str(caught.value)
    assert (
        said.startswith(f"--weights {path} ") and "\n" not in said and len(said) < 600
    )
    return said


def test_another_networks_names_are_said_beside_ones_own(tmp_path: Path) -> None:
    other = {f"blocks.{i}.weight": torch.zeros(4, i + 1) for i in range(5)}
    torch.save({"arch": "vit_tiny", "state_dict": other}, tmp_path / "a.pth")
    said = refusal(tmp_path / "a.pth")
    own = trained().state_dict()
    parts = (
        f"--arch {ARCH}, and is of 'vit_tiny'",
        "it has no 'conv1.0.weight' and 337 more",
        "an extra 'blocks.0.weight' and 4 more",
        "5 tensors there begin with 'blocks.0.weight' (4, 1), 'blocks.1.weight' (4, 2)",
        f"{len(own)} here with 'conv1.0.weight' (24, 3, 3, 3), ",
    )
    assert [part for part in parts if part not in said] == [], said


def test_for_other_classes_the_head_of_a_wrapped_network_starts_anew(
    tmp_path: Path,
) -> None:
    torch.save(
        of_references(after("module.", trained().state_dict())), tmp_path / "a.pth"
    )
    module, loaded = network(7, weights=tmp_path / "a.pth")
    assert loaded.anew == ["fc.weight", "fc.bias"]
    assert loaded.notes == [
        "--weights are for other classes: fc.weight, fc.bias start anew"
    ]
    assert torch.equal(
        module.state_dict()["conv1.0.weight"], trained().state_dict()["conv1.0.weight"]
    )


def test_a_checkpoint_of_ours_is_read_without_any_foreign_class(tmp_path: Path) -> None:
    torch.save({"model": {}, "args": argparse.Namespace(lr=1)}, tmp_path / "a.pt")
    with pytest.raises(
        torch_files.Unreadable, match=r"an object, GLOBAL argparse\.Namespace"
    ):
        torch_files.load(tmp_path / "a.pt")
