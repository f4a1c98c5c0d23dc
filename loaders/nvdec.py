"""`nvdec`: the GPU's video engines, each fed by a thread; frames stay on the device, where they are resized and normalised.

What the engines are not exact for, pyav decodes in worker processes. `nvdec+pyav`, `nvdec+decord`: workers also get a share of the others.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from typing import Any

import numpy as np
import torch

from contracts import Feed, Mistake, Rows
from loaders._clips import exact
from loaders._mixed import Beside, MixedLoader, Normalise
from loaders._nvdec import Nvdec, capabilities, import_codec, within
from loaders._planes import Picture
from loaders._readers import Undecodable
from loaders._surfaces import Fit
from loaders.pyav import Pyav

Array = np.ndarray[Any, Any]

CHUNK = 8
"""Surfaces that a thread keeps before it resizes them in one go: 25 MB at 1080p."""
THREADS_AN_ENGINE = 1


class Filling:
    """loaders._mixed.Fills."""

    def __init__(self, columns: Any, codec: Any, device: torch.device, stream: int, normalise: Normalise) -> None:
        self._columns, self._device, self._normalise = columns, device, normalise
        self._read = Nvdec(columns, codec, device.index or 0, stream)
        self._kept = torch.empty(0)

    @property
    def decoded(self) -> int:
        return self._read.decoded

    def __call__(self, sample: int, path: bytes, rows: Rows, places: Array, out: torch.Tensor) -> None:
        assert rows.frames is not None, "a plan of clips says which frames"
        shown: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for place in places.tolist():
            for t, frame in enumerate(rows.frames[place].tolist()):
                shown[frame].append((place, t))
        displayed = int(self._columns.height[sample]), int(self._columns.width[sample])
        fits: dict[int, Fit] = {}
        kept: list[int] = []

        def empty() -> None:
            for place in places.tolist():
                pixels = self._normalise(fits[place](self._kept[: len(kept)]))
                for clip, frame in zip(pixels, kept, strict=True):
                    for where, t in shown[frame]:
                        if where == place:
                            out[place, t, : clip.shape[0], : clip.shape[1]] = clip
            kept.clear()

        for frame, picture, surface in self._read(sample, path, sorted(shown)):
            if not fits:
                if picture.shape != displayed:
                    raise Undecodable(f"its frames have {picture.shape} pixels, the manifest has {displayed}")
                fits = {place: self._fit(picture, rows, place) for place in places.tolist()}
                if self._kept.shape[1:] != surface.shape:
                    self._kept = torch.empty((CHUNK, *surface.shape), dtype=surface.dtype, device=surface.device)
            self._kept[len(kept)] = surface
            kept.append(frame)
            if len(kept) == CHUNK:
                empty()
        if kept:
            empty()

    def close(self) -> None:
        self._read.close()

    def _fit(self, picture: Picture, rows: Rows, place: int) -> Fit:
        height, width = rows.sizes[place].tolist()
        return Fit(picture, rows.regions[place], rows.windows[place], (height, width), bool(rows.flips[place]), self._device)


def beside_of(name: str) -> Beside | None:
    """The CPU's reader of that name; None for none."""
    if name == "decord":
        try:
            importlib.import_module("decord")
        except (ImportError, OSError) as error:
            raise Mistake(f"--loader nvdec+decord: decord cannot be imported ({error}): --loader nvdec+pyav needs none") from None
        from loaders.decord import Decord

        return "decord", Decord, Pyav
    return ("pyav", Pyav, None) if name == "pyav" else None


def loader(feed: Feed, codec: Any, beside: str) -> MixedLoader:
    """With PyNvVideoCodec, or what stands for it."""
    caps = capabilities(codec, feed.device.index or 0)
    engines = max([cap.engines for cap in caps.values()], default=0)
    if not engines:
        raise Mistake("--loader nvdec: this GPU has no engine that decodes video; --loader pyav")
    able = exact("nvdec", feed.columns, np.arange(len(feed.columns.codec))) & within(caps, feed.columns)
    return MixedLoader(
        feed,
        "nvdec",
        lambda stream, normalise: Filling(feed.columns, codec, feed.device, stream, normalise),
        able,
        threads=engines * THREADS_AN_ENGINE,
        beside=beside_of(beside),
    )


def open(feed: Feed, beside: str = "") -> MixedLoader:
    if feed.device.type != "cuda":
        raise Mistake("--loader nvdec needs an NVIDIA GPU and none is here; pyav, decord and torchcodec run on this machine")
    return loader(feed, import_codec(), beside)
