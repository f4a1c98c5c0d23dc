"""Super-resolution: the loss of an architecture's paper, PSNR and SSIM of whole images beside bicubic's.

To predict, each image is enlarged and written as a PNG file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as functional
from PIL import Image

from saturate.contracts import (
    Array,
    Batch,
    Columns,
    Figure,
    Metric,
    Plan,
    Rows,
    Source,
    Split,
    Task,
    UserError,
    World,
    counted,
)
from saturate.dataset.images.columns import shown_by
from saturate.dataset.images.headers import opened
from saturate.dataset.open import cache_folder, tell_of_copies
from saturate.dataset.pairs.columns import (
    Pairs,
    PairSource,
    source_of,
    split_of,
    synthetic,
)
from saturate.dataset.pairs.layouts import HOLDS
from saturate.dataset.pairs.scan import open_pairs
from saturate.dataset.stores.bucket import local
from saturate.dataset.stores.read_ahead import latency_note, read_ahead
from saturate.dataset.synthetic import NoBytes
from saturate.dataset.val_split import Part
from saturate.models import Native, Registry
from saturate.models import superres as architectures
from saturate.models.superres import ARCHITECTURES, enlarged, luma
from saturate.plan.geometry import turned_pixels
from saturate.plan.patches import HIGH, PatchPlan, PatchPolicy
from saturate.settings import superres as settings
from saturate.settings.model import Model
from saturate.settings.run import Run
from saturate.system import drawing
from saturate.tasks import _tables
from saturate.tasks._fidelity import (
    SSIM_SIDE,
    WHITE,
    luma_levels,
    psnr,
    squared_error,
    ssim,
    whole,
)
from saturate.tasks._predictions import NO_NUMBER, mean, picture_names
from saturate.tasks.batching import Batching
from saturate.tasks.kind import DEFAULTS, Asked, Opening, Predicting, Splits, TaskKind

FIGURES = (
    Figure(name="psnr", title="PSNR", unit="dB", chart="PSNR"),
    Figure(name="psnr_bicubic", title="PSNR of bicubic", unit="dB", chart="PSNR"),
    Figure(name="ssim", title="SSIM", chart="SSIM"),
    Figure(name="ssim_bicubic", title="SSIM of bicubic", chart="SSIM", shown="never"),
    Figure(name="samples"),
    Figure(name="outputs_not_finite", shown="unless zero"),
)
UNIT = 2.0**-40
"""SSIM of an image is rounded to a whole multiple of this before it is summed, so that the sum does not
depend on its order."""
SHOWN = 3
"""Images of a validation of which crops are drawn."""
CROP = 128
"""Side of the crops, pixels."""
CROPS = ("bicubic", "the network", "the original")
"""What the crops of an image are of, side by side."""
SIDE = 1024
"""Side of the images that stand in where there is no data, pixels."""
STAND_INS = {"train": 800, "val": 100}
"""How many there are: as many as DIV2K has."""


@dataclass(frozen=True, kw_only=True)
class Superres:
    """contracts.Task of pairs of images."""

    scale: int
    loss: str  # mse or l1
    psnr: str  # of what figures are: y, the luma, or rgb
    shave: int  # pixels along each edge that no figure counts
    samples: int

    def targets(self, rows: Rows) -> dict[str, Array]:
        """Return {"ids": int64 [B], -1 where the row is padding}; the loader adds the large images, HIGH."""
        return {"ids": rows.ids}

    def inputs(self, batch: Batch) -> tuple[torch.Tensor]:
        return (batch.images,)

    def shown(self, batch: Batch) -> torch.Tensor:
        return batch.images

    def losses(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return fp32 [B], the mean over the pixels of an image; of its luma where the network has that."""
        high = batch.targets[HIGH]
        if outputs.shape[1] == 1:
            high = luma(high)
        distance = functional.mse_loss if self.loss == "mse" else functional.l1_loss
        losses = (
            distance(outputs.float(), high, reduction="none").flatten(1).mean(dim=1)
        )
        return torch.where(batch.valid, losses, 0.0)

    def parts(self, outputs: object) -> dict[str, torch.Tensor]:
        return {}

    def metric(self, device: torch.device) -> Metric:
        return Fidelity(
            device=device,
            scale=self.scale,
            of_luma=self.psnr == "y",
            shave=self.shave,
            samples=self.samples,
        )


