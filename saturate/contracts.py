"""The nouns that rooms share. No behaviour beyond reading a field or saying a line, and no import of ours.

file -> columns -> Plan -> Rows -> Loader -> Batch -> Task.losses -> Step
        what       which,          pixels             what it means
        exists     which window
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Protocol,
    TypeVar,
    runtime_checkable,
)

import numpy as np

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, Any]
Fetch = Callable[[Array, Array], None]
"""fetch(now, coming), ids of samples: block until the columns have the headers of `now`; prefetch those of
`coming`, in the order in which they will be asked for."""


LONGEST_LINE = 2_000
"""Characters of a line that a program prints; what is longer echoes a file."""
LONGEST_MISTAKE = 580
"""Characters of a UserError."""


def utf8(text: str) -> str:
    """Return a text as all of our files have it: a byte of a name that is no UTF-8 is written as \\xff."""
    if text.isascii():
        return text
    named = re.sub(
        "[\udc80-\udcff]", lambda byte: f"\\x{ord(byte[0]) - 0xDC00:02x}", text
    )
    return named.encode("utf-8", "backslashreplace").decode()


def escaped(text: str) -> str:
    """Return a text on one line, without a character that acts on a terminal.

    Names of files and classes may be a stranger's, and hold line ends or a terminal's escape sequences.
    """
    if text.isprintable():
        return text
    text = utf8(text)
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def one_line(text: str, longest: int = LONGEST_LINE) -> str:
    """Return a text as one line for a terminal: `escaped`, and of a long one without its middle."""
    text = escaped(text)
    if len(text) <= longest:
        return text
    begin = longest // 2
    end = longest // 3  # it says what to do
    return (
        f"{text[:begin]} ... ({len(text) - begin - end:,} characters) ... {text[-end:]}"
    )


def counted(count: float, noun: str) -> str:
    """Say a number of things: '1 class', '1,200 classes', '0.5 epochs'."""
    ending = "es" if noun.endswith(("s", "x", "tch")) else "s"
    number = f"{count:.3g}" if isinstance(count, float) else f"{count:,}"
    return f"{number} {noun}{ending * (number != '1')}"


class UserError(Exception):
    """A user's mistake: one line that says what was got, what is allowed and what to do. Exit code 2.

    Further arguments are answers to several things at once, each a line of its own.
    """

    def __str__(self) -> str:
        message, *answers = self.args or ("",)
        first = one_line(str(message), LONGEST_MISTAKE)
        return "\n".join([first, *map(one_line, answers)])


class PeerLost(UserError):
    """Another rank has ended or does not answer: a new attempt may go on with `--resume auto`. Exit code 1."""


class FaultyPlan(ValueError):
    """A plan has drawn rows that no loader can follow, an error of its code; says plan, field and row."""


class NotFinite(Exception):
    """The loss, or what a checkpoint holds, stopped being a number; names the step and which it is. Exit code 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """One micro-batch of one rank, as numbers. Drawn by the plan, carried through every room unchanged.

    What one row says, with x to the right and y down:

        stored image                          canvas of the batch, its height and width are `padded`
        +-----------------------------+       +-----------------------------+
        |    region                   |       | output, `sizes`             |
        |    +--------------------+   |       |--------------------+        |
        |    |  window            |   |       |     place          |        |
        |    |  +------------+    |   | resize|     +---------+    |        |
        |    |  |            |    |   | ----> |     |         |    |   0    |
        |    |  |            |    |   |  turn |     |         |    |        |
        |    |  +------------+    |   |       |     +---------+    |        |
        |    +--------------------+   |       |          0         |        |
        |                             |       |--------------------+        |
        +-----------------------------+       |             0               |
                                              +-----------------------------+

    The region is decoded, and nothing outside of it is seen. The window, a part of the region, fills the
    place, a part of the output. The output lies at the top left of the canvas. What no place covers is 0 once
    normalised.

    A turn permutes the pixels of the whole output, after the resize: bit 2 transposes it (row y, column x
    becomes row x, column y), then bit 1 flips it top to bottom, then bit 0 mirrors it left to right. `sizes`,
    `places` and `canvas` are those AFTER the turn: of a row that is transposed, the image is resized to a
    height that is the width of its place. A turn acts on each frame of a clip.

    With `exif` image, region and window are those that viewers show, after the turn that EXIF asks for.
    plan.geometry.upright says what that is of the stored pixels, and EXIF's turn is done with the row's own.

    Validation's last batch is padded by rows with id -1, `valid` False, and the numbers of some real row.
    Batch norm would count such rows, so in training `fillers` end the last step: samples of other steps,
    which a loader decodes like any row. Behind the loader they have id -1 and are not `valid`, since each
    sample counts in a row of its own. Axes: B samples, T frames, N operations of P numbers.
    """

    ids: Array  # int64 [B], index into the manifest
    regions: Array  # int64 [B, 4], x0 y0 x1 y1 in stored pixels; of videos displayed, with `exif` shown ones
    windows: Array  # float64 [B, 4], x0 y0 x1 y1 in REGION coordinates
    sizes: Array  # int64 [B, 2], height and width of the output in pixels
    turns: Array  # uint8 [B], 0 to 7: mirror 1 + flip 2 + transpose 4
    valid: Array  # bool [B]
    # bool [B], of training: rows that show a sample which counts in another row; None = none
    fillers: Array | None = None
    # uint64 [B], of training: the micro-batch's key, the same in all of its rows
    keys: Array | None = None
    # uint64 [B], of training: what --transforms draws from, each row's own
    seeds: Array | None = None
    # int64 [B, T], display-order indices into the pts column
    frames: Array | None = None
    # float32 [B, N, 1 + P], in order: which operation (plan/ops.py), its numbers
    ops: Array | None = None
    # int64 [B, 4], x0 y0 x1 y1 in the output; None = all of it
    places: Array | None = None
    # int64 [B, 3], the turn that shows a stored image, and height and width as shown; None = as stored
    exif: Array | None = None
    # height and width of the batch's images; None = the largest size
    canvas: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def placed(self) -> Array:
        """Return int64 [B, 4], x0 y0 x1 y1 of what the windows fill in the outputs: `places`, or all."""
        if self.places is not None:
            return self.places
        return np.concatenate([np.zeros_like(self.sizes), self.sizes[:, ::-1]], axis=1)

    @property
    def filled(self) -> bool:
        """Whether every window fills all of the canvas, so that nothing is left to be 0."""
        height, width = self.padded
        return bool((self.placed == (0, 0, width, height)).all())

    @property
    def padded(self) -> tuple[int, int]:
        """Return height and width that every image of the batch has once padded."""
        return self.canvas or (int(self.sizes[:, 0].max()), int(self.sizes[:, 1].max()))


