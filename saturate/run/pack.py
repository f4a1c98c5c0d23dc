"""`python -m scripts.pack TO --from DATA`: the images of any source in one LMDB a split, in tar shards,
Arrow files or folders.

Bytes, names, order and classes stay as they are, so that the fingerprint does, and --resume goes on over TO.
With --pixels only the bytes are others: a binary PPM of each image, or an LZ4 frame of one, read without a decoder.
With --max-side larger images become JPEGs of that size.
The store is then scanned as any other: its names, labels and classes are compared with what was to be written,
and each sample by a digest. TO has its name once it is whole.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

from saturate.contracts import Source, Split, UserError, counted
from saturate.dataset.images.columns import TRANSPOSE, Images
from saturate.dataset.images.headers import opened
from saturate.dataset.images.pixels import stored
from saturate.dataset.open import open_splits
from saturate.dataset.stores import source_named
from saturate.loaders.images.decoders import pillow_rgb, shown_rgb
from saturate.plan.geometry import turned_pixels
from saturate.report.console import Console
from saturate.run._foreign import files_of, open_rows
from saturate.run._stores import FORMATS, Packed, Writer, require
from saturate.run.folders import filled
from saturate.run.program import Parser
from saturate.settings.config import GROUP_OF, build
from saturate.system import storage
from saturate.system.exit_codes import of_program

Progress = Callable[[int, int, str], None]
Change = Callable[[int, bytes], bytes]
"""(sample, its bytes) -> what is written."""
THREADS = 16
"""Reads at once: the storage is waited for, not the processor."""
QUALITY = 92
"""Quality of the JPEGs of --max-side, by libjpeg's scale."""
MOST_EXIF = 65_533
"""Bytes of EXIF that a JPEG can hold; of more, which other formats can, the orientation alone is kept."""
ORIENTATION = ExifTags.Base.Orientation
BATCH = 64 << 20
"""Bytes of a commit."""
DIGEST = 16
"""Bytes of a sample's digest."""


def digest(content: bytes) -> bytes:
    """Return the digest by which a sample is compared."""
    return hashlib.blake2b(content, digest_size=DIGEST).digest()


def read_ahead(
    source: Source, samples: Iterable[int], change: Change | None = None
) -> Iterator[bytes]:
    """Yield the bytes of samples in their order, changed, a few more under way in threads than there are of these."""
    rest = iter(samples)

    def read(sample: int) -> bytes:
        content = storage.patiently(
            partial(source.read, sample),
            partial(source.name, sample),
            "start again",
        )
        return change(sample, content) if change else content

    with ThreadPoolExecutor(THREADS) as pool:
        jobs = deque[Future[bytes]](
            pool.submit(read, sample) for sample in islice(rest, 2 * THREADS)
        )
        try:
            while jobs:
                yield jobs.popleft().result()
                jobs.extend(pool.submit(read, sample) for sample in islice(rest, 1))
        finally:
            pool.shutdown(cancel_futures=True)


def write(
    split: Split[Images], writer: Writer, progress: Progress, change: Change | None
) -> list[bytes]:
    """Write all samples, and return the digest of each."""
    columns = split.columns
    batch: list[Packed] = []
    digests: list[bytes] = []
    size = 0
    everything = range(len(columns))
    for sample, content in enumerate(read_ahead(split.source, everything, change)):
        batch.append(Packed(columns.entry(sample), int(columns.label[sample]), content))
        digests.append(digest(content))
        size += len(content)
        if size >= BATCH or sample == everything[-1]:
            writer.write(batch)
            progress(sample + 1, len(columns), "writing")
            batch = []
            size = 0
    return digests


def as_pixels(
    columns: Images, sample: int, content: bytes, *, compressed: bool
) -> bytes:
    """Return a sample's pixels, by dataset.images.pixels; of one that cannot be decoded its bytes.

    Raises UserError where a package is missing.
    """
    turns = columns.exif
    try:
        image = shown_rgb(content, 0 if turns is None else int(turns[sample]))
    except UserError:
        raise
    except Exception:  # Pillow raises what it likes, and training will name the sample
        return content
    return stored(np.asarray(image), compressed=compressed)


def smaller(columns: Images, sample: int, content: bytes, *, side: int) -> bytes:
    """Return a sample as a JPEG whose longer side is `side` pixels; the bytes themselves of one that is not larger,
    or cannot be decoded. Where `columns` are as viewers show them it is turned, else EXIF stays as it was.
    """
    height, width = int(columns.height[sample]), int(columns.width[sample])
    share = side / max(height, width)
    if share >= 1:
        return content
    turn = 0 if columns.exif is None else int(columns.exif[sample])
    swapped = turn >= TRANSPOSE
    height, width = (width, height) if swapped else (height, width)
    size = max(round(width * share), 1), max(round(height * share), 1)
    try:
        # a JPEG is decoded at half its size or less, where twice what is wanted is left
        image = pillow_rgb(content, (2 * size[0], 2 * size[1]))
        about = _about(content, keeps_exif=columns.exif is None)
    except UserError:
        raise
    except Exception:  # as of `as_pixels`
        return content
    image = image.resize(size, Image.Resampling.LANCZOS)
    image = Image.fromarray(
        np.ascontiguousarray(turned_pixels(np.asarray(image), turn))
    )
    written = io.BytesIO()
    image.save(written, "JPEG", quality=QUALITY, **about)
    return written.getvalue()


