"""`nvdec`: the GPU's video engines, each fed by a thread; frames are resized and finished on the device.

Worker processes read the packets, and decode by pyav what the engines are not exact for. In `nvdec+pyav` they
also get a share of the others.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from saturate.contracts import Array, Feed, Rows, UserError
from saturate.dataset.videos.columns import CODECS, Flags, Videos
from saturate.loaders.videos._engines import (
    NAMES,
    Codec,
    Nvdec,
    capabilities,
    import_codec,
    within,
)
from saturate.loaders.videos._mixed import MixedLoader
from saturate.loaders.videos._packets import Packets
from saturate.loaders.videos._planes import Picture
from saturate.loaders.videos._reading import Read
from saturate.loaders.videos._surfaces import Fit, build
from saturate.loaders.videos._worker import places_of_frames
from saturate.loaders.videos.exact import Claim, exact

CHUNK = 16
"""Surfaces that a thread keeps before it resizes them in one go: 50 MB at 1080p."""
EXACT = Claim(
    # AV1: no engine that has it was there to see
    kinds=dict.fromkeys(NAMES, ("mp4", "mkv")),
    flags=Flags.OBLONG_PIXELS
    | Flags.EDIT_LIST
    | Flags.SEVERAL_STREAMS
    | Flags.UNALIGNED
    | Flags.HIDDEN_FRAMES,
    plain=True,
)


class Filling:
    """saturate.loaders.videos._mixed.Fills."""

    def __init__(
        self, columns: Videos, codec: Codec, device: torch.device, stream: int
    ) -> None:
        build(device)
        self._decode = Nvdec(columns, codec, device.index or 0, stream)
        self._stack = torch.empty(0)
        self._places: tuple[torch.Tensor, ...] = ()  # of it, one for each surface

    @property
    def decoded(self) -> int:
        return self._decode.decoded

    def __call__(
        self, read: Read, rows: Rows, places: Array, out: torch.Tensor
    ) -> None:
        shown = places_of_frames(rows, places.tolist())
        fits: dict[int, Fit] = {}
        corners = rows.placed.tolist()
        stacked: list[int] = []

        def empty() -> None:
            for place, fit in fits.items():
                levels = fit(self._stack[: len(stacked)])
                left, top, right, bottom = corners[place]
                where = [
                    (i, t)
                    for i, frame in enumerate(stacked)
                    for owner, t in shown[frame]
                    if owner == place
                ]
                for i, t, count in runs(where):
                    out[place, t : t + count, top:bottom, left:right] = levels[
                        i : i + count
                    ]
            stacked.clear()

        for frame, picture, surface in self._decode(read):
            if not fits:
                fits = {
                    place: self._fit(picture, rows, place) for place in places.tolist()
                }
                if self._stack.shape[1:] != surface.shape:
                    self._stack = torch.empty(
                        (CHUNK, *surface.shape),
                        dtype=surface.dtype,
                        device=surface.device,
                    )
                    self._places = self._stack.unbind()
            # the decoder may write its next picture over the surface
            self._places[len(stacked)].copy_(surface, non_blocking=True)
            stacked.append(frame)
            if len(stacked) == CHUNK:
                empty()
        if stacked:
            empty()

    def close(self) -> None:
        self._decode.close()
        self._stack = torch.empty(0)
        self._places = ()

    def _fit(self, picture: Picture, rows: Rows, place: int) -> Fit:
        left, top, right, bottom = rows.placed[place].tolist()
        return Fit(
            picture,
            rows.regions[place],
            rows.windows[place],
            (bottom - top, right - left),
        )


def runs(pairs: list[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield (i, t, how many) of those that follow each other in both, so that one copy does them."""
    first = 0
    for end in range(1, len(pairs) + 1):
        i, t = pairs[first]
        count = end - first
        if end == len(pairs) or pairs[end] != (i + count, t + count):
            yield i, t, count
            first = end


def loader(feed: Feed[Videos], codec: Codec, *, beside: bool = False) -> MixedLoader:
    """Return the loader that decodes with PyNvVideoCodec, or with what stands for it."""
    gpu = feed.device.index or 0
    present = set(np.unique(feed.columns.codec[:]).tolist())
    caps = capabilities(
        codec, gpu, [name for name in NAMES if CODECS.index(name) in present]
    ) or capabilities(codec, gpu)
    engines = max([cap.engines for cap in caps.values()], default=0)
    if not engines:
        raise UserError(
            "--loader nvdec: this GPU has no engine that decodes video; --loader pyav"
        )
    able = exact("nvdec", feed.columns) & within(caps, feed.columns)
    return MixedLoader(
        feed,
        "nvdec",
        lambda: Packets(feed.columns),
        lambda stream: Filling(feed.columns, codec, feed.device, stream),
        able,
        threads=engines,  # a second one for an engine waits for the interpreter more than it decodes
        beside=beside,
    )


def usable() -> bool:
    """Return whether there are PyNvVideoCodec, the driver's libraries, and an engine on this GPU."""
    try:
        codec, gpu = import_codec(), torch.cuda.current_device()
        # one after the other: each answer takes its time
        caps = (capabilities(codec, gpu, (name,)).get(name) for name in NAMES)
        return any(cap is not None and cap.engines for cap in caps)
    except UserError:
        return False


def open(feed: Feed[Videos], beside: str = "") -> MixedLoader:
    if feed.device.type != "cuda":
        name = f"nvdec+{beside}" if beside else "nvdec"
        raise UserError(
            f"--loader {name} needs an NVIDIA GPU and none is here; pyav and decord decode on the CPU"
        )
    return loader(feed, import_codec(), beside=bool(beside))