def do_nothing() -> None:
    """Do nothing: `launched` of a loader that has no thread."""


@dataclass(slots=True, kw_only=True)
class Batch:
    """One micro-batch on the device, yours until you ask for the next one.

    The loader orders the streams itself: what you launch on the current stream after you got the batch sees
    finished pixels, and everything launched there before you ask for the next batch may still read this one.
    """

    # [B, 3, H, W] channels_last (clips: [B, 3, T, H, W]), normalised, in the step's input dtype
    images: torch.Tensor
    sizes: torch.Tensor  # int64 [B, 2], the part of each image that is no padding
    targets: dict[str, torch.Tensor]
    valid: torch.Tensor  # bool [B], on the device
    ids: Array  # int64 [B], on the HOST; -1 for padding and fillers
    # ids whose pixels could not be decoded; their `valid` is False
    failed: tuple[int, ...] = ()
    # what the batch was made of, on the HOST; `valid` is the batch's
    rows: Rows | None = None
    # the targets before they were copied: cuts packed ones without asking the device
    host: dict[str, Array] = field(default_factory=dict)
    # around the copy to the device, timed
    transfer: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
    # time in --transforms, of its workers' mean; None: there are none
    transforms_ms: float | None = None
    # call it, or not, when you need the interpreter no more for a while: the loader then goes on
    launched: Callable[[], None] = do_nothing

    @property
    def delivered(self) -> int:
        """Return how many rows have a sample that was decoded, as the host knows: what a rate counts."""
        return int(np.count_nonzero(self.ids >= 0)) - len(self.failed)

    @property
    def shows_sample(self) -> Array:
        """Return bool [B], which rows show a sample, their own or another row's, as the host knows."""
        if self.rows is None:
            return np.ones(len(self.ids), bool)
        valid, fillers = self.rows.valid, self.rows.fillers
        return valid if fillers is None else valid | fillers