class Fidelity:
    """contracts.Metric: PSNR and SSIM of each image, of the network's output and of bicubic interpolation.

    What is compared are levels: outputs and their references are rounded to whole ones before. Errors are
    sums of whole numbers, an image each, so that neither order nor rank changes a figure. A batch is one
    image. Holds 48 n bytes on the device, of n `samples`.
    """

    def __init__(
        self,
        *,
        device: torch.device,
        scale: int,
        of_luma: bool,
        shave: int,
        samples: int,
    ) -> None:
        self._scale = scale
        self._of_luma = of_luma
        self._shave = shave
        # int64 [n, 6]: squared error of ours and of bicubic, SSIM of both in UNIT, how many numbers were
        # compared, whether the output is no number
        self._sums = torch.zeros(samples, 6, dtype=torch.int64, device=device)
        self._crops: list[torch.Tensor] = []

    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        if outputs.shape[1] == 1 and not self._of_luma:
            raise UserError("--psnr rgb: this --arch gives the luma alone; --psnr y")
        high = batch.targets[HIGH]
        bicubic = bicubic_levels(batch, self._scale)
        reference, ours, theirs = (
            self._compared(whole(levels))
            for levels in (high * WHITE, outputs.double() * WHITE, bicubic)
        )
        fine = torch.isfinite(outputs).all()
        # of padding too: what is added for it is 0 throughout
        ids = batch.targets["ids"].clamp(min=0)
        figures = [
            torch.where(
                fine, squared_error(ours, reference), WHITE**2 * reference.numel()
            ),
            squared_error(theirs, reference),
            torch.where(fine, ssim(ours, reference) / UNIT, 0.0).round().long(),
            (ssim(theirs, reference) / UNIT).round().long(),
            ids.new_tensor(reference.numel()),
            (~fine).long(),
        ]
        counted = torch.stack(figures) * batch.valid
        self._sums.index_add_(0, ids, counted[None])
        if len(self._crops) < 3 * SHOWN and batch.ids[0] >= 0:
            below = bicubic / WHITE
            for picture in (below, coloured(outputs, below), high):
                self._crops.append(_crop(picture[0]))

    def result(self, world: World) -> dict[str, Any]:
        """Return psnr, psnr_bicubic, ssim, ssim_bicubic (means over images), samples, outputs_not_finite.

        An output that is no number counts as black for white. Rank 0 also has the crops as `extras`.
        """
        sums = world.sum(self._sums.cpu().numpy())
        ours, theirs, ssim_ours, ssim_theirs, count, not_finite = sums[sums[:, 4] > 0].T
        samples = len(count)
        figures: dict[str, Any] = {
            "psnr": mean(float(psnr(ours, count).sum()), samples),
            "psnr_bicubic": mean(float(psnr(theirs, count).sum()), samples),
            "ssim": mean(int(ssim_ours.sum()) * UNIT, samples),
            "ssim_bicubic": mean(int(ssim_theirs.sum()) * UNIT, samples),
            "samples": samples,
            "outputs_not_finite": int(not_finite.sum()),
        }
        if world.rank == 0 and self._crops:
            tiles = []
            for crop, text in zip(self._crops, CROPS * SHOWN, strict=False):
                picture = Image.fromarray(crop.cpu().numpy())
                tile = drawing.fitted(picture, 2 * CROP)
                tiles.append((tile, [(text, drawing.INK)]))
            sheet = drawing.sheet(tiles, across=len(CROPS))
            figures["extras"] = {"images": {"val/crops": sheet[None]}}
        return figures

    def _compared(self, levels: torch.Tensor) -> torch.Tensor:
        """Return what figures are of: without the edges, the luma of RGB, or the levels as they are."""
        if self._of_luma and levels.shape[1] == 3:
            levels = luma_levels(levels)
        height, width = levels.shape[2:]
        shave = self._shave
        return levels[:, :, shave : height - shave, shave : width - shave]


@dataclass(frozen=True, kw_only=True)
class Enlarging(Superres):
    """contracts.Task that is validated alone: its metric writes each output into `folder`/enlarged."""

    folder: Path
    source: Source
    turns: Array  # uint8 [n], of each sample that which shows it
    deep: Array  # bool [n], whether its channels have more than 8 bits

    def metric(self, device: torch.device) -> Metric:
        return Written(self)


