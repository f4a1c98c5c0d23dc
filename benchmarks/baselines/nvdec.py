"""The GPU's video engines as one uses them by hand: PyNvVideoCodec's SimpleDecoder in threads, frames
dropped. Uses nothing of ours."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

TOGETHER = 16
"""Frames that are asked for in one call where a video is decoded from its first to its last."""


def clips(
    codec: Any,
    files: Sequence[str],
    *,
    frames: int,
    stride: int,
    threads: int,
    gpu: int,
) -> Iterator[int]:
    """Yield without end the number of frames that were decoded of a clip, NV12 on the device, in any order of
    the files.

    `frames` of it at random, 0 = all of the video. The threads always have a next clip.
    """
    own = threading.local()

    def decode(file: str, place: float) -> int:
        if not hasattr(own, "decoder"):
            own.decoder = codec.SimpleDecoder(file, gpu_id=gpu, use_device_memory=True)
        else:
            own.decoder.reconfigure_decoder(file)
        length = len(own.decoder)
        if not frames:
            found = 0
            while found < length:
                came = len(own.decoder.get_batch_frames(TOGETHER))
                if not came:
                    raise ValueError(f"{file}: {found} of {length} frames came")
                found += came
            return found
        start = int(place * max(length - (frames - 1) * stride - 1, 0))
        wanted = [
            at for at in range(start, start + frames * stride, stride) if at < length
        ]
        came = len(own.decoder.get_batch_frames_by_index(wanted))
        if came < len(wanted):
            raise ValueError(f"{file}: {came} of {len(wanted)} frames came")
        return came

    waiting: deque[Future[int]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        while True:
            for file in random.sample(files, len(files)):
                waiting.append(pool.submit(decode, file, random.random()))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
