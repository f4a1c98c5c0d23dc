"""Ray Train starts runs as docs/cluster.md says."""

from __future__ import annotations

import re

import pytest

from tests.end_to_end.runs import ROOT, Runner, losses, summary

FLAGS = """--loader synthetic --arch squeezenet1_1 --image-size 32 --batch-size 4 --steps 3 --val-every 0
    --ceilings false --log-every 1 --resume auto"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_block_of_the_page(train: Runner) -> None:
    """Two workers are two ranks of one run."""
    pytest.importorskip("ray")
    page = (ROOT / "docs/cluster.md").read_text()
    (block,) = re.findall(r"```python\n(import os\n.*?)```", page, re.DOTALL)
    output = train.cwd / "run"
    command = f"{ROOT / 'train.py'} {FLAGS} --output {output}"
    for there, here in {
        r'COMMAND = ".*"': f"COMMAND = {' '.join(command.split())!r}",
        r'"/path/to/saturate"': f'"{train.cwd}"',
        "num_workers=16, use_gpu=True": "num_workers=2, resources_per_worker={'CPU': 1}",
    }.items():
        block, count = re.subn(there, here, block)
        assert count == 1, there
    program = train.cwd / "program.py"
    program.write_text(f"import ray\nray.init(num_cpus=4)\n{block}")
    train.zygote = None
    train.env |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    # ray waits for workers that import torch
    train.env |= {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300"}
    process = train.python(program)
    assert process.wait(600) == 0, process.err[-3000:]
    assert summary(output)["world_size"] == 2 and len(losses(output)) == 3