class Written:
    """contracts.Metric that scores nothing: it writes PNG files as viewers show the images, and returns their names."""

    def __init__(self, task: Enlarging) -> None:
        self._task = task
        self._folder = task.folder / "enlarged"
        files = [task.source.name(sample) for sample in range(len(task.source))]
        self._pictures = picture_names(files, ".png")
        self._names: dict[int, str] = {}
        self._transparent = 0

    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        task = self._task
        bicubic = bicubic_levels(batch, task.scale) / WHITE
        pictures = coloured(outputs.double(), bicubic)
        levels = (pictures.clamp(0, 1) * WHITE).round().to(torch.uint8)
        if batch.valid.all() and torch.isfinite(outputs).all():
            self._folder.mkdir(parents=True, exist_ok=True)
            sample = int(batch.ids[0])
            self._names[sample] = self._pictures[sample]
            pixels = levels[0].permute(1, 2, 0).cpu().numpy()
            # PNG has no EXIF here: what a viewer would turn is turned
            upright = turned_pixels(pixels, int(task.turns[sample]))
            picture = Image.fromarray(np.ascontiguousarray(upright))
            picture.save(self._folder / self._names[sample])
            with opened(task.source.read(sample)) as image:
                self._transparent += image.has_transparency_data

    def result(self, world: World) -> dict[str, Any]:
        """Return {"written": sample -> name of its file}, of all ranks, and `notes` on what the files lack."""
        written: dict[int, str] = {}
        for names in world.gather(self._names):
            written |= names
        lacking = {
            "alpha, or a colour that is transparent, is dropped": sum(
                world.gather(self._transparent)
            ),
            "of more than 8 bits a channel the 8 highest are enlarged": int(
                self._task.deep[[*written]].sum()
            ),
        }
        notes = [
            f"{what}: {count:,} of {counted(len(written), 'image')}"
            for what, count in lacking.items()
            if count
        ]
        return {"written": written, "notes": notes}


def bicubic_levels(batch: Batch, scale: int) -> torch.Tensor:
    """Return float64 [B, 3, H, W] in 0..255: the small images, enlarged."""
    # fp16 is near enough to find each level again
    return enlarged(whole(batch.images.double() * WHITE), scale)


def coloured(outputs: torch.Tensor, bicubic: torch.Tensor) -> torch.Tensor:
    """Return RGB: of a network that gives the luma the colours are those of bicubic interpolation."""
    if outputs.shape[1] == 3:
        return outputs
    # red, green and blue alike
    return bicubic + (outputs - luma(bicubic)) * WHITE / 219


def write_enlarged(
    folder: Path, results: Mapping[str, Any], asked: Asked
) -> list[Path]:
    """Write predictions.* with a row a file, in their order: path, enlarged, error."""
    rows = []
    for place, path in enumerate(asked.names):
        name = results["written"].get(int(asked.samples[place]))
        error = asked.errors.get(place, NO_NUMBER) if name is None else None
        enlarged = name and f"enlarged/{name}"
        rows.append({"path": path, "enlarged": enlarged, "error": error})
    table = _tables.write(folder / "predictions", rows, asked.form)
    return [table, *([folder / "enlarged"] if results["written"] else [])]


def _crop(picture: torch.Tensor) -> torch.Tensor:
    """Return uint8 [CROP, CROP, 3], the middle of a picture [3, H, W] in [0, 1], white where it ends."""
    height, width = picture.shape[1:]
    top, left = max(height - CROP, 0) // 2, max(width - CROP, 0) // 2
    middle = picture[:, top : top + CROP, left : left + CROP].nan_to_num()
    room = [0, CROP - middle.shape[2], 0, CROP - middle.shape[1]]
    padded = functional.pad(middle.float().clamp(0, 1), room, value=1.0)
    return (padded.permute(1, 2, 0) * WHITE).round().to(torch.uint8)


