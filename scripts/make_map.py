"""`python -m scripts.make_map`: writes docs/map.md, a line a file, from the first sentences of docstrings, and the
table of docs/rates.md.

A file's line is the first sentence of its docstring, a room's that of its __init__.py; a shell script's is
its first comment. Files of a folder alone (`_name.py`) are left out where they are short. A test fails where
the page is not what this program writes.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from saturate.report.facts import table

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "map.md"
RATES = ROOT / "docs" / "rates.md"
TABLE = "<!-- the table of facts, by scripts.make_map -->\n"
"""Stands before and behind it."""
ORDER = (
    "saturate/settings saturate/system saturate/dataset saturate/plan loaders models "
    "saturate/tasks saturate/engine saturate/report saturate/run saturate/why benchmarks scripts"
)
ROOMS = tuple(ORDER.split())
"""Rooms in the order in which a sample meets them."""
FOLDERS_ONLY = {
    "configs": "Presets; the header of each has command, hardware, expected accuracy and source.",
    "deploy": "Kubernetes, Compose, SkyPilot: files to copy and change, see cluster.md.",
    "tests": "unit/, conformance/ (the same assertions for all), end_to_end/, and gpu/ (needs a device).",
    "docs": "Pages for users, benchmark tables, screenshots.",
}
"""Folders whose files come and go: a phrase for the folder says it."""
UNNAMED = "benchmarks/baselines"
"""A folder whose files the line of its room says."""
HEAD = """# Map

Files with the first sentences of their docstrings, written by `python -m scripts.make_map`. Rooms are in the order
in which a sample meets them. A file whose name begins with `_` is of its own folder alone, and left out where it is short.

The engine room is the package `saturate/`; its rooms are written without that word here: `plan/order.py` is
`saturate/plan/order.py`. `loaders/` and `models/`, what people add to, lie at the top, and are imported as
`saturate.loaders` and `saturate.models`.

## To add or change

Look first whether it is there: `python train.py --help-all` lists loaders, readers, augmentations and optimisers. These rows
stand in `scripts/make_map.py`. Run it again after a new file.

