"""An evaluation is framed as its checkpoint's validation was, and flags win."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from saturate.contracts import UserError
from saturate.models import Native
from saturate.settings.config import build
from saturate.system import torch_files
from saturate.tasks import architecture, kind_of
from saturate.tasks._plans import image_policies
from saturate.tasks.initial_state import Start

ASKED = {"image_size": 176, "val_image_size": 224, "val_crop_share": 0.95}
USED = {"image_size": 224, "val_resize": 235}  # what a validation with these has used


@pytest.mark.parametrize(
    ("flags", "size", "resize"),
    [
        ({}, 224, 235),
        ({"image_size": 288}, 288, 303),
        ({"val_image_size": 288}, 288, 303),
        ({"val_resize": 256}, 224, 256),
        ({"val_crop_share": 1.0}, 224, 224),
    ],
)
def test_validation_sizes(flags: dict[str, Any], size: int, resize: int) -> None:
    checkpoint = {
        "config": ASKED,
        "used": USED,
        "arch": "resnet50",
        "classes": ["a", "b"],
    }
    config = build({"evaluate": True, **flags}, origin="flags")
    start = Start.from_config(
        config, {"evaluate", *flags}, checkpoint, path=None, origin="--resume last.pt"
    )
    augmentation = start.config.augmentation
    native = Native(augmentation.image_size or 0, (0, 0, 0), (1, 1, 1))
    _, policy = image_policies(augmentation, native)
    assert (policy.image_size, policy.resize) == (size, resize)


@pytest.mark.parametrize(
    ("flags", "resumed", "said"),
    [
        ({"layer_decay": 0.8}, False, "none, and the settings are for trained ones"),
        ({"freeze": "conv1"}, False, "none, and the settings are for trained ones"),
        ({"weights": "DEFAULT", "layer_decay": 0.8}, False, "DEFAULT"),
        ({"layer_decay": 0.8}, True, ""),
        ({}, False, ""),
    ],
)
def test_the_weights_that_a_run_begins_with(
    flags: dict[str, Any], resumed: bool, said: str
) -> None:
    start = Start.from_config(build(flags), flags, {}, path=None, origin="")
    told = start.weights_message(resumed=resumed)
    assert told.startswith(said) and bool(told) == bool(said)


@pytest.mark.parametrize("arch", ["helper:net", "timm/hf-hub:someone/net"])
def test_a_function_that_builds_the_network_is_the_users_word(arch: str) -> None:
    checkpoint = {
        "config": {"arch": arch},
        "used": {},
        "arch": arch,
        "classes": ["a", "b"],
    }
    with pytest.raises(
        UserError,
        match=f"^--resume a.pt: .* a function, '{arch}', and no .* as --arch ",
    ):
        Start.from_config(
            build({"evaluate": True}),
            {"evaluate"},
            checkpoint,
            path=None,
            origin="--resume a.pt",
        )
    config = build({"evaluate": True, "arch": arch})
    start = Start.from_config(
        config, {"evaluate", "arch"}, checkpoint, path=None, origin="--resume a.pt"
    )
    assert start.config.model.arch == arch


def test_batch_norm_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    config = build({"arch": "resnet18", "sync_bn": True})
    start = Start.from_config(config, (), {}, path=None, origin="flags")
    given: Any = (
        *architecture(kind_of(config), "resnet18"),
        (2, 3, 32, 32),
        {"classes": 2},
        MagicMock(),
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="--sync-bn is for GPUs, and there is none"):
        start.network(*given)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    norms = [
        layer
        for layer in start.network(*given).modules()
        if isinstance(layer, _BatchNorm)
    ]
    assert len(norms) == 20 and {type(layer) for layer in norms} == {nn.SyncBatchNorm}


HEADS = {
    "classification": ("resnet18", "fc"),
    "detection": ("fcos_tiny", "head.classification_head.cls_logits"),
    "video": ("r3d_tiny", "fc"),
}
"""Task -> an architecture, and its layer of classes."""


@pytest.mark.parametrize(
    ("task", "there", "here", "said"),
    [
        ("video", "cat dog", "cat dog", ""),
        # letters as a Mac has them
        ("detection", "cat b\u00e4r", "cat ba\u0308r", ""),
        ("classification", "dog cat", "cat dog", "such as 'dog' in the place of 'cat'"),
        ("classification", "cat dog owl", "cat dog", "for other classes"),
    ],
)
def test_a_head_of_other_classes_starts_anew(
    task: str, there: str, here: str, said: str, tmp_path: Path
) -> None:
    arch, layer = HEADS[task]
    head = [f"{layer}.weight", f"{layer}.bias"]
    path = tmp_path / "best.pt"
    before, now = there.split(), here.split()
    config = build({"task": task, "arch": arch, "weights": str(path)})
    entry = architecture(kind_of(config), arch)
    shape = (2, 3, 4, 32, 32) if task == "video" else (2, 3, 64, 64)
    registry, name = entry
    trained, _ = registry.build(name, shape=shape, weights=None, classes=len(before))
    model = {key: value.clone() for key, value in trained.state_dict().items()}
    for key in head:
        model[key].fill_(7.0)
    about = {"format": 2, "arch": arch, "classes": before, "manifest": ""}
    torch.save({**about, "model": model}, path)
    start = Start.from_config(config, (), {}, path=None, origin="flags")
    heads = {"classes": len(now)}
    net = start.network(*entry, shape, heads, MagicMock(), classes=tuple(now))
    got = net.state_dict()
    assert all(bool((got[key] == 7.0).all()) != bool(said) for key in head)
    rest = model.keys() - {*head}
    assert all(torch.equal(got[key], model[key]) for key in rest)
    (line,) = start.messages or [""]
    assert said in line and all((key in line) == bool(said) for key in head)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {},
            "which have mean 0.485 0.456 0.406; --mean 0.5 0.5 0.5 has them here, too",
        ),
        ({"mean": [0.5, 0.5, 0.5]}, None),
    ],
)
def test_weights_of_a_training_on_other_pixels_are_told(
    more: dict[str, Any], said: str | None, tmp_path: Path
) -> None:
    kind = kind_of(build({}))
    registry, arch = architecture(kind, "squeezenet1_1")
    shape = (2, 3, 64, 64)
    module, _ = registry.build(arch, classes=2, shape=shape)
    path = tmp_path / "best.pt"
    used = {"mean": [0.5] * 3, "std": [0.229, 0.224, 0.225]}
    about = dict.fromkeys(("format", *torch_files.IDENTITY), 1)
    state = {"model": module.state_dict(), "classes": ["a", "b"], "used": used}
    torch.save({**about, "arch": arch, **state}, path)
    config = build({"weights": str(path), **more})
    start = Start.from_config(config, {"weights", *more}, {}, path=None, origin="")
    console = MagicMock()
    start.network(registry, arch, shape, {"classes": 2}, console)
    warned = [call.args[0] for call in console.warn.call_args_list]
    assert [line.endswith(str(said)) for line in warned] == [True] * (said is not None)
