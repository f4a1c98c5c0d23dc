"""Predictions of super-resolution: each image, enlarged, as a PNG file. Must not know what is right."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import torch
from PIL import Image

from contracts import Array, Batch, Metric, Rows, Source, UserError, World
from models.superres import enlarged, luma
from tasks import _tables
from tasks._fidelity import WHITE, whole
from tasks._predictions import NO_NUMBER
from tasks.kind import Asked

LONGEST_NAME = 100
"""Characters of a file's own name that the picture's name keeps."""


class Enlarging:
    """contracts.Task that is validated alone: its metric writes each output into `folder`/enlarged."""

    def __init__(self, *, folder: Path, scale: int, source: Source) -> None:
        self._folder = folder / "enlarged"
        self._scale = scale
        self._source = source

    def targets(self, rows: Rows) -> dict[str, Array]:
        """Return {"ids": int64 [B], -1 where the row is padding}."""
        return {"ids": rows.ids}

    def inputs(self, batch: Batch) -> tuple[torch.Tensor]:
        return (batch.images,)

    def shown(self, batch: Batch) -> torch.Tensor:
        return batch.images

    def probe(self, images: torch.Tensor) -> tuple[torch.Tensor]:
        return (images,)

    def losses(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Raise UserError: nothing is known that an output could be compared with."""
        raise UserError("--predict has no loss")

    def parts(self, outputs: Any) -> dict[str, torch.Tensor]:
        return {}

    def metric(self, device: torch.device) -> Metric:
        return Written(self._folder, self._scale, self._source)


class Written:
    """contracts.Metric that scores nothing: it writes PNG files, and its result are their names."""

    def __init__(self, folder: Path, scale: int, source: Source) -> None:
        self._folder = folder
        self._scale = scale
        self._source = source
        self._names: dict[int, str] = {}

    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        assert batch.rows is not None, "validation is eager"
        bicubic = enlarged(whole(batch.images.double() * WHITE), self._scale) / WHITE
        pictures = coloured(outputs.double(), bicubic)
        levels = (pictures.clamp(0, 1) * WHITE).round().to(torch.uint8).permute(0, 2, 3, 1)
        usable = (batch.valid & torch.isfinite(outputs).flatten(1).all(dim=1)).tolist()
        sizes = (self._scale * batch.rows.sizes).tolist()
        for row, (height, width) in enumerate(sizes):
            if not usable[row]:
                continue
            sample = int(batch.ids[row])
            stem = PurePath(self._source.name(sample)).stem[:LONGEST_NAME]
            name = f"{sample + 1:06d}-{stem}.png"
            self._folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(levels[row, :height, :width].cpu().numpy()).save(self._folder / name)
            self._names[sample] = name

    def result(self, world: World) -> dict[str, Any]:
        """Return {"written": sample -> name of its file}, of all ranks."""
        return {
            "written": {sample: name for names in world.gather(self._names) for sample, name in names.items()}
        }


def coloured(outputs: torch.Tensor, bicubic: torch.Tensor) -> torch.Tensor:
    """Return RGB: of a network that gives the luma the colours are those of bicubic interpolation."""
    if outputs.shape[1] == 3:
        return outputs
    return bicubic + (outputs - luma(bicubic)) * WHITE / 219  # red, green and blue alike


def write_enlarged(folder: Path, found: Mapping[str, Any], asked: Asked) -> list[Path]:
    """Write predictions.* with a row a file, in their order: path, enlarged, error."""
    rows = []
    for place, path in enumerate(asked.names):
        name = found["written"].get(int(asked.samples[place]))
        error = asked.errors.get(place, NO_NUMBER) if name is None else None
        rows.append({"path": path, "enlarged": name and f"enlarged/{name}", "error": error})
    table = folder / f"predictions.{asked.form}"
    table.write_bytes(_tables.written(rows, asked.form))
    return [table, *([folder / "enlarged"] if found["written"] else [])]
