"""The baseline of clips by DALI's own readers: which frames the experimental one gives, on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.by_hand import dali, pytorch
from tests.unit.video_files import make, number


def dali_sequences(files: list[str], device: torch.device, **asked: Any) -> list[list[tuple[int, list[int]]]]:
    """Of two epochs of DALI's reader: (label, numbers of the frames) of each clip, in order of label and first frame."""
    sizes: dict[str, Any] = {"frames": 4, "stride": 2, "size": 64, "shorter": 64, "batch_size": 1, "threads": 1}
    made = dali.clips(files, [7, 8], device=device, experimental=True, **sizes | asked)
    epochs = []
    for _ in range(2):
        found = []
        for batch in made:
            (pixels,), (label,) = batch[0]["clips"], batch[0]["labels"]
            assert pixels.shape == (3, 4, 64, 64) and pixels.dtype == torch.float32
            levels = 255 * (pixels * torch.tensor(pytorch.STD)[:, None, None, None])
            levels += 255 * torch.tensor(pytorch.MEAN)[:, None, None, None]
            found.append((int(label), [number(frame.permute(1, 2, 0).numpy()) for frame in levels.unbind(1)]))
        epochs.append(sorted(found))
    return epochs


def test_clips_by_dalis_reader(tmp_path: Path) -> None:
    """VP9, which it decodes on a CPU too."""
    pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    square: dict[str, Any] = {"codec": "vp9", "size": (64, 64), "gop": 8}
    files = [str(make(tmp_path / "a.webm", frames=20, **square)), str(make(tmp_path / "b.webm", frames=5, numbers_from=100, **square))]
    cpu, short = torch.device("cpu"), (8, [100, 102, 104, 104])
    first, second = dali_sequences(files, cpu, step=dali.step(0, 4, 2, 20))
    assert first == second == [(7, [0, 2, 4, 6]), (7, [8, 10, 12, 14]), (7, [16, 18, 19, 19]), short]
    first, _ = dali_sequences(files, cpu, step=dali.step(1, 4, 2, 20))
    assert first == [(7, [0, 2, 4, 6]), short], "one a video"
    first, _ = dali_sequences(files, cpu, step=dali.step(2, 4, 2, 20))
    assert first[:2] == [(7, [0, 2, 4, 6]), (7, [13, 15, 17, 19])], "the last one ends where the video does"
    halves = [dali_sequences(files, cpu, step=8, world_size=2, rank=rank)[0] for rank in (0, 1)]
    assert sorted(halves[0] + halves[1]) == second and len(halves[0]) == 2, "shards"
    options: dict[str, Any] = {"frames": 4, "stride": 2, "step": 8, "size": 64, "shorter": 73, "gpu": True, "shards": (0, 1)}
    for experimental in (False, True):
        graph = dali.clip_pipeline(files, [7, 8], experimental=experimental, **options, batch_size=2, num_threads=1, device_id=0)
        assert graph.max_batch_size == 2, "its operators take these arguments on a GPU too"
