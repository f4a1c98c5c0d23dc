"""A folder of images, its manifest and its feed; and how far from Pillow a loader may be."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch

from saturate.contracts import Feed, Loader, Pixels
from saturate.dataset.stores.folder import Folder, open_folder
from saturate.loaders import LOADERS, installed, of_medium, open_loader
from saturate.plan.epoch import EpochPlan
from saturate.plan.images import ImagePlan, ImagePolicy
from saturate.tasks.classification import Classification
from tests.conformance import pictures

Open = Callable[[Feed], Loader]

NO_FILES = ("synthetic",)
"""Loaders that read no file: only ids, labels, padding, resume and exit can be asked of them."""
READ_IN_THREADS = ("dali-cpu", "dali-gpu")
"""Loaders that are closed once the reads under way have ended: a thread in a read cannot be."""
AS_PYAV = ("decord",)
"""Loaders that differ from one with pyav in nothing but what a worker process calls."""
FROM_RGB = ("decord", "dali-video")
"""Loaders of clips that resize RGB, and not the planes as they are stored."""
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A loader on a device: what a test is repeated for. Differences are in grey levels, 0 to 255."""

    name: str
    device: torch.device = CPU
    clips: bool = False  # whether it is given videos

    def __str__(self) -> str:
        return (
            f"{self.name}-clips"
            if self.clips and LOADERS[self.name].media != ("videos",)
            else self.name
        )

    @property
    def open(self) -> Open:
        return partial(open_loader, self.name)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def decodes_on_gpu(self) -> bool:
        return self.on_gpu and LOADERS[self.name].gpu != "no"

    @property
    def pixel_difference(self) -> float:
        """Mean absolute difference to Pillow that one image may have: filters round alike. nvJPEG's nearest
        chroma is 1.6 levels off on the worst of 200 real files, up to 3.9 on colourful generated ones.
        """
        return 5.0 if self.decodes_on_gpu else 0.5

    @property
    def repeat_difference(self) -> float:
        """Grey levels that two passes may differ by: which of nvJPEG's two engines a file meets depends on
        its neighbours. Loaders with a "+" deal each clip to either decoder; cuBLAS may sum in another order.
        Noise is the same at each place of a batch, whose sample is another one after a resume.
        """
        if self.name in NO_FILES:
            return 256.0
        if self.clips:
            return 2.0 if "+" in self.name else 0.1 if self.decodes_on_gpu else 0.0
        return 5.0 if self.decodes_on_gpu else 0.0

    @property
    def edge_difference(self) -> float:
        """Source pixels by which an edge of a window may seem to be elsewhere: rounding of 8 bits, and the
        filter. swscale's RGB, of decord, is a level off: a third of a pixel of a ramp.
        """
        return 0.7 if self.clips and self.name in FROM_RGB else 0.3

    @property
    def dtype(self) -> str:
        return "float16" if self.on_gpu else "float32"


def backends(
    device: torch.device, *, files: bool, clips: bool = False
) -> list[Backend]:
    """Return every loader of the medium that runs there. `files`: only those that read files."""
    left_out = NO_FILES if files else ()
    table = of_medium("videos" if clips else "images")
    on_gpu = device.type == "cuda"
    names = [
        name
        for name, spec in table.items()
        if name not in left_out and (on_gpu or spec.gpu != "must")
    ]
    return [
        Backend(name=name, device=device, clips=clips)
        for name in names
        # which has no build for ARM
        if name != "decord" or installed(name)
    ]