| what | where | what else |
| --- | --- | --- |
| a setting | a field in the group of its topic in `settings/`, with `setting(default, tasks=..., needs=...)` | its Facts (`settings/types.py`): `tasks` (by names that are explained there), `needs`, `resume`, `evaluation`, `changes_rate`, `of_data`, `recipe`; with `needs` also `CHANGED` in `tests/unit/test_config.py`; a task that reads a setting of other tasks names it in its `TaskKind.also`; `settings/help.py` if most runs need it, or another program has a name for it |
| a loader | `loaders/images/NAME.py` (or `videos/`, `pairs/`): see [own-loop](own-loop.md) | its `LoaderSpec` in `LOADERS` (`loaders/__init__.py`): help, doctor, auto, bench and conformance read it; `report/advice.py` alone recommends loaders by name; its package, if it has one (the next row); one that only decodes otherwise is a reader (below); of clips: a `Reader` for `ClipLoader`, as in `loaders/videos/decord.py`, with its `EXACT` (files that it is right for; pyav decodes the others), `FROM_RGB` in `tests/conformance/scenes.py` if it gives RGB, and a row in `docs/video.md` |
| a package that may be missing | where it is imported; `packages` of a `LoaderSpec` | `requirements.txt` and the imports that the Dockerfile tries, or `OPTIONAL` in `tests/unit/test_packages.py`; the list of mypy in `pyproject.toml`; `DISTRIBUTIONS` in `report/hardware.py`, for its version in summary.json |
| a reader (decoder of images, `--loader torchvision` and `paired`) | `READERS` in `loaders/images/decoders.py` | the Literal of `reader` in `settings/loading.py`; `FASTEST_FIRST` if its pixels are PIL's, bit for bit; else `DIFFERENCE` in `tests/conformance/test_readers.py` |
| a stage of a loader's time | `lap("name")` at the END of the stage, in the loader | `OF_A_WORKER` or `OF_THE_THREAD` in `loaders/_stages.py`, and the same in `report/stages.py`: `OF_WORKERS`, `NAMES`; its curve follows; `COMPUTE` in `report/what_if.py` if it waits for nothing |
| an augmentation | its class and `AUGMENTATIONS` in `plan/augment.py` | its settings in `settings/augmentation.py`, which all tasks that augment read: with `tasks=CLASSIFIERS` where boxes would have to move; its `Purpose` in `plan/draws.py`; a new operation on pixels: `Op` in `plan/ops.py`, `loaders/_ops.py` |
| the order of samples | `plan/order.py`, and `ordered` of `plan/epoch.py`; `plan/boxes.py`, `plan/patches.py` and `plan/balance.py` have their own | the plan's `ordering`: a checkpoint holds it, and a resumed run compares it; `order` (`--order`) in `settings/data.py`, which `tasks/batching.py` turns into `shuffled` |
| a store of samples | `dataset/stores/NAME.py`: see [data](data.md#a-source-of-your-own) | `SOURCES` in `dataset/stores/__init__.py`; `LAYOUTS` in `tests/conformance/sources.py`; to write it: `FORMATS` in `saturate/run/_stores.py` |
| a kind of shards | `dataset/stores/NAME.py` with a `KIND`, its ending and `walk` (`ShardStore` does the rest); each image is one range of bytes of its shard | as a store of samples, and the lists of kinds in `tests/conformance/test_sources.py`; compressed entries need a store of their own; the label may be the shard's own name; behind URLs `dataset/stores/bucket.py` lists tar alone |
| a format of images | `FORMATS` in `dataset/images/columns.py`, at the end; `_READERS` in `dataset/images/headers.py` | `IMAGES` in `dataset/stores/tar.py`; `VERSION` of `Images`; `tests/unit/test_headers.py`, `docs/data.md` |
| a column of samples | `COLUMNS`, `EXTRA` and `VERSION` of a class below `Images`, as `ShardImages` in `dataset/stores/shards.py` | who lists the samples writes it; in a list: `Grammar` and `VERSION` of `dataset/scan/lists.py`, `dataset/stores/list.py`; to the loss: `targets` of the task takes it by `rows.ids`, as `Classification` its `weights` |
| an object storage | `PACKAGES` in `dataset/stores/remote.py`: the protocol and fsspec's package; `WRITABLE`, if --output may be there | `BUCKETS` in `system/urls.py` if a key may hold "?"; `docs/data.md`; `dataset/stores/mirror.py` uploads a run's folder and stays |
| a task | `tasks/NAME.py`, which exports `KIND`: see [own-task](own-task.md) | `TASKS` in `tasks/__init__.py`; where its network does not give [B, outputs] `CASES` in `tests/conformance/tasks.py`; a plan of its own: `PLANS` in `tests/conformance/plans.py`; with a second file a sample a loader, as `loaders/pairs/`; of a new medium `Medium` in `loaders/__init__.py` |
| a network of super-resolution | `ARCHITECTURES` in `models/superres.py` | a new loss: `Superres.losses` in `tasks/superres.py`, the Literals there; `configs/superres/`, `docs/superres.md` |
| a term of a loss of classes | `Classification` in `tasks/classification.py`: a field, and `_loss`; `ClassificationKind.tasks` fills it | its setting with `tasks=CLASSIFIERS`; videos inherit it; validation has a loss of its own |
| what a sample weighs | `weights` of `Classification`, by id; `--balance loss` makes them from columns | plans and loaders do not know of it |
| a figure of a task | `FIGURES` in `tasks/NAME.py`: a `Figure` says its title, chart and unit | the task's metric gives it (of classification `TopK.result`, and `ViewMean.result` in `tasks/video.py`); of COCO's own `FIGURES` in `tasks/_coco.py`, in the order of `stats`, and `TITLES` or `CHARTS` in `tasks/detection.py`; of classification `MOST` in `tasks/_predictions.py`, the classes that are kept of a sample, if five are too few, and `MULTI_LABEL_FIGURES`, which `MeanPrecision` gives |
| a registry of networks, `--arch PREFIX/NAME` | `models/NAME.py` with the functions of `Registry` (`models/__init__.py`); `names` gives them with the prefix | the prefix in `others` of the task, as in `tasks/classification.py` |
| an optimiser | a `Kind` in `OPTIMIZERS`, `engine/optimizers.py` | `state`, `skips` and `capturable` of the `Kind`; in `settings/optimisation.py` the Literal of `optimizer`, and `needs=("optimizer", ...)` of what it reads; `docs/recipes.md` |
| a schedule | `learning_rate` in `engine/schedules.py` | in `settings/optimisation.py` the Literal of `schedule`, and `needs=("schedule", ...)` of what it reads; `docs/recipes.md` |
| what a checkpoint holds | `Content` and `Checkpoints._live` in `engine/checkpoint.py`, which reads the optimiser's groups in `load_optimizer`; beside the state `RunIdentity.kept` in `run/build.py` and `checkpoints_of` in `run/train.py`, its settings `Start.kept` in `tasks/initial_state.py` | `FORMAT` is raised only where earlier checkpoints would not do: all of them are then refused; a new field of `Content` has a default; a large part is named in `TENSORS`; `Resume` takes it back |
| when last.pt is written | `engine/loop.py` | `engine/watch.py` ends a rank that hangs |
| when a rank counts as lost | `SILENT_S` in `engine/ranks.py`; of agents that in `engine/unkillable.py` | the 45 s in `docs/cluster.md`, `engine/watch.py` and `benchmarks/simulate.py`; `FOUND_S` in `tests/end_to_end/test_agents.py`; `--timeout-minutes` is for ranks that live and do not come |
| signals | `SIGNALS` in `engine/stop.py`; `engine/loop.py` does what they ask | while imports run: `settings/preflight.py`; a main thread that hangs: `engine/watch.py`; children ignore them: `system/processes.py`; torchrun: `scripts/entry_point.py`; agents: `engine/unkillable.py`; `docs/cluster.md` |
| a fact of a run: a key of summary.json, a curve, a line of the closing table, a column of results.csv | its row in `FACTS`, `report/facts.py`; what is made of other facts, or can be asked for at any moment, is the row's `of` | what has to be measured: `Reporter._summary` and `Reporter.window` (or `train`) in `report/reporter.py`, by `report/meter.py`, `report/summary.py` or `report/hardware.py`; a count of the whole run is a field of `Progress` (`engine/checkpoint.py`), which `engine/loop.py` counts; `docs/rates.md` gets its table from `scripts.make_map` |
| a prediction, "what if" | its function in `CHANGES`, `report/what_if.py` | the keys of its `settings` are settings of train.py; those in `levers` of `run/tune.py` are tried, the most promising first; what it asks of the run is a key of summary.json; a case in `tests/unit/test_what_if.py` |
| a planted bottleneck | a case in `configs/planted/NAME.yaml` | a function in `benchmarks/planted.py` where no flag plants it; `tests/end_to_end/test_planted.py` where two cores show it; `docs/planted.md` |
| what "change first" says | the best prediction for the side that binds, if it gains a tenth; else a sentence of `report/advice.py` | a case in `tests/unit/test_report_advice.py` |
| a line about the learning, such as overfitting | its row `learning.NAME` in `FACTS`; what it says, in `report/learning.py` | a case in `tests/unit/test_learning.py` |
| an axis of `python -m benchmarks train` | `AXES` in `benchmarks/train.py`; one that every point has: `points` and `command` | a field of its settings there; `by_hand_flags`, and `theirs` in `points`, if loops by hand follow it |
| a tracker, `--log NAME` | its class and `TRACKERS` in `report/sinks.py`; NAME is what is imported | the Literal of `log` in `settings/run.py`; its package (above); `docs/own-images.md` |
| an exit code | `system/exit_codes.py` | its row in `docs/cluster.md`; `deploy/` where a scheduler acts on it |
| a row of `scripts.doctor` | its function and `PROBES` in `saturate/run/_probes.py` | a package is imported inside that function |
"""  # noqa: E501


def tracked(root: Path = ROOT) -> list[str]:
    """Return the paths of the files that git tracks, sorted."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files"], capture_output=True, text=True, check=True
    )
    # in the middle of a merge a path is listed once for each side
    names = set(listed.stdout.splitlines())
    return sorted(name for name in names if (root / name).is_file())


