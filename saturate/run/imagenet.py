"""`python -m scripts.imagenet TO --from FOLDER`: ImageNet as it is published, to class folders.

FOLDER holds ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz: torchvision
compares them with their digests and unpacks them into TO. Or it holds Kaggle's ILSVRC/Data/CLS-LOC/ and
LOC_val_solution.csv: TO then has links to its images.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from saturate.contracts import UserError
from saturate.run.folders import filled
from saturate.run.program import Parser
from saturate.system.exit_codes import of_program
from saturate.system.user_files import below, read_text

ARCHIVES = ("devkit_t12.tar.gz", "img_train.tar", "img_val.tar")
KAGGLE = "ILSVRC/Data/CLS-LOC"
SOLUTION = "LOC_val_solution.csv"


def unpack(folder: Path, made: Path) -> None:
    """Unpack the archives into made/train and made/val. Raises UserError, RuntimeError and ImportError."""
    from torchvision.datasets import ImageNet

    for name in ARCHIVES:
        archive = folder / f"ILSVRC2012_{name}"
        if not archive.exists():
            raise UserError(f"{archive} is missing, and there is no {KAGGLE}/ either")
        # torchvision looks for them where it writes
        (made / archive.name).symlink_to(archive)
    for split in ("train", "val"):
        print(f"{split}: unpacking", file=sys.stderr)
        ImageNet(made, split)
    for name in ARCHIVES:
        (made / f"ILSVRC2012_{name}").unlink()


def link(folder: Path, made: Path) -> None:
    """Make links to Kaggle's images, those of val in the folders of their classes. Raises OSError."""
    images = folder / KAGGLE
    (made / "train").symlink_to(images / "train")
    rows = csv.DictReader(io.StringIO(read_text(folder / SOLUTION)))
    for row in rows:
        wnid = row["PredictionString"].split()[0]
        image = below(images / "val", f"{row['ImageId']}.JPEG")
        path = below(made / "val", f"{wnid}/{image.name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(image)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser("imagenet", __doc__)
    parser.add_argument(
        "target", metavar="TO", type=Path, help="new folder, for --data"
    )
    parser.add_argument(
        "--from", dest="source", metavar="FOLDER", type=Path, required=True
    )
    options = parser.parse_args(arguments)

    def work() -> int:
        folder = options.source.resolve()
        make = link if (folder / KAGGLE).is_dir() else unpack
        with filled(options.target, folder) as made:
            make(folder, made)
        print(f"{options.target}: --data {options.target}")
        return 0

    mistakes = (RuntimeError, ImportError, ValueError, KeyError)
    return of_program("imagenet", work, *mistakes)
