"""The loader, its workers and its batches."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from saturate.settings.cli import Settings
from saturate.settings.types import AUGMENTED, STILLS, STORED, NotNegative, setting


class Loading(Settings):
    """The loader, its workers and its batches."""

    loader: str = setting("auto", evaluation="own")
    """Images: {image loaders}. Videos: {video loaders}. Pairs of --task superres: {pair loaders}. auto =
    the fastest: those that can run here are measured with the training step beside them, in 40 s at most;
    of those within 4 % of the best it is what auto is to evaluate, else the first as named here. The
    answer is kept beside the manifests for this machine, data set, network and all settings that change
    the rate. A resumed run keeps its loader. To evaluate, auto is dali-gpu with a GPU (dali-fed, where
    samples are no files of their own), else torchvision; of videos nvdec+pyav where the GPU's engines can
    be used, else pyav."""
    reader: Literal["auto", "nvimgcodec", "torchvision", "pil", "opencv"] = setting(
        "auto",
        tasks=("classification", "detection", "superres"),
        needs=("loader", "torchvision", "paired"),
        evaluation="own",
    )
    """Decoder of the loaders torchvision and paired, of which --loader auto then takes one; auto = the fastest
    whose pixels are PIL's, bit for bit."""
    batch_size: PositiveInt | Literal["auto"] = setting(64, evaluation="free")
    """Samples in a micro-batch of one rank. auto = about the most that a GPU trains and validates, which some
    trials find out (--global-batch-size keeps the recipe); a resumed run keeps its own."""
    val_batch_size: PositiveInt | None = setting(
        None, tasks=AUGMENTED, changes_rate=False, evaluation="free"
    )
    """Samples in a validation batch of one rank; never more than there are. Default: --batch-size."""
    workers: Annotated[int, Field(ge=0)] | None = setting(
        None, resume="free", evaluation="own", ranks="own"
    )
    """Worker processes (torchvision, dali-fed, all loaders of videos) or threads (dali-cpu, dali-gpu) of each
    rank. Of videos those that decode on a GPU start more, which only read, and nvdec+pyav fewer that decode.
    Default: CPU cores / local ranks, less one; with two cores beside a GPU both."""
    decode_threads: PositiveInt | None = setting(
        None,
        tasks=STILLS,
        needs=("loader", "dali-fed"),
        resume="free",
        evaluation="own",
        ranks="own",
    )
    """dali-fed: threads of DALI that decode what the workers have read. Default: --workers."""
    pin_memory: bool = setting(True, resume="free", evaluation="own", ranks="own")
    """Copy to the GPU from page-locked memory; false shows what that is worth."""
    read_threads: PositiveInt | None = setting(
        None, tasks=STORED, resume="free", evaluation="own", ranks="own"
    )
    """torchvision, dali-fed, paired: reads that each worker has under way together, of samples that are no files of
    their own or lie behind URLs. Default: 16 behind URLs; 8 in a store of this machine while a read takes
    longer than 0.3 ms, else 1."""
    read_delay_ms: NotNegative = setting(
        0.0, resume="free", evaluation="own", ranks="own"
    )
    """Make each read of a file take this much longer, in milliseconds: a run that slows down is bound by its
    storage."""