@dataclass(frozen=True)
class SuperresKind(TaskKind):
    """Images to be enlarged; there are no classes."""

    run: Run = DEFAULTS.run
    model: Model = DEFAULTS.model
    superres: settings.Superres = DEFAULTS.superres

    name = "superres"
    arch = "espcn"
    registry: ClassVar[Registry] = architectures
    medium = "pairs"
    has_classes = False
    # bf16 has 8 bits, as many as a level: outputs would be rounded to it
    cpu_precision = "fp32"
    figures: ClassVar[tuple[Figure, ...]] = FIGURES

    def splits(self, opening: Opening) -> dict[str, Split[Any]]:
        """Open both, and say what was left out. To evaluate, validation will do, and is both."""
        own = self.superres
        console = opening.console
        data = opening.data
        patches = {"train": own.patches_per_image, "val": 1}
        if data.data is None:
            if opening.loader != "synthetic":
                raise UserError(
                    f"--data is missing: --loader {opening.loader} reads files; {HOLDS}, or --loader synthetic"
                )
            return {
                name: Split(columns=columns, source=NoBytes(len(columns)))
                for name, count in STAND_INS.items()
                for columns in [synthetic(count, SIDE, patches[name])]
            }
        least = {"train": self._patch, "val": 2 * self._shave + SSIM_SIDE}
        needed = ["train", "val"] if opening.validates else ["train"]
        if opening.evaluate:
            needed = ["val"]
        cache = cache_folder(data.manifest_dir)
        splits: dict[str, Split[Pairs]] = {}
        for name in needed:
            with console.counting(name) as progress:
                splits[name], messages = open_pairs(
                    local(data.data, cache),
                    name,
                    scale=own.scale,
                    least=least[name],
                    patches=patches[name],
                    source=data.source,
                    cache=cache,
                    rescan=data.rescan,
                    max_pixels=data.max_pixels,
                    read_delay_s=opening.read_delay_s,
                    progress=progress,
                )
            for line in messages:
                console.warn(f"{name}: {line}")
            columns, pairs = splits[name].columns, splits[name].source
            assert isinstance(pairs, PairSource)
            # small images that are stored are files, of which one is read at a time
            large = pairs.source
            threads = opening.read_threads
            far = read_ahead(large, threads, data.cache_dir, data.cache_gib)
            told = source_of(large, pairs.images, pairs.low)
            splits[name] = replace(splits[name], source=told)
            if far and name == "train":
                console.info(latency_note(large))
            how = "made of" if columns.made else "stored beside"
            console.info(
                f"{name}: {counted(len(columns.images), 'image')}, the small ones are {how} the large ones"
            )
        tell_of_copies({name: _large(split) for name, split in splits.items()}, console)
        (first, *_) = splits.values()
        if first.beside:
            console.info(
                f"--data: beside what is read, left out: {', '.join(first.beside)}"
            )
        return {name: splits.get(name, first) for name in STAND_INS}

    def plans(
        self, splits: Splits, native: Native, batching: Batching
    ) -> tuple[PatchPlan, PatchPlan]:
        """Return the plans of patches, and of whole images one a batch."""
        made = {name: split.columns.made for name, split in splits.items()}
        own = self.superres
        training = PatchPolicy(
            scale=own.scale,
            patch=self._patch,
            turns=own.turns,
            made=made["train"],
        )
        # to predict, the network gets images as large as they are
        scale = 1 if self.run.predict else own.scale
        validation = PatchPolicy(scale=scale, made=made["val"])
        return batching.pair(_plan, splits, training, validation)

    def tasks(self, splits: Splits, auxiliary_weight: float) -> tuple[Task, Task]:
        own = self.superres
        arch = self.model.arch or self.arch
        # a network that is not ours gives RGB, as EDSR does
        known = ARCHITECTURES.get(arch, ARCHITECTURES["edsr_baseline"])
        if own.psnr == "rgb" and known.of_luma:
            raise UserError(f"--psnr rgb: --arch {arch} gives the luma alone; --psnr y")
        loss = known.loss if own.pixel_loss == "auto" else own.pixel_loss
        train, val = (
            Superres(
                scale=own.scale,
                loss=loss,
                psnr=own.psnr,
                shave=self._shave,
                samples=len(splits[name].columns),
            )
            for name in STAND_INS
        )
        return train, val

    def predicting(
        self, files: Split[Any], classes: tuple[str, ...], folder: Path
    ) -> Predicting:
        """Return what enlarges each image. Raises UserError."""
        columns = Pairs(high=files.columns, images=np.arange(len(files.columns)))
        split = split_of(columns, files.source)
        _, task = self.tasks({"train": split, "val": split}, 0.0)
        assert isinstance(task, Superres)
        enlarging = Enlarging(
            **vars(task),
            folder=folder,
            source=split.source,
            turns=shown_by(files.columns),
            deep=np.asarray(files.columns.depth) > 8,
        )
        return Predicting(split=split, task=enlarging, write=write_enlarged)

    def building(self, columns: Columns) -> dict[str, Any]:
        return {"scale": self.superres.scale}

    def facts(self, plan: Plan) -> dict[str, Any]:
        """Return the side of the small patches, and what an epoch is made of."""
        assert isinstance(plan, PatchPlan)
        policy = plan.policy
        return {
            "image_size": max(plan.batches.canvas),
            "scale": policy.scale,
            "patch_size": policy.patch,
        }

    @property
    def _patch(self) -> int:
        """The side of the large patches. Raises UserError for one that is no multiple of the scale."""
        own = self.superres
        arch = self.model.arch or self.arch
        patch = own.patch_size or self.registry.native(arch).size * own.scale
        if patch % own.scale:
            less = patch // own.scale * own.scale
            raise UserError(
                f"--patch-size {patch} is no multiple of --scale {own.scale}; {less} or {less + own.scale}"
            )
        return patch

    @property
    def _shave(self) -> int:
        """The pixels along each edge that no figure counts."""
        own = self.superres
        return own.scale if own.shave is None else own.shave


def _plan(
    columns: Pairs,
    policy: PatchPolicy,
    *,
    batch_size: int,
    training: bool = True,
    **how: Any,
) -> PatchPlan:
    """Return the plan of training, or of validation, whose batches are single images of any size."""
    size = batch_size if training else 1
    return PatchPlan(columns, policy, batch_size=size, training=training, **how)


def _large(split: Split[Pairs]) -> Split[Part]:
    """Return the large images of pairs, each once."""
    pairs, source = split.columns, split.source
    assert isinstance(source, PairSource)
    return Split(
        columns=Part.from_places(pairs.high, pairs.images),
        source=source_of(source.source, pairs.images),
    )


KIND = SuperresKind()
