"""fp16, bf16 or fp32: the step's input dtype, its autocast and its loss scale."""

from __future__ import annotations

import torch

DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
}


def choose(precision: str, device: torch.device, *, on_cpu: str = "auto") -> str:
    """Resolve `auto`: fp16 on CUDA; on a CPU `on_cpu`, whose own `auto` is bf16 where that is native, else
    fp32.

    fp16 is 12 times slower there.
    """
    if precision == "auto":
        precision = "fp16" if device.type == "cuda" else on_cpu
    if precision == "auto":
        precision = "bf16" if _cpu_has_bf16() else "fp32"
    return precision


def dtype_of(precision: str) -> str:
    """Return the name of the dtype that images come in, such as float16."""
    return str(DTYPES[precision]).removeprefix("torch.")


def _cpu_has_bf16() -> bool:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="ignore") as info:
            flags = [line for line in info if line.startswith("flags")]
            return any("avx512_bf16" in line or "amx_bf16" in line for line in flags)
    except OSError:
        return False


def remedy(precision: str) -> str:
    """Return the question whether other settings keep the numbers of a step finite in this precision."""
    wider = {
        "fp16": "--precision fp32/bf16",
        "bf16": "--precision fp32",
    }
    return f"A lower --lr or {wider.get(precision, '--clip-grad-norm')}?"


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Return the context of a forward pass in this precision."""
    enabled = precision != "fp32"
    return torch.autocast(
        device.type, dtype=DTYPES[precision] if enabled else None, enabled=enabled
    )


def loss_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """Return a dynamic loss scale for fp16, a pass-through otherwise."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")
