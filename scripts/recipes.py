"""Show that recipes train: a recipe against a plain run on a hard drawn set, seed by seed, behind each
loader; and real images, which a network memorises without augmentation and not with it.

    python -m scripts.recipes RUNS                      # draws the set below RUNS, and trains on it
    python -m scripts.recipes RUNS --memorise IMAGES    # trains and validates on the same IMAGES/<class>/*

Each run is one of train.py; what it takes beside is behind `--`, such as `-- --precision fp32`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import torch
import torchvision

from contracts import UserError, one_line
from report import record
from scripts import Parser, demo_textures

ROOT = Path(__file__).resolve().parents[1]
LOADERS = ("torchvision", "dali-cpu", "dali-fed")
COMMON = (
    *("--arch", "resnet18", "--workers", "2"),
    *("--optimizer", "adamw", "--lr", "1e-3", "--weight-decay", "0.05", "--norm-weight-decay", "0"),
    *("--schedule", "cosine", "--warmup-epochs", "2", "--ceilings", "false", "--save-every-minutes", "0"),
)
"""Flags of every run."""
HARD = (
    *("--image-size", "48", "--val-resize", "52", "--crop-scale", "0.5", "1"),
    *("--batch-size", "25", "--epochs", "120"),
)
AUGMENTED = ("--auto-augment", "rand-m7-mstd0.5-inc1", "--erase", "0.25", "--mixup", "0.2", "--cutmix", "1")
CASES = {
    "plain": (),
    "recipe": (*AUGMENTED, "--mix-prob", "0.5", "--label-smoothing", "0.1", "--ema", "0.99"),
}
"""Case -> its flags, beside crops and flips. The figure of an average of weights is the average's."""
REAL = ("--image-size", "64", "--batch-size", "50", "--epochs", "40")
MEMORISING = {
    "augmentation off": ("--train-window", "center", "--flip", "0"),
    "augmentation on": AUGMENTED,
}


def top1(output: Path, flags: Iterable[str], *, log: Path | None) -> float:
    """Train, and return the top-1 of the last validation.

    A run that is there already is not repeated, and one that was interrupted goes on. What the run says goes
    to `log`, if any. Raises subprocess.CalledProcessError.
    """
    figures = _figures(output)
    if not figures:
        command = [sys.executable, str(ROOT / "train.py"), *COMMON, *flags, "--val-every", "1000"]
        with log.open("w") if log is not None else nullcontext() as said:
            run = [*command, "--resume", "auto", "--output", str(output)]
            subprocess.run(run, cwd=ROOT, check=True, stdout=said, stderr=said)
        figures = _figures(output)
    return float(figures.get("ema_top1", figures["top1"]))


def _figures(output: Path) -> dict[str, float]:
    """Return the figures of a run's validation; {} where it has none, as it was not run to its end."""
    summary = output / "summary.json"
    if not summary.exists():
        return {}
    figures: dict[str, float] = json.loads(summary.read_text()).get("validation") or {}
    return figures


def trained(runs: Path, cases: Mapping[str, Sequence[str]], *, seeds: int, jobs: int) -> list[str]:
    """Return the table of `cases`, name -> flags, of which `seeds` runs each are trained, `jobs` at once."""
    names = [(case, seed) for case in cases for seed in range(seeds)]

    def one(case: str, seed: int) -> float:
        folder = _folder(runs, case, seed)
        log = folder.with_suffix(".txt") if jobs > 1 else None
        return top1(folder, (*cases[case], "--seed", str(seed)), log=log)

    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(one, *zip(*names, strict=True)))
    return [row(case, found[at * seeds : (at + 1) * seeds]) for at, case in enumerate(cases)]


