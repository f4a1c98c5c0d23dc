"""The table of optimisers, without weight decay on biases and norms; a CUDA graph holds each but apex's.

torch has SGD and AdamW, fused on CUDA; timm has LAMB, LARS, Lion and Muon, and NVIDIA's apex fused SGD and LAMB.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from saturate.contracts import UserError
from saturate.settings.optimisation import Optimisation

Groups = list[dict[str, Any]]
WEIGHTS = 0
REST = 1
BARE = 2
"""Parameters by their decay, in the order of the groups: --weight-decay, --norm-weight-decay, none."""
LISTS = (nn.Sequential, nn.ModuleList)
"""What holds the layers of a network, and no class made of these: such is a layer."""
MUON_SIDE = 4
"""Shortest side of a matrix that Muon turns: of less there is nothing to be orthogonal."""


def build(module: nn.Module, optimisation: Optimisation) -> torch.optim.Optimizer:
    """Build the optimiser with the parameters of more than one dimension as its first group.

    The next group is the rest, biases, norms and scales, with what the network's no_weight_decay() names; the
    last what --no-decay names. With --layer-decay each of them is a group a layer.
    """
    kind = OPTIMIZERS[optimisation.optimizer]
    groups = _groups(module, optimisation)
    device = groups[0]["params"][0].device if groups else torch.device("cpu")
    on_gpu = device.type == "cuda"
    rates: dict[float, Any] = {}
    for group in groups:
        scale = group["lr_scale"]
        lr = optimisation.lr * scale
        # a GPU reads it from memory when the step runs: a CUDA graph holds numbers of the host fast
        in_memory = on_gpu and kind.capturable
        rates.setdefault(scale, torch.tensor(lr, device=device) if in_memory else lr)
        group["lr"] = rates[scale]
    optimizer: torch.optim.Optimizer = kind.make(groups, optimisation, on_gpu)
    if kind.skips:
        _skip_on_device(optimizer)
    make_state(optimizer, optimisation.optimizer)
    return optimizer


def _groups(module: nn.Module, optimisation: Optimisation) -> Groups:
    """Return the groups of parameters, each with its decay and its share of the learning rate."""
    # timm's rule, which torchvision's references agree with: see docs/recipes.md
    named: Callable[[], Iterable[str]] | None = getattr(module, "no_weight_decay", None)
    excluded = () if named is None else named()
    scales = _layer_scales(module, optimisation.layer_decay)
    decays = (optimisation.weight_decay, optimisation.norm_weight_decay, 0.0)
    groups: dict[tuple[int, float], dict[str, nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        which = WEIGHTS
        if parameter.ndim <= 1 or name.endswith(".bias") or _matches(name, excluded):
            which = REST
        if _matches(name, optimisation.no_decay):
            which = BARE
        key = which, scales.get(name, 1.0)
        groups.setdefault(key, {})[name] = parameter
    return [
        {
            "params": [*groups[which, scale].values()],
            # a checkpoint has them: its state is in the order of the parameters
            "names": [*groups[which, scale]],
            "weight_decay": decays[which],
            "lr_scale": scale,
        }
        for which, scale in sorted(groups)
    ]


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _layer_scales(module: nn.Module, decay: float) -> dict[str, float]:
    """Return what --layer-decay leaves of the learning rate of each parameter: decay ** layers behind it.

    Layers are timm's groups of the network where it has them, else its blocks.
    """
    if decay == 1:
        return {}
    matcher: Callable[..., Any] | None = getattr(module, "group_matcher", None)
    layer_of: dict[str, int]
    if matcher is None:
        blocks = {
            id(block): place for place, block in enumerate(_blocks(module), start=1)
        }
        layer_of = {name: 0 for name, _ in module.named_parameters()}
        for begin, part in module.named_modules():
            if place := blocks.get(id(part)):
                layer_of |= {
                    f"{begin}.{name}": place for name, _ in part.named_parameters()
                }
    else:
        require_timm(f"--layer-decay {decay:g}")
        from timm.models import group_parameters

        layer_of = group_parameters(module, matcher(coarse=False), reverse=True)
    last = max(layer_of.values())
    return {name: decay ** (last - layer) for name, layer in layer_of.items()}


def _is_series(module: nn.Module) -> bool:
    """Return whether a module is a list of layers that follow one another.

    Convolutions and Sequentials in an nn.ModuleList lie beside each other, as in a feature pyramid and in SSD's heads.
    """
    if type(module) is nn.ModuleList:
        return all(
            any(part.children()) and not isinstance(part, nn.Sequential)
            for part in module
        )
    return type(module) is nn.Sequential


def _blocks(module: nn.Module, *, listed: bool = False) -> Iterator[nn.Module]:
    """Yield the parts with parameters that follow one another: members of LISTS, and what is beside.

    `listed`: the module is one of these lists, of which a member is a block whatever it is made of.
    """
    for child in module.children():
        is_list = type(child) in LISTS
        has_list = any(map(_is_series, child.modules()))
        if is_list or (has_list and not listed):
            yield from _blocks(child, listed=is_list)
        elif next(child.parameters(), None) is not None:
            yield child


# --- the table ----------------------------------------------------------------------------------------------


def _momentum_of(optimisation: Optimisation) -> dict[str, Any]:
    """Return momentum and its form; torch refuses Nesterov's form of none."""
    nesterov = optimisation.nesterov and optimisation.momentum > 0
    return {"momentum": optimisation.momentum, "nesterov": nesterov}


