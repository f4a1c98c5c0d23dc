"""Pictures of a validation: detections beside what is there, and curves of precision over recall."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np

# here: what scores is forked, and may wait for no import of another thread
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from saturate.contracts import Array, Source
from saturate.dataset.coco.columns import Instances
from saturate.loaders.images.decoders import shown_rgb
from saturate.system import drawing, fonts
from saturate.system.drawing import INK, Mark, Tile
from saturate.tasks._coco import PREFIXES, Detections, Scores, segmentation
from saturate.tasks._masks import decoded
from saturate.tasks._predictions import NOTHING

# once on a machine it says that it looks for fonts
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)

SIDE = 480  # of a picture, pixels: two, ground truth and detections, lie side by side
# overlaps of which there is a curve, places among 0.5, 0.55, ..., 0.95
CURVES = (0, 2, 4, 5, 7, 9)


def predictions(
    columns: Instances,
    source: Source | None,
    detections: Detections,
    samples: list[int],
    threshold: float,
) -> Array | None:
    """Draw, uint8 [1, H, W, 3], a row a sample: ground truth, and to its right detections.

    None when none can be read.
    """
    tiles: list[Tile] = []
    for sample in samples:
        picture = None if source is None else _picture(columns, source, sample)
        if picture is None:
            continue
        small = drawing.fitted(picture, SIDE)
        for title, marks, otherwise in (
            ("truth", _true(columns, detections, sample), "nothing marked"),
            ("found", _likely(columns, detections, sample, threshold), NOTHING),
        ):
            scale = small.width / picture.width
            drawn = drawing.marked(small, marks, scale, otherwise=otherwise)
            tiles.append((drawn, [(title, INK)]))
    return drawing.sheet(tiles)[None] if tiles else None


def detected(
    columns: Instances,
    source: Source,
    detections: Detections,
    sample: int,
    threshold: float,
) -> Image.Image | None:
    """Draw a sample at its own size with what was found in it; None where it cannot be read."""
    picture = _picture(columns, source, sample)
    if picture is None:
        return None
    likely = _likely(columns, detections, sample, threshold)
    return drawing.marked(picture, likely, otherwise=NOTHING)


def _named(columns: Instances) -> dict[int, tuple[int, str]]:
    """Return category id -> its class number, which picks its colour, and its name as it is drawn."""
    return {
        int(category): (int(number), fonts.legible(columns.classes[number], category))
        for category, number in zip(columns.category_ids, columns.class_of, strict=True)
    }


def _picture(columns: Instances, source: Source, sample: int) -> Image.Image | None:
    turns = columns.exif
    try:
        turn = 0 if turns is None else int(turns[sample])
        return shown_rgb(source.read(sample), turn)
    except Exception:  # PIL raises whatever the bytes make it stumble over; and a data set may have no bytes
        return None


def _corners(box: Array) -> Array:
    """Return x0 y0 x1 y1 of x y width height."""
    return np.concatenate([box[:2], box[:2] + box[2:]])


def _true(columns: Instances, detections: Detections, sample: int) -> Iterator[Mark]:
    """Yield what is marked in a sample, with masks and key points where the network finds such."""
    named = _named(columns)
    ids = np.asarray(columns.category_ids)
    size = [int(columns.height[sample]), int(columns.width[sample])]
    for place in range(*columns.annotations(sample).indices(len(columns.category))):
        number, name = named[int(ids[columns.category[place]])]
        mask = points = None
        if detections.masks is not None:
            mask = decoded(segmentation(columns, place, size), *size)
        if detections.keypoints is not None:
            points = columns.keypoints[place]
        yield Mark(
            box=_corners(np.asarray(columns.boxes[place])),
            category=number,
            text=name + (" (crowd)" if columns.crowd[place] else ""),
            mask=mask,
            points=points,
        )


def _likely(
    columns: Instances, detections: Detections, sample: int, threshold: float
) -> Iterator[Mark]:
    """Yield the detections of a sample with scores from `threshold` on, the likeliest last."""
    named = _named(columns)
    own = np.flatnonzero(
        (detections.image_ids == columns.image_id[sample])
        & (detections.scores >= threshold)
    )
    size = int(columns.height[sample]), int(columns.width[sample])
    for place in own[np.argsort(detections.scores[own], kind="stable")]:
        number, name = named[int(detections.category_ids[place])]
        yield Mark(
            box=_corners(detections.boxes[place]),
            category=number,
            text=f"{name} {detections.scores[place]:.2f}",
            mask=None
            if detections.masks is None
            else decoded(detections.masks[place], *size),
            points=None
            if detections.keypoints is None
            else detections.keypoints[place],
        )


def curves(scores: Scores) -> Array:
    """Draw, uint8 [1, H, W, 3], precision over recall, the mean over the categories, one curve an overlap."""
    figure = Figure(figsize=(7, 4.2), dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    recalls = np.linspace(0, 1, scores.precision.shape[1])
    overlap = "OKS" if scores.kind == "keypoints" else "IoU"
    for place in CURVES:
        curve = scores.curve(place)
        shade = 0.85 * place / len(scores.precision)
        label = f"{overlap} {0.5 + 0.05 * place:.2f}: {curve.mean():.1%}"
        axes.plot(recalls, curve, color=(shade, shade, 1.0), label=label)
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.01))
    prefix = PREFIXES[scores.kind]
    average = scores.figures()[prefix + "ap"]
    axes.set_title(f"{prefix.replace('_', ' ')}AP {average:.1%}, all classes")
    axes.grid(alpha=0.3)
    # beside the axes: a curve may be anywhere in them
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[None, :, :, :3].copy()