def first_sentence(path: Path) -> str:
    """Return the first sentence of a Python file's docstring or a shell script's comment; "" without one.

    What a docstring says behind "; must not" is a rule for those who change the file, and left out.
    """
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(source)) or ""
    else:
        text = "\n".join(
            line.removeprefix("#").strip() for line in source.splitlines()[1:2]
        )
    paragraph = " ".join(text.split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z`])", paragraph, maxsplit=1)[0]
    return re.sub(r"; must not .*", ".", sentence)


def room_of(folder: str) -> str:
    """Return the room that a folder is in; the folder itself where it is in none of ROOMS."""
    within = (room for room in ROOMS if f"{folder}/".startswith(f"{room}/"))
    return next(within, folder)


def of_a_room(room: str, names: Sequence[str], root: Path) -> Iterator[str]:
    """Yield the lines of the files of a room. Raises ValueError for a file without a docstring."""
    for name in names:
        folder, _, file = name.rpartition("/")
        if room_of(folder) != room or not file.endswith((".py", ".sh")):
            continue
        sentence = first_sentence(root / name)
        if file == "__init__.py":
            # a table that others read, such as SOURCES, stands there; a room's own has been said
            if folder != room and "=" in (root / name).read_text(encoding="utf-8"):
                yield f"- `{name}` {sentence}"
        elif not sentence:
            raise ValueError(f"{name} has no docstring, which the map is made of")
        elif folder != UNNAMED and (not file.startswith("_") or is_long(root / name)):
            yield f"- `{name}` {sentence}"


def is_long(path: Path) -> bool:
    """Return whether a file is worth a line of the map though its folder alone imports it."""
    return path.read_text(encoding="utf-8").count("\n") > 100


def lines(names: Sequence[str], root: Path = ROOT) -> Iterator[str]:
    """Yield the lines of the page for these files. Raises ValueError for a file without a docstring."""
    yield from of_a_room("", names, root)
    yield from of_a_room("saturate", names, root)
    for room in ROOMS:
        yield f"\n## {room}/\n\n{first_sentence(root / room / '__init__.py')}\n"
        yield from of_a_room(room, names, root)
    yield "\n## Other folders\n"
    for room, phrase in FOLDERS_ONLY.items():
        yield f"- `{room}/` {phrase}"


def page(names: Sequence[str], root: Path = ROOT) -> str:
    """Return the whole page for these files."""
    return HEAD + "\n" + "\n".join(lines(names, root)) + "\n"


def rates(text: str) -> str:
    """Return a page with the table of facts in place of the one that it has."""
    before, _, after = text.split(TABLE)
    return TABLE.join([before, "".join(f"{line}\n" for line in table()), after])


if __name__ == "__main__":
    PAGE.write_text(page(tracked()), encoding="utf-8")
    RATES.write_text(rates(RATES.read_text(encoding="utf-8")), encoding="utf-8")