def _sgd(
    groups: Groups, optimisation: Optimisation, on_gpu: bool
) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, fused=on_gpu, **_momentum_of(optimisation))


def _adamw(
    groups: Groups, optimisation: Optimisation, on_gpu: bool
) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, fused=on_gpu, capturable=on_gpu)


def _lamb(
    groups: Groups, optimisation: Optimisation, on_gpu: bool
) -> torch.optim.Optimizer:
    require_timm("--optimizer lamb")
    from timm.optim import Lamb
    from timm.optim.lamb import lamb

    class DeviceLamb(Lamb):
        """timm's LAMB with its count of steps beside each parameter, on the device: a graph would hold a
        number of the host fast.
        """

        @torch.no_grad()
        def step(self, closure: Callable[[], float] | None = None) -> None:
            clip = self._get_clip_grad_norm()
            for group in self.param_groups:
                trained = [p for p in group["params"] if p.grad is not None]
                if not trained:
                    continue
                states = [self.state[p] for p in trained]
                torch._foreach_add_([state["step"] for state in states], 1)
                beta1, beta2 = group["betas"]
                taken = states[0]["step"]
                lamb(
                    trained,
                    [p.grad for p in trained],
                    [state["exp_avg"] for state in states],
                    [state["exp_avg_sq"] for state in states],
                    clip_grad_norm=clip,
                    foreach=on_gpu,
                    lr=group["lr"],
                    beta1=beta1,
                    beta2=beta2,
                    beta3=1 - beta1,
                    bias_correction1=1 - beta1**taken,
                    bias_correction2=1 - beta2**taken,
                    eps=group["eps"],
                    weight_decay=group["weight_decay"],
                    decoupled_decay=False,
                    max_lr=None,
                    trust_clip=False,
                    always_adapt=False,
                    caution=False,
                )

    # its own clipping is timm's default; --clip-grad-norm is in its place where it is given
    return DeviceLamb(
        groups, max_grad_norm=None if optimisation.clip_grad_norm else 1.0
    )


def _lars(
    groups: Groups, optimisation: Optimisation, on_gpu: bool
) -> torch.optim.Optimizer:
    return require_timm("--optimizer lars").Lars(
        groups, foreach=on_gpu, **_momentum_of(optimisation)
    )


def _lion(
    groups: Groups, optimisation: Optimisation, on_gpu: bool
) -> torch.optim.Optimizer:
    # its foreach form would wait for a learning rate that lies on the device
    return require_timm("--optimizer lion").Lion(groups, foreach=False)


def _muon(
    groups: Groups, optimisation: Optimisation, on_gpu: bool
) -> torch.optim.Optimizer:
    muon = require_timm("--optimizer muon").Muon
    parted: Groups = []
    for group, matrices in itertools.product(groups, (True, False)):
        if params := [p for p in group["params"] if _is_matrix(p) is matrices]:
            parted.append(
                {
                    **group,
                    "params": params,
                    "use_fallback": not matrices,
                    "use_muon": matrices,
                }
            )
    return muon(
        parted,
        momentum=optimisation.momentum,
        nesterov=optimisation.nesterov,
        conv_mode="flatten",
        capturable=on_gpu,
    )


