"""Pictures of a validation: detections beside what is there, and curves of precision over recall."""

from __future__ import annotations

import colorsys
import logging
from typing import Any

import numpy as np

# here: what scores is forked, and may wait for no import of another thread
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont

from contracts import Array, Source
from loaders.images.decoders import shown_rgb
from plan.epoch import exif_of
from tasks._coco import PREFIXES, Detections, Scores, names

# once on a machine it says that it looks for fonts
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)

SIDE = 320  # of a picture, pixels: two, ground truth and detections, lie side by side
LEAST = 0.5  # score of a detection that is drawn
MOST = 20  # detections that are drawn of an image
FALLBACK = 3  # the likeliest that are drawn where nothing has that score
BAR = 16  # height of the line above a picture
CURVES = (
    0,
    2,
    4,
    5,
    7,
    9,
)  # overlaps of which there is a curve, places among 0.5, 0.55, ..., 0.95
GOLDEN = 0.618034  # steps of the hue: categories next to each other get different ones


def predictions(
    columns: Any, source: Source | None, found: Detections, samples: list[int]
) -> Array | None:
    """Draw, uint8 [n, H, W, 3], of each sample ground truth, and to its right detections.

    None when none can be read.
    """
    if source is None:
        return None
    tiles = [
        tile
        for sample in samples
        if (tile := _pair(columns, source, found, sample)) is not None
    ]
    return np.stack(tiles) if tiles else None


def detected(
    columns: Any, source: Source, found: Detections, sample: int
) -> Image.Image | None:
    """Draw a sample at its own size with what was found in it; None where it cannot be read."""
    picture = _picture(columns, source, sample)
    return (
        None
        if picture is None
        else _drawn(picture, _boxes_of(columns, found, sample), 1.0, 1.0)
    )


def _picture(columns: Any, source: Source, sample: int) -> Image.Image | None:
    try:
        turns = exif_of(columns)
        return shown_rgb(
            source.read(sample), 0 if turns is None else int(turns[sample])
        )
    except Exception:  # PIL raises whatever the bytes make it stumble over; and a data set may have no bytes
        return None


def _boxes_of(
    columns: Any, found: Detections, sample: int
) -> list[tuple[Array, int, str]]:
    """Return the likely detections of a sample, the likeliest first: box, category, text."""
    named = names(columns)
    own = np.flatnonzero(found.image_ids == columns.image_id[sample])
    own = own[np.argsort(-found.scores[own], kind="stable")]
    likely = int((found.scores[own] >= LEAST).sum())
    return [
        (
            found.boxes[place],
            int(found.category_ids[place]),
            f"{named[int(found.category_ids[place])]} {found.scores[place]:.2f}",
        )
        for place in own[: min(likely, MOST) or FALLBACK]
    ]


def _pair(columns: Any, source: Source, found: Detections, sample: int) -> Array | None:
    picture = _picture(columns, source, sample)
    if picture is None:
        return None
    scale = min(SIDE / picture.width, SIDE / picture.height)
    small = picture.resize(
        (max(round(picture.width * scale), 1), max(round(picture.height * scale), 1))
    )
    named = names(columns)
    ids = np.asarray(columns.category_ids)
    there = columns.annotations(sample)
    expected = [
        (
            box,
            int(ids[category]),
            named[int(ids[category])] + (" (crowd)" if crowd else ""),
        )
        for box, category, crowd in zip(
            columns.boxes[there],
            columns.category[there],
            columns.crowd[there],
            strict=True,
        )
    ]
    tile = Image.new("RGB", (2 * SIDE, SIDE + BAR), "white")
    image = f"image {columns.image_id[sample]}"
    for left, title, boxes in (
        (0, f"{image}: ground truth", expected),
        (SIDE, "detections", _boxes_of(columns, found, sample)),
    ):
        tile.paste(
            _drawn(
                small, boxes, small.width / picture.width, small.height / picture.height
            ),
            (left, BAR),
        )
        ImageDraw.Draw(tile).text(
            (left + 2, 1), title, fill="black", font=ImageFont.load_default(12)
        )
    return np.asarray(tile)


def _drawn(
    picture: Image.Image,
    boxes: list[tuple[Array, int, str]],
    across: float,
    down: float,
) -> Image.Image:
    """Draw boxes x y width height in the stored image's pixels, in its category's colour, with a text."""
    picture = picture.copy()
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(10)
    for box, category, text in reversed(boxes):  # the likeliest last, on top
        x0, y0, x1, y1 = (
            float(value)
            for value in (
                box[0] * across,
                box[1] * down,
                (box[0] + box[2]) * across,
                (box[1] + box[3]) * down,
            )
        )
        colour = _colour(category)
        draw.rectangle(
            [x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)], outline=colour, width=2
        )
        at = (max(x0, 0), max(y0 - 11, 0))
        draw.rectangle(draw.textbbox(at, text, font=font), fill=colour)
        draw.text(at, text, fill="black", font=font)
    return picture


def _colour(category: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(category * GOLDEN % 1, 0.6, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)


def curves(scores: Scores) -> Array:
    """Draw, uint8 [1, H, W, 3], precision over recall, the mean over the categories, one curve an overlap."""
    figure = Figure(figsize=(6, 4.2), dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    recalls = np.linspace(0, 1, scores.precision.shape[1])
    overlap = "OKS" if scores.kind == "keypoints" else "IoU"
    for place in CURVES:
        curve = scores.curve(place)
        shade = 0.85 * place / len(scores.precision)
        axes.plot(
            recalls,
            curve,
            color=(shade, shade, 1.0),
            label=f"{overlap} {0.5 + 0.05 * place:.2f}: {curve.mean():.1%}",
        )
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.01))
    prefix = PREFIXES[scores.kind]
    average = scores.figures()[prefix + "ap"]
    axes.set_title(f"{prefix.replace('_', ' ')}AP {average:.1%}, all classes")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower left", fontsize="small")
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[None, :, :, :3].copy()
