"""`dali-cpu`: DALI reads, decodes and resizes in threads on the CPU; the device normalises uint8 levels."""

from __future__ import annotations

from saturate.contracts import Feed, ImageColumns
from saturate.loaders.images.dali_gpu import DaliFiles


def open(feed: Feed[ImageColumns]) -> DaliFiles:
    return DaliFiles(feed, gpu=False)