def _is_matrix(parameter: torch.Tensor) -> bool:
    """Return whether Muon moves it: a matrix, or a convolution's kernels as one [out, in x height x width].

    Embeddings of positions, whose first side is 1, and depthwise kernels are none.
    """
    if parameter.ndim < 2 or 1 in parameter.shape[:2]:
        return False
    rows = parameter.shape[0]
    return min(rows, parameter.numel() // rows) >= MUON_SIDE


def _apex(
    groups: Groups, optimisation: Optimisation, on_gpu: bool
) -> torch.optim.Optimizer:
    """Return FusedSGD or FusedLAMB of NVIDIA's apex. Raises UserError where they cannot be had."""
    flag = f"--optimizer {optimisation.optimizer}"
    # its files tell: importing the index's package of that name would run a web toolkit
    spec = importlib.util.find_spec("apex")
    folders = (spec and spec.submodule_search_locations) or ()
    if not on_gpu or not any(Path(one, "optimizers").is_dir() for one in folders):
        raise UserError(
            f"{flag} needs a GPU and NVIDIA's apex, see github.com/NVIDIA/apex; "
            f"--optimizer {optimisation.optimizer.removeprefix('apex-')} moves weights alike"
        )
    try:
        from apex.optimizers import FusedLAMB, FusedSGD
    except ImportError as error:
        raise UserError(f"{flag}: apex cannot be imported ({error})") from None
    if optimisation.optimizer == "apex-sgd":
        momentum = _momentum_of(optimisation)
        optimizer = FusedSGD(groups, lr=optimisation.lr, **momentum)
    else:
        largest = 0.0 if optimisation.clip_grad_norm else 1.0
        optimizer = FusedLAMB(groups, lr=optimisation.lr, max_grad_norm=largest)
    # apex's own takes no set_to_none
    optimizer.zero_grad = partial(torch.optim.Optimizer.zero_grad, optimizer)
    return optimizer


def require_timm(flag: str) -> Any:
    """Return timm.optim. Raises UserError where timm, which `flag` needs, is not installed, or too old."""
    try:
        import timm.optim
        from timm.optim import Lion, Muon  # noqa: F401
        from timm.optim.lamb import lamb  # noqa: F401
    except ImportError as error:
        need = "pip install 'timm>=1.0.31'"
        raise UserError(
            f"{flag} is of timm, which cannot be imported ({error}): {need}"
        ) from None
    return timm.optim


@dataclass(frozen=True, kw_only=True)
class Kind:
    """An --optimizer."""

    # makes it from groups, settings, and whether it is on a GPU
    make: Callable[[Groups, Optimisation, bool], torch.optim.Optimizer]
    capturable: bool = True  # a CUDA graph can hold its step
    skips: bool = False  # it knows no loss scale: _skip_on_device has it leave out a step that overflowed
    # names of the tensors that a step changes beside a parameter
    state: tuple[str, ...]


MOMENTUM = ("momentum_buffer",)
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
OPTIMIZERS = {
    "sgd": Kind(make=_sgd, state=MOMENTUM),
    "adamw": Kind(make=_adamw, state=MOMENTS),
    "lamb": Kind(make=_lamb, skips=True, state=MOMENTS),
    "lars": Kind(make=_lars, skips=True, state=MOMENTUM),
    "lion": Kind(make=_lion, skips=True, state=("exp_avg",)),
    "muon": Kind(make=_muon, skips=True, state=MOMENTUM),
    "apex-sgd": Kind(make=_apex, capturable=False, state=MOMENTUM),
    "apex-lamb": Kind(make=_apex, capturable=False, state=()),
}


# --- what steps leave ---------------------------------------------------------------------------------------


def make_state(optimizer: torch.optim.Optimizer, name: str) -> None:
    """Make the state, zeros, of each parameter that has none: torch makes it in the first step.

    `name` is --optimizer. A graph needs the state before it is captured. And fused SGD (torch 2.11 to 2.15)
    allocates momenta without writing them, and when the first steps are skipped because the loss scale is too
    high they stay so: ResNet-50 in fp16 was nan at step 3.
    """
    for group in optimizer.param_groups:
        # AdamW moves the parameters that Muon does not
        names = MOMENTS if group.get("use_fallback") else OPTIMIZERS[name].state
        if names == MOMENTUM and not group["momentum"]:
            continue
        on_host = group.get("capturable") is False
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            for what in names:
                if state.get(what) is not None:
                    continue
                state[what] = torch.zeros_like(parameter)
                if what == "step":
                    device = "cpu" if on_host else parameter.device
                    state[what] = torch.zeros((), device=device)


def _skip_on_device(optimizer: torch.optim.Optimizer) -> None:
    """Have a step whose gradients overflowed leave weights and state as they were, decided on the device.

    GradScaler waits for the device before it calls an optimiser that does not do so by itself. The price is a
    copy of weights and state while a step with a loss scale lasts.
    """
    saved: list[tuple[torch.Tensor, torch.Tensor]] = []

    @torch.no_grad()
    def keep(optimizer: Any, *_: object) -> None:
        if getattr(optimizer, "found_inf", None) is None:
            return
        tensors = [p for group in optimizer.param_groups for p in group["params"]]
        for state in optimizer.state.values():
            tensors += [
                value for value in state.values() if isinstance(value, torch.Tensor)
            ]
        saved.extend((tensor, tensor.detach().clone()) for tensor in tensors)

    @torch.no_grad()
    def put_back(optimizer: Any, *_: object) -> None:
        for tensor, before in saved:
            skipped = optimizer.found_inf.to(tensor.device) > 0
            tensor.copy_(torch.where(skipped, before, tensor))
        saved.clear()

    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
    optimizer.register_step_pre_hook(keep)
    optimizer.register_step_post_hook(put_back)


class LearningRates:
    """The learning rates of an optimiser's groups, each its share of one. Nothing else may change them.

    What lies on a device is written where it changes: each write is a launch.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        # keyed by identity: groups may share a tensor, and a checkpoint brings new ones
        self._written: dict[torch.Tensor, float] = {}

    def set(self, lr: float) -> None:
        """Set the rate of every group to its share of `lr`."""
        self.write([lr * group["lr_scale"] for group in self._optimizer.param_groups])

    def read(self) -> list[float]:
        """Return the rate of each group; waits for the device."""
        return [float(group["lr"]) for group in self._optimizer.param_groups]

    def write(self, rates: Sequence[float]) -> None:
        """Set the rate of each group, in place where it lies on a device."""
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            current = group["lr"]
            if not isinstance(current, torch.Tensor):
                group["lr"] = rate
            elif self._written.get(current) != rate:
                current.fill_(rate)
                self._written[current] = rate
