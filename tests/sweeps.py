"""What the default run leaves to `scripts/test.sh --all`: longer sweeps over what other cases show already.

A test that is named by its id runs without --all, and `pytest -m sweep` runs these alone.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

CONFORMANCE, UNIT, RUNS = (
    "tests/conformance/test_",
    "tests/unit/test_",
    "tests/end_to_end/test_",
)

SWEEPS: dict[str, str] = {
    # loaders: who starts the same workers as another, in a program that is stopped or whose storage is slow
    **{
        f"{CONFORMANCE}signals.py::test_ctrl_c[{name}]": "dali-fed, and train.py in test_resume.py"
        for name in ("torchvision", "pyav", "decord")
    },
    f"{CONFORMANCE}signals.py::test_an_end*[dali-cpu-*]": "test_ctrl_c: it reads in threads",
    f"{CONFORMANCE}signals.py::test_an_end*[[!d]*]": "dali-fed, with the same workers",
    f"{CONFORMANCE}workers.py::test_a_sample*[decord]": "pyav, which differs in what a worker calls",
    f"{CONFORMANCE}rows.py::test_ids*[*decord*]": "pyav, which differs in what a worker calls",
    f"{CONFORMANCE}resume.py::test_tails[*decord*]": "pyav, which differs in what a worker calls",
    f"{CONFORMANCE}leaving.py::test_close_does_not_wait*[pyav]": "torchvision, with the same workers",
    f"{CONFORMANCE}leaving.py::test_close_does_not_wait*[dali-fed]": "torchvision, with the same workers",
    f"{CONFORMANCE}leaving.py::test_close_leaves_nothing[decord]": "pyav",
    f"{CONFORMANCE}leaving.py::test_ten_epochs_are_flat[decord]": "pyav",
    **{
        f"{CONFORMANCE}plants.py::test_a_leak*[{name}]": "torchvision, with the same workers"
        for name in ("pyav", "decord", "dali-fed")
    },
    f"{CONFORMANCE}pixels.py::test_validation*[dali-fed-samples]": "photographs, and dali-cpu",
    f"{CONFORMANCE}leaving.py::test_ten_epochs_are_flat[dali-fed]": "dali-cpu, and workers of torchvision",
    # runs: a rank that is killed elsewhere than between two steps
    **{
        f"{RUNS}torchrun.py::test_a_rank_that_is_killed[{moment}]": "steps"
        for moment in ("checkpoint", "validation")
    },
    # programs that are not ours: other ways to start ranks and workers, other loops
    **{
        f"{RUNS}why.py::test_{name}": "the others of the test"
        for name in (
            "workers_however*[[!f]*]",
            "two_ranks*[[!b]*]",
            "loops[[!ht]*]",
        )
    },
    f"{RUNS}why.py::test_the_cause*": "test_a_pause_is_no_part_of_a_step, and the figures by hand",
    # other sizes, accumulations and seeds of sets whose last step is short
    f"{RUNS}cut_off.py::test_of_three*[another]": "the host with the store, and killed ranks in test_unkillable.py",
    **{
        f"{RUNS}ranks.py::*[{ranks}]": "three ranks, which round otherwise"
        for ranks in (2, 4)
    },
    f"{RUNS}why.py::test_an_epoch*[0-0-30]": "the others: one is left early, one begins anew each epoch",
    # real videos and photographs, which tests of readers and of pixels have too
    f"{RUNS}predict.py::test_an_exported*[recorded]": "clips that are drawn",
    f"{RUNS}predict.py::test_an_exported*[photographs]": "images that are drawn",
    # other bytes of a page, by which LMDB or the system ends the process that scans, too
    **{
        f"{UNIT}lmdb_source.py::test_a_damaged_page*[{kind}-False]": "a leaf of ones, size of a node"
        for kind in ("kind*", "offsets*", "a leaf of z*", "a branch*")
    },
    # architectures
    f"{UNIT}detection_models.py::test_losses_and*[ssd300_vgg16]": "ssdlite, by the same code",
    **{
        f"{UNIT}detection_weights.py::test_the_same_layers*[{name}]": "fasterrcnn of the same backbone"
        for name in ("maskrcnn*", "fasterrcnn_mobilenet_v3_large_320_fpn")
    },
    f"{UNIT}preprocessing.py::test_a_detector_as_onnx*[ssd300_vgg16]": "ssdlite, by the same code",
    f"{UNIT}preprocessing.py::test_a_detector_as_onnx*[fcos_resnet50_fpn]": "fcos_tiny, by the same code",
    f"{UNIT}preprocessing.py::test_a_detector_as_onnx*[fasterrcnn_resnet50_fpn]": "the smaller one",
    f"{UNIT}preprocessing.py::test_a_detector_as_onnx*[retinanet_resnet50_fpn]": "fcos_tiny, with like steps",
    # demos, benchmarks and installations as a whole
    f"{UNIT}distributed.py::*[2]": "three ranks",
    f"{UNIT}bench_loader.py::test_two_ranks*[dali-gpu]": "two ranks whose loader can, the tests of reasons",
    f"{RUNS}start_up.py::*[[!c]*]": "classification, by the same code",
    f"{RUNS}presets.py::test_two_steps[coco/maskrcnn*]": "fasterrcnn, with the same flags",
    f"{UNIT}bench_loader.py::test_a_pass_over_images*[dali-proxy]": "a DataLoader beside DALI",
}
"""Ids of tests, in the patterns of a shell -> what the default run has of it. `[` stands for itself, but for
`[!`.
"""


def is_sweep(test: str) -> bool:
    """Return whether the test of that id belongs to a sweep."""
    return any(
        fnmatchcase(test, re.sub(r"\[(?!!)", "[[]", pattern)) for pattern in SWEEPS
    )
