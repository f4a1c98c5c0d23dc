"""A program that passes over a folder until it is stopped, for test_signals.py.

python -m tests.conformance.consumer LOADER DEVICE images|videos DATA MANIFESTS
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import torch

from tests.conformance.reels import filmed
from tests.conformance.scenes import Backend, scanned


def main() -> None:
    name, device, files, data, manifests = sys.argv[1:]
    backend = Backend(name=name, device=torch.device(device), clips=files == "videos")
    scene = (
        filmed(Path(data), Path(manifests), 4)
        if backend.clips
        else scanned(Path(data), Path(manifests))
    )
    feed = scene.feed(
        backend.device,
        batch_size=4,
        image_size=32,
        workers=2,
    )
    with backend.open(feed) as loader:
        for epoch in itertools.count():
            for at, _ in enumerate(loader.batches(epoch, 0)):
                if (epoch, at) == (0, 2):
                    print("running", flush=True)
                time.sleep(0.01)


if __name__ == "__main__":
    main()