StageSeconds = Mapping[str, tuple[float, float]]
"""Stage of a loader (loaders/_stages.py) -> seconds and CPU seconds in it."""


@dataclass(frozen=True, slots=True)
class RateWindow:
    """The samples of all ranks, and of this one, in `seconds` of active wall clock that ended in `epoch`."""

    samples: int
    own_samples: int
    seconds: float
    epoch: int
    # of this rank's loader, in those seconds
    stages: StageSeconds = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Return the samples a second of all ranks."""
        return self.samples / self.seconds


class World(Protocol):
    """Who takes part. Implemented by engine/distributed.py; the other rooms receive it."""

    rank: int
    size: int
    device: torch.device

    def barrier(self) -> None:
        """Wait until every rank's host is here. Does not touch the device."""

    def sum(self, values: Array) -> Array:
        """Return the elementwise sum over the ranks of an int64 or float64 host array, exact for int64."""

    def gather(self, value: object) -> list[Any]:
        """Return every rank's (picklable) value, in rank order, on every rank."""


class Phases(Protocol):
    """A stopwatch for the phases of a step, on the device's own timeline. Implemented by report/phases.py."""

    # milliseconds of each phase, for each step that the last `read` covered
    steps: list[dict[str, float]]

    def mark(self, name: str) -> None:
        """End the phase `name`, which began at the mark before it."""

    def span(self, name: str, start: torch.cuda.Event, end: torch.cuda.Event) -> None:
        """Add the time between two timed events of another stream, such as a transfer."""

    def took(self, name: str, milliseconds: float) -> None:
        """Add a time of the step under way that was measured elsewhere, such as in workers."""

    def step(self) -> None:
        """Count one step, which is complete."""

    def interrupt(self) -> None:
        """Leave the time since the last mark out: it belongs to no phase."""

    def read(self) -> dict[str, float]:
        """Return the mean ms a step of each phase since the last read. Does not wait for the device."""


class Columns(Protocol):
    """What is known of n samples, a column each: a manifest of files, or its stand-in.

    These are read of samples of every kind; the classes below say what is read of one kind beside them. A plan
    reads `height`, `width`, `exif` and `fetch` alone.
    """

    def __len__(self) -> int: ...

    @property
    def height(self) -> Array:
        """Return int [n], pixels: as stored, of videos as displayed, with `exif` as viewers show them."""

    @property
    def width(self) -> Array:
        """Return int [n], pixels, as `height`."""

    @property
    def size(self) -> Array:
        """Return int [n], bytes that are read for a sample; 0 of one that is no file."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes, () where samples have none."""

    @property
    def fingerprint(self) -> str:
        """Return what is the same for the same data, here or elsewhere."""

    @property
    def rejected(self) -> int:
        """Return how many things the scan has left out."""

    @property
    def exif(self) -> Array | None:
        """Return uint8 [n], the turns that show stored images; None where they are taken as stored."""

    @property
    def fetch(self) -> Fetch | None:
        """Return what reads the headers of samples before they are used; None where all are there."""


class LabelColumns(Columns, Protocol):
    """Samples that have a class each, or with `several` a set of classes."""

    @property
    def label(self) -> Array:
        """Return int [n], places in `classes`, or in `several`."""

    @property
    def several(self) -> Array | None:
        """Return bool [sets, C], the classes of each set; None where a sample has one class."""


class ImageColumns(Columns, Protocol):
    """Images that are files: what a decoder asks of them before it opens one (dataset/images/columns.py)."""

    @property
    def format(self) -> Array:
        """Return uint8 [n], places in dataset.images.columns.FORMATS."""

    @property
    def depth(self) -> Array:
        """Return uint8 [n], bits a component."""

    @property
    def components(self) -> Array:
        """Return uint8 [n]: 1 grey or palette, 2 grey + alpha, 3 colour, 4 CMYK or RGBA."""

    @property
    def rgb(self) -> Array:
        """Return bool [n], JPEGs that store red, green and blue as they are."""

    @property
    def whole(self) -> Array:
        """Return bool [n], False where a file may be cut short."""


