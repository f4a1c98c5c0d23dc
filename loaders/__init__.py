"""Rows -> Batch. One loader a file, opened by `open(feed)`; the file's name is the loader's, with '-' for '_'."""

from __future__ import annotations

from importlib import import_module

from contracts import Feed, Loader

LOADERS = {
    "synthetic": "loaders.synthetic",
    "torchvision": "loaders.torchvision",
    "dali-cpu": "loaders.dali_cpu",
    "dali-gpu": "loaders.dali_gpu",
    "dali-fed": "loaders.dali_fed",
}
"""name -> module, imported when asked for: DALI stays optional."""


def open_loader(name: str, feed: Feed) -> Loader:
    """The loader of that name, ready to give batches. Raises Mistake where this machine cannot run it."""
    return import_module(LOADERS[name]).open(feed)
