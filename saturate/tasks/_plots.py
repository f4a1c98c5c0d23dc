"""Pictures of a validation: detections beside what is there, and curves of precision over recall."""

from __future__ import annotations

import colorsys
import logging

import numpy as np
import torch

# here: what scores is forked, and may wait for no import of another thread
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from torchvision.utils import draw_bounding_boxes

from saturate.contracts import Array, Source
from saturate.dataset.coco.columns import Instances
from saturate.loaders.images.decoders import shown_rgb
from saturate.system import fonts
from saturate.tasks._coco import PREFIXES, Detections, Scores, names

# once on a machine it says that it looks for fonts
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)

SIDE = 320  # of a picture, pixels: two, ground truth and detections, lie side by side
LEAST = 0.5  # score of a detection that is drawn
MOST = 20  # detections that are drawn of an image
FALLBACK = 3  # the likeliest that are drawn where nothing has that score
# overlaps of which there is a curve, places among 0.5, 0.55, ..., 0.95
CURVES = (0, 2, 4, 5, 7, 9)
GOLDEN = 0.618034  # steps of the hue: categories next to each other get different ones

Marked = list[tuple[Array, int, str]]
"""What is drawn, the last one on top: a box x y width height in the stored image, its category, a text."""


def predictions(
    columns: Instances, source: Source | None, found: Detections, samples: list[int]
) -> Array | None:
    """Draw, uint8 [n, SIDE, 2 SIDE, 3], of each sample ground truth, and to its right detections.

    None when none can be read.
    """
    named = _named(columns)
    ids = np.asarray(columns.category_ids)
    tiles = []
    for sample in samples:
        picture = None if source is None else _picture(columns, source, sample)
        if picture is None:
            continue
        expected = []
        there = columns.annotations(sample)
        for box, category, crowd in zip(
            columns.boxes[there],
            ids[columns.category[there]].tolist(),
            columns.crowd[there],
            strict=True,
        ):
            text = named[category] + (" (crowd)" if crowd else "")
            expected.append((box, category, text))
        scale = min(SIDE / picture.width, SIDE / picture.height)
        tile = Image.new("RGB", (2 * SIDE, SIDE), "white")
        for left, marked in ((0, expected), (SIDE, _likely(columns, found, sample))):
            tile.paste(_drawn(picture, marked, scale), (left, 0))
        tiles.append(np.asarray(tile))
    return np.stack(tiles) if tiles else None


def detected(
    columns: Instances, source: Source, found: Detections, sample: int
) -> Image.Image | None:
    """Draw a sample at its own size with what was found in it; None where it cannot be read."""
    picture = _picture(columns, source, sample)
    if picture is None:
        return None
    return _drawn(picture, _likely(columns, found, sample), 1.0)


def _named(columns: Instances) -> dict[int, str]:
    """Return category id -> its name, as it is drawn."""
    return {at: fonts.legible(name, at) for at, name in names(columns).items()}


def _picture(columns: Instances, source: Source, sample: int) -> Image.Image | None:
    turns = columns.exif
    try:
        turn = 0 if turns is None else int(turns[sample])
        return shown_rgb(source.read(sample), turn)
    except Exception:  # PIL raises whatever the bytes make it stumble over; and a data set may have no bytes
        return None


def _likely(columns: Instances, found: Detections, sample: int) -> Marked:
    """Return the likely detections of a sample, the likeliest last."""
    named = _named(columns)
    own = np.flatnonzero(found.image_ids == columns.image_id[sample])
    own = own[np.argsort(-found.scores[own], kind="stable")]
    likely = int((found.scores[own] >= LEAST).sum())
    marked = []
    for place in own[: min(likely, MOST) or FALLBACK][::-1]:
        category = int(found.category_ids[place])
        text = f"{named[category]} {found.scores[place]:.2f}"
        marked.append((found.boxes[place], category, text))
    return marked


def _drawn(picture: Image.Image, marked: Marked, scale: float) -> Image.Image:
    """Draw on the picture, `scale` times as large, boxes with their texts in colours of their categories."""
    width, height = (max(round(side * scale), 1) for side in picture.size)
    if not marked:
        return picture.resize((width, height))
    pixels = torch.from_numpy(np.array(picture.resize((width, height))))
    boxes = np.array([box for box, _, _ in marked], np.float64) * scale
    boxes[:, 2:] += boxes[:, :2]
    texts = [text for _, _, text in marked]
    colours = []
    for _, category, _ in marked:
        shares = colorsys.hsv_to_rgb(category * GOLDEN % 1, 0.6, 1.0)
        red, green, blue = (round(255 * share) for share in shares)
        colours.append((red, green, blue))
    drawn = draw_bounding_boxes(
        pixels.permute(2, 0, 1),
        torch.from_numpy(boxes.clip(0, [width - 1, height - 1] * 2)),
        labels=texts,
        colors=colours,
        width=2,
        font=fonts.path("".join(texts)),
        font_size=10,
    )
    return Image.fromarray(drawn.permute(1, 2, 0).numpy())


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