class ClipColumns(Columns, Protocol):
    """Segments of videos, as a plan of clips reads them (dataset/videos/columns.py)."""

    @property
    def first(self) -> Array:
        """Return int64 [n], the segment's first frame, counted from the file's first in display order."""

    @property
    def frames(self) -> Array:
        """Return int64 [n], frames of the segment."""

    @property
    def time_base_num(self) -> Array:
        """Return int [n], the numerator of the seconds a tick."""

    @property
    def time_base_den(self) -> Array:
        """Return int [n], the denominator of the seconds a tick."""

    def pts(self, sample: int) -> Array:
        """Return int64 [F], strictly increasing: the times, in ticks, of the frames of the sample's file."""


class BoxColumns(Columns, Protocol):
    """Images with annotations, as plans and targets of detection read them (dataset/coco/columns.py).

    Axes: n images, m annotations, C categories, K keypoints.
    """

    @property
    def with_boxes(self) -> Array:
        """Return int64, ascending: the images that have a usable annotation."""

    @property
    def annotation_offsets(self) -> Array:
        """Return int64 [n + 1]: where each image's annotations begin."""

    @property
    def boxes(self) -> Array:
        """Return float64 [m, 4], x y width height; may reach out of the image."""

    @property
    def usable(self) -> Array:
        """Return bool [m], whether an annotation is trained on."""

    @property
    def category(self) -> Array:
        """Return int32 [m], places in `class_of`."""

    @property
    def class_of(self) -> Array:
        """Return int64 [C], the class number of each category."""

    @property
    def polygon_offsets(self) -> Array:
        """Return int64 [m + 1]: where each annotation's polygons begin."""

    @property
    def point_offsets(self) -> Array:
        """Return int64 [polygons + 1]: where each polygon's points begin."""

    @property
    def points(self) -> Array:
        """Return float64 [points, 2], x y in stored pixels."""

    @property
    def rle_offsets(self) -> Array:
        """Return int64 [m + 1]: where each annotation's run lengths begin."""

    @property
    def rle(self) -> Array:
        """Return uint32, lengths of the runs of 0 and 1 in turn, column by column, 0 first."""

    @property
    def keypoints(self) -> Array:
        """Return float64 [m, K, 3], x y visibility; K may be 0."""

    @property
    def keypoint_mirror(self) -> Array:
        """Return int64 [K], which keypoint each becomes when the image is mirrored left to right."""


class PairColumns(Columns, Protocol):
    """Pairs of images, `patches` samples of each (dataset/pairs/columns.py)."""

    @property
    def patches(self) -> int:
        """Return how many samples an image has."""


C_co = TypeVar("C_co", bound=Columns, covariant=True)


class Source(Protocol):
    """Row -> bytes, wherever they lie: picklable, cheap to copy, opens nothing before it reads.

    A source of your own derives from it for what is said here already.
    """

    files: bool  # each sample is a file of its own: this is a FileSource
    read_delay_s: float
    remote: bool = False  # samples lie behind URLs
    reads_at_once: int = 1  # reads that a worker has under way at once
    # a worker has one read under way only, while the storage answers at once: threads cost more than that
    alone_while_fast: bool = False

    def __len__(self) -> int: ...

    def name(self, sample: int) -> str:
        """Return what messages call the sample: printable, on one line. Nothing is ever opened by it."""

    def read(self, sample: int) -> bytes:
        """Return the sample's bytes, `read_delay_s` later than the storage gave them.

        Raises UserError, with the sample's name, when they are gone or their number has changed, and OSError
        when the storage fails.
        """

    @contextmanager
    def opened(self, sample: int) -> Iterator[tuple[int, Callable[[int, int], bytes]]]:
        """Open a sample to read parts of it: its size, and what reads a range (offset, length).

        Raises what `read` does. A source that can read a part alone does so.
        """
        data = self.read(sample)
        yield len(data), lambda offset, length: data[offset : offset + length]

    def check(self, sample: int, size: int) -> None:
        """Raise UserError when `size` bytes is not what the manifest recorded."""


class FileSource(Source, Protocol):
    """A source whose samples are files, for decoders that open them.

    Only a source turns a sample into a path.
    """

    def path(self, sample: int) -> bytes:
        """Return the absolute path of the sample's file, in the file system's encoding."""

    def paths(self, samples: Array) -> Array:
        """Return uint8 [B, L], the paths of many samples at once, each padded with NUL."""


