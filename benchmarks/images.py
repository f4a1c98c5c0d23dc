"""Images for the suites `loader` and `slow-storage`: the plan of a pass, our loaders, and PyTorch's and
DALI's own by hand.

Must not know what is timed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, islice, repeat
from typing import Any, cast

from benchmarks.baselines import dali, pytorch
from contracts import Batch, Feed, FileSource, Pixels, Split, UserError, World
from dataset.stores.folder import Folder
from loaders import open_loader
from plan.images import ImagePlan, ImagePolicy
from tasks.classification import Classification

PYTORCH = "pytorch"
OPENCV = "pytorch+opencv"
DALI = "dali"
BASELINES = (PYTORCH, OPENCV, DALI)
"""benchmarks/baselines/pytorch.py with PIL, and with OpenCV and pixels that stay uint8 (of stretched images);
benchmarks/baselines/dali.py with DALI's own reader of files."""

Epochs = Callable[..., Iterator[int]]
"""epoch -> valid samples of this rank's batches, one after the other; each is awaited by who asks. Of our
loaders also (epoch, batches): the last `batches` of them."""


def go_on(batch: Batch) -> None:
    """Let the loader go on: nothing more is launched for this batch."""
    batch.launched()


@contextmanager
def opened(
    settings: Any,
    name: str,
    data: Split,
    world: World,
    *,
    threads: int = 0,
    read_delay_s: float = 0.0,
    batches: int | None = None,
    use: Callable[[Batch], object] = go_on,
) -> Iterator[Epochs]:
    """Open a loader, or a loop by hand, that is ready to give this rank's batches; `batches`: so many an
    epoch instead of all; `use` is done with each batch of ours. Raises UserError.

    `settings` has batch_size, image_size, window, workers and reader; `threads` are DALI's where they are not
    as many as the workers.
    """
    policy = ImagePolicy(
        window=settings.window, image_size=settings.image_size, resize=round(settings.image_size * 256 / 224)
    )
    plan = ImagePlan.of(
        data.columns, policy, seed=0, batch_size=settings.batch_size, world_size=world.size, rank=world.rank
    )
    require(data, (batches or 1) * plan.global_batch_size)
    if name in (PYTORCH, OPENCV):
        samples = None if batches is None else batches * settings.batch_size
        yield _by_pytorch(settings, name, data, world, read_delay_s, samples)
        return
    if name == DALI:
        assert not read_delay_s and batches is None, (
            "its reader cannot be slowed down: see benchmarks.baselines.dali.Files"
        )
        yield _by_dali(settings, data, plan, world)
        return
    feed = Feed(
        plan=plan,
        source=Folder(data.columns, read_delay_s) if read_delay_s else data.source,
        columns=data.columns,
        targets=Classification(data.columns.label).targets,
        device=world.device,
        workers=threads if threads and name in ("dali-cpu", "dali-gpu") else settings.workers,
        threads=threads,
        pixels=Pixels(dtype="float16" if world.device.type == "cuda" else "float32"),
        reader=settings.reader,
    )
    with open_loader(name, feed) as loader:

        def epochs(epoch: int, batches: int | None = batches) -> Iterator[int]:
            first = 0 if batches is None else plan.samples - batches * plan.global_batch_size
            for batch in loader.batches(epoch, first):
                use(batch)
                yield batch.delivered

        yield epochs


def require(data: Split, samples: int) -> None:
    """Raise UserError when the data set has fewer."""
    if (found := len(data.columns)) < samples:
        raise UserError(
            f"--data has {found} files and {samples} are asked for; python -m scripts.link_set makes more "
            "files of few"
        )


def paths(data: Split) -> list[str]:
    """Return the files of a data set in folders, for loading by hand."""
    files = cast(FileSource, data.source)
    return [os.fsdecode(files.path(sample)) for sample in range(len(files))]


def _by_pytorch(
    settings: Any, name: str, data: Split, world: World, read_delay_s: float, samples: int | None
) -> Epochs:
    if name == OPENCV and settings.window != "stretch":
        raise UserError(f"--loaders {OPENCV} stretches the whole image: --window stretch, or leave it out")
    size = settings.image_size
    load = pytorch.by_opencv(size) if name == OPENCV else pytorch.by_pil(settings.window, size)
    loader = pytorch.loader(
        pytorch.Images(paths(data), data.columns.label.tolist(), load, read_delay_s),
        batch_size=settings.batch_size,
        workers=settings.workers,
        pinned=world.device.type == "cuda",
        world_size=world.size,
        rank=world.rank,
        samples=samples,
    )
    return lambda epoch: (len(images) for images, _ in pytorch.batches(loader, world.device, epoch))


def _by_dali(settings: Any, data: Split, plan: ImagePlan, world: World) -> Epochs:
    """Return DALI's batches, of which a pass has as many as a loader's. DALI reads on from pass to pass,
    ahead of them; a loader begins each anew."""
    try:
        import nvidia.dali  # noqa: F401
    except (ImportError, OSError) as error:
        raise UserError(
            f"--loaders {DALI}: DALI is not installed ({error}): pip install nvidia-dali-cuda120"
        ) from None
    loader = dali.images(
        window=settings.window,
        size=settings.image_size,
        batch_size=settings.batch_size,
        threads=settings.workers,
        device=world.device,
        world_size=world.size,
        rank=world.rank,
        files=paths(data),
        labels=data.columns.label.tolist(),
    )
    batches = chain.from_iterable(repeat(loader))  # epoch after epoch
    return lambda epoch: (len(batch[0]["images"]) for batch in islice(batches, plan.steps()))
