"""--unkillable within one process: its connections to the store, and what it makes of a device's errors."""

from __future__ import annotations

import os
import socket
import time

import pytest
import torch
from torch.distributed import TCPStore

from saturate.engine.distributed import ProcessWorld
from saturate.engine.unkillable import Agent


def test_meeting_again_and_again_opens_no_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    _server = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_PORT", str(port))
    agent = Agent.__new__(Agent)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(8):
        # the one before it is let go
        store = agent._connect("127.0.0.1", time.monotonic() + 10, serves=False)
    store.set("a", "b")
    assert agent._address == ("127.0.0.1", "127.0.0.1")
    # a connection has two ends here, and those of the last ones may not be closed yet
    assert len(os.listdir("/proc/self/fd")) <= before + 2 * 8


@pytest.mark.parametrize(
    ("error", "is_right"),
    [
        ("CUDA error: out of memory", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate", True),
        ("CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_a_device_without_memory_is_not_faulty(
    error: str, is_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: object, **__: object) -> None:
        raise RuntimeError(error)

    world = ProcessWorld(torch.device("cpu"))
    assert world._computes_right()
    monkeypatch.setattr(torch, "ones", raises)
    assert world._computes_right() is is_right