def lone(device: torch.device, *, clips: bool = False) -> list[Backend]:
    """Return one loader of files for each way to run, for tests that ask not how a file is decoded."""
    return [
        backend
        for backend in backends(device, files=True, clips=clips)
        if backend.name not in AS_PYAV
    ]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Images in a folder. `bytes_of[sample]` is what was written, before anything may have changed it."""

    folder: Path
    # dataset.images.columns.Images, of videos dataset.videos.columns.Videos
    manifest: Any
    bytes_of: tuple[bytes, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, folder: Path, manifest: Any, **more: Any) -> Self:
        """Read the files of a manifest, of which the scan has left out none."""
        assert manifest.rejected == 0, (manifest.folder / "rejected.txt").read_text()
        paths = [Path(os.fsdecode(manifest.path(i))) for i in range(len(manifest))]
        return cls(
            folder=folder.resolve(),
            manifest=manifest,
            bytes_of=tuple(path.read_bytes() for path in paths),
            names=tuple(path.stem for path in paths),
            **more,
        )

    @property
    def samples(self) -> int:
        return len(self.bytes_of)

    def feed(
        self,
        device: torch.device = CPU,
        *,
        batch_size: int = 4,
        image_size: int = 48,
        training: bool = True,
        workers: int = 2,
        delay_s: float = 0.0,
        **changes: Any,
    ) -> Feed:
        """What train.py would give a loader, with windows and flips drawn (training) or the centre crop
        (validation).
        """
        fields: dict[str, Any] = {
            "plan": self.plan(image_size, batch_size=batch_size, training=training),
            "source": Folder(self.manifest, delay_s),
            "columns": self.manifest,
            "targets": Classification(self.manifest.label).targets,
            "pixels": Pixels(dtype="float16" if device.type == "cuda" else "float32"),
            "device": device,
            "workers": workers,
        }
        return Feed(**(fields | changes))

    def plan(self, image_size: int, *, batch_size: int, training: bool) -> EpochPlan:
        policy = ImagePolicy(
            window="random-resized" if training else "center",
            image_size=image_size,
            resize=round(image_size * 256 / 224),
            flip=0.5 if training else 0.0,
        )
        return ImagePlan(
            self.manifest, policy, seed=5, batch_size=batch_size, training=training
        )

    def blue(self, sample: int, frame: int = 0) -> int:
        return blue_of(int(self.names[sample].removeprefix("ramp-")))

    def path(self, sample: int) -> Path:
        return Path(os.fsdecode(self.manifest.path(sample)))


def scene(folder: Path, files: Mapping[str, bytes], classes: int = 3) -> Scene:
    """Write the files, dealt out to class folders, and scan them. All of them must pass the scan."""
    data = folder / "data"
    for place, (name, content) in enumerate(files.items()):
        path = data / f"class-{place % classes}" / f"{name}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return scanned(data, folder / "manifests")


def scanned(data: Path, cache: Path) -> Scene:
    return Scene.of(data, open_folder(data, cache=cache))


def ramps() -> dict[str, bytes]:
    """Images whose pixels encode x (red), y (green) and the file (blue), of many shapes."""
    shapes = [
        (96, 128),
        (128, 96),
        (200, 150),
        (90, 90),
        (64, 200),
        (200, 64),
        (23, 31),
        (180, 240),
    ]
    files = {}
    for place in range(3 * len(shapes)):
        height, width = shapes[place % len(shapes)]
        pixels = pictures.ramp(height, width, blue=blue_of(place))
        lossless = place % 2 == 0
        files[f"ramp-{place:02d}"] = (
            pictures.png(pixels) if lossless else pictures.jpeg(pixels, quality=100)
        )
    return files


def blue_of(place: int) -> int:
    return 15 + 9 * place


def small(count: int = 42) -> dict[str, bytes]:
    """Many quick files; a count that no batch size of the tests divides leaves a tail."""
    return {
        f"small-{i:03d}": pictures.jpeg(
            pictures.photograph(100 + i, 40 + i % 7, 56 - i % 5), quality=92
        )
        for i in range(count)
    }


def of_two_classes(count: int) -> dict[str, bytes]:
    """Return some of these by their paths, in the folders a and b in turn."""
    return {
        f"{'ab'[place % 2]}/{name}.jpg": content
        for place, (name, content) in enumerate(small(count).items())
    }


def photographs() -> dict[str, bytes]:
    """JPEGs like ImageNet's; some ask to be turned, some are smaller than the output."""
    shapes = [(375, 500), (500, 333), (240, 320), (120, 150), (300, 300), (180, 600)]
    files = {}
    for place in range(18):
        pixels = pictures.photograph(500 + place, *shapes[place % len(shapes)])
        kind = ("444", "420", "422", "grey", "progressive", "turned")[
            (place + place // 6) % 6
        ]
        if kind == "turned":
            content = pictures.turned(pixels, orientation=(6, 3, 8)[place % 3])
        elif kind == "grey":
            content = pictures.jpeg(pixels[..., 1], quality=90)
        else:
            content = pictures.jpeg(
                pixels,
                quality=90,
                subsampling={"444": 0, "422": 1}.get(kind, 2),
                progressive=kind == "progressive",
            )
        files[f"photo-{place:02d}-{kind}"] = content
    return files
