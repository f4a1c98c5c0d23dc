"""train.py that logs the samples of each step, a file for each rank of a generation; with STOP_AT it saves after
that step and ends, and with SLEPT_S it sleeps so long in each: less is to be trained again.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from saturate.engine import unkillable

# all agents are on this machine
if "PATIENT" not in os.environ:
    unkillable.BEAT_S, unkillable.SILENT_S, unkillable.JOIN_S = 0.3, 2.0, 1.0
    unkillable.MOVES_S = 5.0
    unkillable.ALONE_S = float(os.environ.get("ALONE_S", 12))

from saturate.engine.loop import Training
from saturate.run import train  # --unkillable forks in here

PLACE = "TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE", "RANK"
STOP_AT = int(os.environ.get("STOP_AT", -1))
SLEPT_S = float(os.environ.get("SLEPT_S", 0))

count, vote = Training._count, Training._vote
name = "-".join(os.environ.get(variable, "0").zfill(4) for variable in PLACE)
log = open(f"{os.environ['SAMPLES']}/{name}", "a", buffering=1)  # noqa: SIM115


def counted(self: Training, outcome: Any, lr: float) -> None:
    ids = [int(sample) for batch in self._batches for sample in batch.ids]
    count(self, outcome, lr)
    line = [self.progress.step, self.progress.epoch, ids, time.time()]
    print(json.dumps(line), file=log)
    time.sleep(SLEPT_S)


def voted(self: Training) -> dict[str, bool]:
    decided = vote(self)
    if self.progress.step == STOP_AT:
        self._pause()
        self.save()
        time.sleep(0.5)  # the others may be in its last collective
        os._exit(0)
    return decided


Training._count, Training._vote = counted, voted  # type: ignore[method-assign]
train.leave(train.main())