MAX_PIXELS = 178_956_970  # width x height, beyond which Pillow refuses an image: 1 GiB as 16-bit RGB


@dataclass(frozen=True, slots=True, kw_only=True)
class Split(Generic[C_co]):
    """Training or validation data: the columns (a manifest or its stand-in) and a source of their bytes."""

    columns: C_co
    source: Source
    beside: Sequence[str] = ()  # names at the top of --data that are not read


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """What all micro-batches of a plan have in common: loaders build graphs and memory by it."""

    rows: int
    canvas: tuple[int, int]  # the largest height and width of a batch's images
    varies: bool = False  # each batch has a canvas of its own
    channels: int = 3
    frames: int = 0  # of a clip; 0: images
    # `Rows.filled` holds for every batch: its images have one size, and leave nothing free
    filled: bool = True
    # a row may be transposed: before that, images may be higher or wider than `canvas`
    transposed: bool = False
    ops: bool = False  # batches have operations, `Rows.ops`
    # how many times as large the second image of each row is, plan.patches.HIGH; 0: there is none
    scale: int = 0
    # rows that follow one another and show the same frames: in a validation the crops of a clip
    same_frames: int = 1
    # micro-batches that follow one another and show the same images, in other patches
    same_images: int = 1

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Return the largest shape that a model gets for one row: (3, H, W), of a clip (3, T, H, W)."""
        frames = (self.frames,) if self.frames else ()
        return self.channels, *frames, *self.canvas


class Plan(Protocol):
    """Which sample, which window, which flip, in which order, for one rank."""

    @property
    def samples(self) -> int:
        """Return the number of samples in the whole data set."""

    @property
    def views(self) -> int:
        """Return how often an epoch shows each sample: clips x crops in a validation of videos, else 1."""

    @property
    def batches(self) -> BatchSpec:
        """Return what all micro-batches of a rank have in common."""

    @property
    def global_batch_size(self) -> int:
        """Return G = world size * batch size * accumulation."""

    @property
    def first_epochs(self) -> tuple[int, ...]:
        """Return the first epoch of each size of images, the smallest first; (0,) where all are alike."""

    def pixels(self, epoch: int) -> int:
        """Return the pixels of an image in an epoch, where epochs have sizes of their own; else 1."""

    @property
    def ordering(self) -> str:
        """Return what the order of an epoch depends on, beside the data.

        An epoch that was begun with another ordering cannot be resumed exactly.
        """

    def rows(self, epoch: int, first: int) -> Sequence[Rows]:
        """Return this rank's micro-batches of an epoch behind its first `first` samples, drawn on access."""

    def steps(self, first: int = 0) -> int:
        """Return the optimiser steps left in an epoch after `first` samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """What every loader turns decoded pixels into: (value / 255 - mean) / std, in `dtype`."""

    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    dtype: str = "float32"  # of the step's input: float16, bfloat16 or float32
    # how loaders of images resize: a name of plan.windows.SUPPORT
    interpolation: str = "bilinear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed(Generic[C_co]):
    """All that a loader needs. It has no randomness, no rank arithmetic and no idea what a label means."""

    plan: Plan
    source: Source
    columns: C_co
    targets: Callable[[Rows], dict[str, Array]]
    device: torch.device
    workers: int  # processes or threads that read and decode; as many reads are under way, or more
    pixels: Pixels = Pixels()
    # how many decode behind worker processes; 0 = as many as workers
    threads: int = 0
    reader: str = "auto"  # decoder of the torchvision loader
    pinned: bool = True  # copy to the device from page-locked memory
    # --transforms
    transforms: Mapping[str, Callable[[Array, int], Array]] = field(
        default_factory=dict
    )


@dataclass(slots=True)
class Counts:
    """What a loader of clips has done for the batches that it has handed over."""

    decoded: int = 0  # frames that decoders went through
    delivered: int = 0  # frames that clips have
    # sort of file -> clips that another decoder did
    fallbacks: Counter[str] = field(default_factory=Counter)
    # sort, and ", refused" or ", lost" -> why, of the first clip
    refusals: dict[str, str] = field(default_factory=dict)


@runtime_checkable
class Loader(Protocol):
    """Turns rows into batches on the device; a context manager. Each file in loaders/ has an `open(feed)`."""

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """Yield batches in plan order. It may be called again at any time, which ends the iterator before."""

    in_flight: int  # batches that may be ready or under way before anyone asks for them
    # lines to say before training; () where there is nothing to say
    notes: Sequence[str]
    reader: str  # name of the decoder that it chose; "" where there is no choice
    counts: Counts  # of the batches handed over; stays 0 in loaders of images; a ceiling puts it back

    @property
    def decoded_again(self) -> Callable[[int], Generator[Batch]] | None:
        """Return what yields batches of an epoch's sizes without an end, which the loader's decoder makes of files that
        workers have read once; None where no decoder stands behind workers.
        """

    def stage_seconds(self, *, anew: bool = False) -> StageSeconds:
        """Return the seconds of each stage since it was opened; {} where it has none. For any thread.

        `anew`: what a stage under way has taken until now is left out of later readings.
        """

    def awaited(self) -> str:
        """Return what a late batch waits for, such as a worker and its file; "" = unknown. For any thread."""

    def close(self) -> None:
        """End every thread, process and buffer within seconds; again without effect.

        A read that hangs is waited for where this process reads, as in threads of DALI's.
        """

    def __enter__(self) -> Loader: ...

    def __exit__(self, *exc: object) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number that a validation gives: its name, how it is printed and where it is shown."""

    name: str  # in Metric.result, summary.json and metrics.jsonl; TensorBoard's tag is val/<name>
    title: str = ""  # in the table that ends a run; "" = the table leaves it out
    # "%": a share in [0, 1], printed in percent; any other stands behind the number; "" = none
    unit: str = ""
    # in the console's line after a validation
    shown: Literal["always", "unless zero", "never"] = "always"
    chart: str = ""  # of TensorBoard's CUSTOM SCALARS page: figures with the same one share it; "" = none
    larger_is_better: bool = True  # asked of the figure that picks best.pt


