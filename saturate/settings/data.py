"""Settings of the data, and of how they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, FiniteFloat, PositiveFloat, PositiveInt

from saturate.contracts import MAX_PIXELS
from saturate.settings.cli import FolderOrUrl, Settings
from saturate.settings.types import (
    AUGMENTED,
    CLASSIFIERS,
    LABELLED_IMAGES,
    STILLS,
    STORED,
    setting,
)


class Data(Settings):
    """The data to train on."""

    data: FolderOrUrl = setting(
        None, resume="located", evaluation="free", recipe=False, ranks="own"
    )
    """Folder with train/<class>/* and val/<class>/* (ImageNet's own layout), or with lists, train.csv and
    val.csv, with lines 'path label', of videos also 'path label start end'. For detectors it has COCO's
    layout: train2017/, val2017/, annotations/, or that of another tool's export. Of tar shards it may be a
    URL: s3://, https://. Not needed with --loader synthetic."""
    source: str = setting("auto", resume="located", evaluation="free", of_data=True)
    """What the images of --data lie in: {sources}; auto = what is found there."""
    exif: Literal["stored", "shown"] = setting("stored", tasks=STILLS, resume="scanned")
    """Images whose EXIF asks viewers to turn them: stored = as their pixels are stored, as torchvision takes
    them; shown = turned, with the boxes, masks and keypoints of annotations that are of what is shown."""
    classes: str | None = setting(None, tasks=LABELLED_IMAGES, resume="scanned")
    """Folders that are the classes, with commas between, or all: where a folder's name may mean another thing,
    as train or models. What else lies beside them is left out by name."""
    val_share: Annotated[FiniteFloat, Field(gt=0, lt=1)] | None = setting(
        None, tasks=CLASSIFIERS, changes_rate=False, resume="scanned", of_data=True
    )
    """Share of the images of a --data that has class folders, and neither train/ nor val/, that validates: a
    file does by its name alone, so that a new file moves no other. Copies of an image are on one side."""
    val_seed: Annotated[int, Field(ge=0)] = setting(
        0,
        tasks=CLASSIFIERS,
        needs=("val_share",),
        changes_rate=False,
        resume="scanned",
        of_data=True,
    )
    """Seed of --val-share: with another one other files validate."""
    val_group: str | None = setting(
        None,
        tasks=CLASSIFIERS,
        needs=("val_share",),
        changes_rate=False,
        resume="scanned",
        of_data=True,
    )
    """Images that --val-share leaves on one side, such as those of a patient or a scene: folder = of one
    folder below the class, or a regular expression whose first ( ) in a file's path is the group's name."""
    val_fold: Annotated[int, Field(ge=0)] = setting(
        0,
        tasks=CLASSIFIERS,
        needs=("val_share",),
        changes_rate=False,
        resume="scanned",
        of_data=True,
    )
    """Which share of the images --val-share takes: with 0.2 there are the folds 0 to 4, of which each image is in
    one. A run of each fold predicts every image without having trained on it, for `saturate photos --run`."""
    leave_out: Path | None = setting(
        None,
        tasks=LABELLED_IMAGES,
        changes_rate=False,
        resume="scanned",
        of_data=True,
        ranks="own",
    )
    """CSV list whose first column has files of --data that are left out of the scan, such as the list that
    `saturate photos` writes."""
    multi_label: bool = setting(
        False, tasks=LABELLED_IMAGES, resume="scanned", of_data=True
    )
    """Lines of a list of images are 'path label;label': any number of labels each, which may be none. The
    loss is that of --loss bce, and the figure is mAP."""
    label_separator: str | None = setting(
        None, tasks=LABELLED_IMAGES, resume="scanned", needs=("multi_label",)
    )
    """What stands between the labels of --multi-label. Default: ; or what the labels show beyond doubt, of
    | , / & + blanks, and lists such as ['cat', 'dog']."""
    trust_list: bool = setting(
        False, tasks=AUGMENTED, changes_rate=False, resume="scanned", evaluation="own"
    )
    """Begin to train without having opened the files of a list: of each, size and format are read in worker
    processes a few thousand samples ahead. What cannot be read is masked and named."""
    order: Literal["shuffled", "sequential"] = setting("shuffled", evaluation="free")
    """Order of the training samples: another one each epoch, or that of the list, or of the sorted paths."""
    lmdb_label: Literal["prefix"] | None = setting(
        None, tasks=AUGMENTED, resume="scanned", of_data=True
    )
    """Labels of the images in an LMDB: prefix = what comes before the first / of a key. Default: those of the
    list that `saturate pack` wrote into it, else prefix."""
    label_key: str | None = setting(
        None, tasks=AUGMENTED, resume="scanned", of_data=True
    )
    """Labels of the images in tar shards: the value of this key in the .json of a sample, in place of .cls.
    Of Arrow files the column of the labels, where it is no single ClassLabel."""
    manifest_dir: Path | None = setting(
        None, changes_rate=False, resume="free", evaluation="own", ranks="own"
    )
    """Folder that keeps the scanned columns. It may not lie inside --data. Default:
    $XDG_CACHE_HOME/saturate."""
    cache_dir: Path | None = setting(
        None, tasks=STORED, resume="free", evaluation="own", ranks="own"
    )
    """Folder on a disk of this machine that keeps samples read from URLs, for all ranks and later runs."""
    cache_gib: PositiveFloat = setting(
        100.0,
        tasks=STORED,
        needs=("cache_dir",),
        resume="free",
        evaluation="own",
        ranks="own",
    )
    """Most GiB that --cache-dir holds; what is in it stays, and what comes later is not kept."""
    rescan: bool = setting(
        False,
        changes_rate=False,
        resume="free",
        evaluation="own",
        recipe=False,
        ranks="own",
    )
    """Scan --data again although folders look unchanged (files were rewritten in place)."""
    max_pixels: PositiveInt = setting(MAX_PIXELS, resume="scanned")
    """Leave out, by name, images and videos whose header claims more pixels (width x height) than this, since
    decoding one of them may take all memory. Default: the number beyond which Pillow refuses an image."""