def claim(runs: Path, cases: Mapping[str, Sequence[str]], images: str) -> None:
    """Keep beside the runs what each case is trained with, in recipes.json: a run that is there is not
    repeated. Raises UserError where it was trained with other flags or images, and OSError.
    """
    runs.mkdir(parents=True, exist_ok=True)
    path = runs / "recipes.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    for case, flags in cases.items():
        asked = {"flags": [*COMMON, *flags], "images": images}
        if kept.get(case) != asked and _folder(runs, case, 0).exists():
            raise UserError(f"{runs} has a run of {case} with other flags or images; name another folder")
        kept[case] = asked
    record.replace(path, json.dumps(kept, indent=1).encode())


def _folder(runs: Path, case: str, seed: int) -> Path:
    return runs / f"{case.replace(', ', '-').replace(' ', '-')}-{seed}"


def row(name: str, found: Sequence[float]) -> str:
    """Return a line of the table: mean, smallest and largest."""
    least, most = min(found), max(found)
    return f"| {name} | {statistics.mean(found):.1%} | {least:.1%} to {most:.1%} | {len(found)} |"


def compared(runs: Path, loaders: Sequence[str], more: Sequence[str]) -> dict[str, Sequence[str]]:
    """Draw the set, and return plain runs and recipes on it: name -> flags."""
    data = runs / "textures"
    demo_textures.write(data)
    return {
        f"{case}, {loader}": (*HARD, *flags, "--data", str(data), "--loader", loader, *more)
        for loader in loaders
        for case, flags in CASES.items()
    }


def memorised(runs: Path, images: Path, more: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return runs whose validation has the images that were trained on: name -> flags."""
    data = runs / "real"
    data.mkdir(parents=True, exist_ok=True)
    for split in ("train", "val"):
        (data / split).unlink(missing_ok=True)  # of another folder, or of one that has gone
        (data / split).symlink_to(images.resolve())
    own = ("--data", str(data), "--loader", "torchvision", *more)
    return {case: (*REAL, *flags, *own) for case, flags in MEMORISING.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    cut = given.index("--") if "--" in given else len(given)
    parser = Parser("recipes", __doc__)
    parser.add_argument("runs", type=Path, help="folder of the runs; those that are there are not repeated")
    parser.add_argument(
        "--memorise", type=Path, metavar="IMAGES", help="folder with <class>/*, for that part"
    )
    parser.add_argument("--loaders", nargs="+", default=LOADERS, help="(%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each kind (%(default)s)")
    parser.add_argument(
        "--jobs", type=int, default=1, help="runs at once, each of which says what it does in RUNS/*.txt"
    )
    options = parser.parse_args(given[:cut])
    for flag, value in (("--seeds", options.seeds), ("--jobs", options.jobs)):
        if value < 1:
            parser.error(f"{flag} got {value}; it must be 1 or more")
    if options.memorise is not None and not options.memorise.is_dir():
        parser.error(f"--memorise {options.memorise}: no such folder; it must be a folder with <class>/*")
    more = given[cut + 1 :]
    runs = options.runs.resolve()
    try:
        if options.memorise is None:
            cases = compared(runs, options.loaders, more)
            images = f"drawn, {demo_textures.VERSION}, {demo_textures.PER_CLASS}"
        else:
            cases = memorised(runs, options.memorise, more)
            images = str(options.memorise.resolve())
        claim(runs, cases, images)
        lines = trained(runs, cases, seeds=options.seeds, jobs=options.jobs)
    except subprocess.CalledProcessError as error:
        if options.jobs > 1:
            print(f"{error.cmd[-1]} has failed, {error.cmd[-1]}.txt says why", file=sys.stderr)
        return int(error.returncode)  # train.py has said why
    except (UserError, ValueError, OSError) as error:
        print(one_line(f"recipes: {error}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("recipes: interrupted; the same command goes on", file=sys.stderr)
        return 130
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"\n{device}, torch {torch.__version__}, torchvision {torchvision.__version__}\n")
    print("\n".join(["| run | top-1 | from to | seeds |", "|---|---|---|---|", *lines]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