class Reported(Protocol):
    """What report/ reads of a task: a tasks.kind.TaskKind."""

    @property
    def figures(self) -> Sequence[Figure]:
        """Return every figure of a validation, in the order of the table; the first one picks best.pt."""

    @property
    def loss_parts(self) -> bool:
        """Whether Task.parts names parts of the loss, which then have a chart."""

    @property
    def predicts(self) -> bool:
        """Whether --predict is for this task."""

    @property
    def exports(self) -> bool:
        """Whether a network that `predicts` can be exported: its answers are logits or boxes alone."""


class Pending(Protocol):
    """Figures of a validation that are being made by rank 0 while training goes on."""

    def done(self) -> bool:
        """Whether `result` would not have to wait."""

    def result(self) -> dict[str, Any]:
        """Wait; return the figures on rank 0, with `extras` and the `seconds` they took, else {}."""

    def drop(self) -> None:
        """Give up: nobody will ask for them."""


class Metric(Protocol):
    """Counts over a validation, exact whatever the number of ranks."""

    def update(self, outputs: Any, batch: Batch) -> None:
        """Add one batch. Reads nothing back from the device."""

    def result(self, world: World) -> dict[str, Any] | Pending:
        """Sum over the ranks and return the figures by name, on every rank; Pending where that is slow.

        A figure of nothing, such as the precision of a class without a sample, is nan or left out, and never 0.
        """


class Meter(Protocol):
    """Measures the rate of training, in windows. Implemented by report/meter.py."""

    def add(self, samples: int) -> None:
        """Count this rank's valid samples of one step."""

    def pause_for(self, what: str) -> AbstractContextManager[None]:
        """Count the time inside, in which nothing is trained, as a pause for that."""

    def has_measured(self, seconds: float) -> bool:
        """Whether windows behind the warm-up are enough for a figure, and add up to so many seconds."""

    def due(self) -> bool:
        """Whether this rank's window can be closed at the next synchronised point."""

    def resume(self, epoch: int) -> None:
        """Start the clock at a synchronised point. All ranks call it together."""

    def goes_on(self, epoch: int) -> None:
        """Have what follows be of another epoch, without a pause between the two."""

    def pause(self) -> RateWindow | None:
        """Stop the clock at a synchronised point; return the window where it is long enough."""

    def point(self) -> RateWindow | None:
        """Return the window that ends at a synchronised point in mid-flight, and go on."""

    def begin_anew(self) -> None:
        """Have the rate be of what follows, where the work of a step changes. Call it while paused."""

    def flush(self) -> None:
        """Keep what was counted, while paused, as a window if there is none yet."""


