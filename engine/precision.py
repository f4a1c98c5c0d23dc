"""fp16, bf16 or fp32: the step's input dtype, its autocast and its loss scale."""

from __future__ import annotations

import torch

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def choose(precision: str, device: torch.device, *, on_cpu: str = "auto") -> str:
    """`auto` resolved: fp16 on CUDA; on a CPU `on_cpu`, whose `auto` is bf16 where that is native, else fp32 (fp16 is 12x slower there)."""
    if precision == "auto":
        precision = "fp16" if device.type == "cuda" else on_cpu
    if precision == "auto":
        precision = "bf16" if _cpu_has_bf16() else "fp32"
    return precision


def _cpu_has_bf16() -> bool:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="ignore") as info:
            return any(line.startswith("flags") and ("avx512_bf16" in line or "amx_bf16" in line) for line in info)
    except OSError:
        return False


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """The context of a forward pass."""
    return torch.autocast(device.type, dtype=DTYPES[precision] if precision != "fp32" else None, enabled=precision != "fp32")


def loss_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """Dynamic loss scale for fp16, a pass-through otherwise."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")