def _about(content: bytes, *, keeps_exif: bool) -> dict[str, object]:
    """Return what an image file says beside its pixels, as far as a JPEG of RGB can say it, for Pillow's `save`."""
    about: dict[str, object] = {}
    with warnings.catch_warnings():
        # a damaged EXIF block is no business of the pixels
        warnings.simplefilter("ignore")
        with opened(content) as file:
            profile = file.info.get("icc_profile") or b""
            # others are of pixels of CMYK, or of grey
            if profile[16:20] == b"RGB ":
                about["icc_profile"] = profile
            # Pillow has turned a TIFF itself
            if keeps_exif and file.format != "TIFF":
                exif = file.getexif()
                if len(exif.tobytes()) > MOST_EXIF:
                    turn = exif.get(ORIENTATION, 1)
                    exif.clear()
                    exif[ORIENTATION] = turn
                about["exif"] = exif
    return about


def verify(split: Split[Images], digests: Sequence[bytes], progress: Progress) -> None:
    """Raise UserError where a sample of the store is not, bit for bit, what was read."""
    for sample, content in enumerate(
        read_ahead(split.source, range(len(split.source)))
    ):
        if digest(content) != digests[sample]:
            raise UserError(
                f"{split.source.name(sample)} was not read back as it was written; is the disk well?"
            )
        progress(sample + 1, len(split.source), "verifying")


def pack_split(
    split: Split[Images],
    name: str,
    form: str,
    work: Path,
    progress: Progress,
    change: Change | None = None,
) -> None:
    """Write one split, changed, into the folder `work`. Raises UserError and OSError."""
    columns = split.columns
    names = [columns.entry(sample) for sample in range(len(columns))]
    require(form, names, columns)
    used = sorted(columns.classes[label] for label in np.unique(columns.label))
    if form == "folder" and name == "train" and used != [*columns.classes]:
        raise UserError(
            "--format folder has the classes that have an image, sorted by name, and --data has others, or "
            "in another order; take --format tar"
        )
    with closing(FORMATS[form](work, name)) as writer:
        digests = write(split, writer, progress, change)
        writer.finish(names, columns)
    classes = None if name == "train" else columns.classes
    with tempfile.TemporaryDirectory() as scans:
        packed = source_named(form).open(
            work, name, classes=classes, cache=Path(scans), progress=progress
        )
        same = packed.columns.classes == columns.classes
        same = same and np.array_equal(packed.columns.label, columns.label)
        if not same or names != [
            packed.columns.entry(sample) for sample in range(len(packed.columns))
        ]:
            raise UserError(
                f"{writer.store} was not read back with the names and labels that were written; try again"
            )
        verify(packed, digests, progress)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser("pack", __doc__)
    parser.add_argument(
        "target", metavar="TO", type=Path, help="folder of the stores, for --data"
    )
    parser.add_argument(
        "--from",
        "--data",
        dest="data",
        metavar="DATA",
        required=True,
        help="as --data of train.py",
    )
    parser.add_argument(
        "--format", choices=sorted(FORMATS), default="lmdb", help="default: lmdb"
    )
    parser.add_argument(
        "--pixels",
        choices=["raw", "lz4"],
        help="decode images, and write their pixels in place of their bytes",
    )
    parser.add_argument(
        "--max-side",
        metavar="N",
        type=int,
        help="make larger images JPEGs of quality 92 whose longer side has N pixels",
    )
    parser.add_argument(
        "--exif",
        choices=["stored", "shown"],
        help="as of training, for --pixels and --max-side",
    )
    parser.add_argument(
        "--images", help="dataset of HDF5, or feature of TFRecord, with the images"
    )
    parser.add_argument(
        "--labels", help="likewise with the labels; {split} in both is train and val"
    )
    parser.add_argument("--source", default="auto", help="as of training")
    parser.add_argument(
        "--val-share", type=float, help="as of training: this share goes to val"
    )
    parser.add_argument("--val-group", help="as of training")
    parser.add_argument("--manifest-dir", type=Path)
    parser.add_argument("--lmdb-label")
    parser.add_argument("--label-key")
    options = parser.parse_args(arguments)
    return of_program("pack", lambda: _run(options), ValueError)


def _run(options: argparse.Namespace) -> int:
    chosen = {
        name: value
        for name in vars(options).keys() & GROUP_OF.keys()
        if (value := getattr(options, name)) is not None
    }
    settings = build(chosen).data
    side = options.max_side
    if side is not None and (side < 1 or options.pixels):
        raise UserError(
            f"--max-side {side} is a length in pixels, and not with --pixels"
        )
    console = Console()
    files = files_of(Path(options.data))
    splits = (
        open_rows(files, options.images, options.labels, console)
        if files
        else open_splits(settings, loader="torchvision", console=console)
    )
    target, form = options.target, options.format
    try:
        with filled(target, Path(options.data)) as work:
            for name, split in splits.items():
                change = None
                if options.pixels:
                    compressed = options.pixels == "lz4"
                    change = partial(as_pixels, split.columns, compressed=compressed)
                elif side:
                    change = partial(smaller, split.columns, side=side)
                with console.counting(name) as progress:
                    pack_split(split, name, form, work, progress, change)
                console.info(f"{name}: {counted(len(split.columns), 'sample')}")
    except OSError as error:
        if error.filename is not None:
            raise
        # what fails in the middle of a write names no file
        raise UserError(
            f"{target} cannot be written: {error.strerror}; make room there, and start again"
        ) from None
    print(f"{target}: --data {target} --source {form}")
    return 0