class Reporter(Protocol):
    """Tells what happens in a run; rank 0 speaks. Implemented by report/reporter.py."""

    def info(self, line: str) -> None:
        """Say a line."""

    def warn(self, line: str) -> None:
        """Say a line that asks for attention."""

    def epoch(
        self,
        epoch: int,
        epochs: int,
        samples: int,
        consumed: int,
        whole: int,
        growth: float,
    ) -> AbstractContextManager[None]:
        """Show a bar inside: an epoch of so many `samples`, of which some are `consumed`, of a run that takes `whole`;
        0 where nobody knows. What remains takes `growth` times as long as with images of this epoch's size.
        """

    def validation(self, samples: int) -> AbstractContextManager[Callable[[int], None]]:
        """Show a bar inside; its callback gets the samples of this rank that are done."""

    def train(
        self,
        points: list[dict[str, float]],
        *,
        progress: Mapping[str, Any],
        skipped_steps: int,
        phases: dict[str, float],
        steps: list[dict[str, float]],
    ) -> None:
        """Tell the steps since the last call: a point each, and the phases' means and times in ms."""

    def window(self, window: RateWindow, *, step: int, mib_per_s: float) -> None:
        """Tell a closed window of the rate."""

    def images(self, batch: Batch) -> None:
        """Show augmented training images, once a run."""

    def ceilings(
        self, *, compute: dict[str, Any], loader: dict[str, Any], step: int
    ) -> None:
        """Tell measured ceilings; where they are measured again, the larger one stands."""

    def above_ceiling(self) -> bool:
        """Whether the rate is higher than a ceiling can allow."""

    def validated(
        self,
        result: Mapping[str, Any],
        *,
        averaged: Mapping[str, Any] | None = None,
        files: Mapping[str, bytes] | None = None,
        images: Mapping[str, Any] | None = None,
        step: int,
        epoch: int | None,
        reader: str = "",
        counts: Counts | None = None,
        best: str = "",
    ) -> None:
        """Tell the figures of a validation, and of the weights' average with --ema; then `best` says which of the two
        best.pt is from now on, where it is one of them.
        """

    def failed(self, split: str, names: Sequence[str]) -> None:
        """Tell which samples could not be decoded."""

    def stopped_early(self, progress: Mapping[str, Any]) -> None:
        """Tell that --patience has ended the run before its time."""

    def reached(self, figure: str, epoch: int | None) -> None:
        """Tell that the figure of --until is reached, after that epoch, counted from 0."""

    def forecast(
        self, pixels: int, rest: Mapping[int, float], *, done: int, validations: int
    ) -> None:
        """Tell when the run will end, at the latest, behind an epoch whose images have so many `pixels`: `done` epochs
        are over, `rest` are those of each number of pixels that follow, and so many `validations` come.
        """


class Task(Protocol):
    """What a batch means."""

    def targets(self, rows: Rows) -> dict[str, Array]:
        """Return the host arrays that travel with the images; a loader's thread calls it.

        They have a row a sample, the ignore value where a row is not valid; or are packed, cut by "offsets" [B + 1].
        """

    def inputs(self, batch: Batch) -> tuple[Any, ...]:
        """Return the module's arguments: (images,); a detector also takes sizes and, to train, targets."""

    def shown(self, batch: Batch) -> torch.Tensor:
        """Return the batch's images as a person may see what the network is given."""

    def losses(self, outputs: Any, batch: Batch) -> torch.Tensor:
        """Return fp32 [B]: a loss a sample (a detector's one loss for each), 0 where it is not valid."""

    def parts(self, outputs: Any) -> dict[str, torch.Tensor]:
        """Return the terms whose sum is the loss, each a mean over the images; {} where it has only one."""

    def metric(self, device: torch.device) -> Metric:
        """Return a metric that has counted nothing yet."""
