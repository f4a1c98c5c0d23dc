"""What `saturate why` makes of measured ranks: each figure is worked out by hand beside it.

A batch has 10 samples, and each window 10 batches, so that a rate of 100 samples/s is a window of one second.
"""

from __future__ import annotations

from typing import Any

import pytest

from saturate.why import verdict

NOTHING = ("wait", "pause", "gap", "epochs", "epochs_s", "queue")


def window(rate: float, **more: float) -> dict[str, float]:
    """100 samples at a rate; `more` are seconds, and come on top of what these take."""
    seconds = 100 / rate + more.get("pause", 0.0) + more.get("gap", 0.0)
    counted = {"samples": 100, "batches": 10, "steps": 10, "cores": 1.0}
    return dict.fromkeys(NOTHING, 0.0) | counted | {"seconds": seconds} | more


def rank(
    own: list[dict[str, float]], replay: float, drain: float, **more: Any
) -> dict[str, Any]:
    """What phases.py writes of a rank whose ceilings are the same in three windows."""
    windows = {"own": own, "replay": [window(replay)] * 3, "drain": [window(drain)] * 3}
    return {
        "windows": windows,
        "loader": {"kind": "DataLoader", "num_workers": 4},
        "versions": {"torch": "2.11.0", "python": "3.11.7"},
        "hardware": {"gpu": None, "cores": 64},
        "settings": {
            "dtypes": ["torch.float32"],
            "autocast": "",
            "channels_last": False,
            "has_convolutions": True,
            "fused": False,
            "compiled": False,
        },
        "split_ms": {"forward": 4.0, "backward": 6.0},
        "epoch": {"batches": 0, "gap_s": 0.0},
        "decoders": {},
        "threads": 5,
        "is_guess": False,
        **more,
    }


def busy(read: float = 2, decode: float = 6) -> dict[str, Any]:
    """Seconds of workers, who have made the 60 batches of three windows of the rate and three of the loader: 600
    samples. They sleep while they read.
    """
    seconds = {
        "read": read,
        "decode Pillow": decode,
        "transforms Crop": 1,
        "collate": 1,
    }
    ns = {name: int(1e9 * one) for name, one in seconds.items()}
    cpu = {name: one for name, one in ns.items() if name != "read"}
    return {"wall": ns, "cpu": cpu, "batches": 60}


IDLE = {"busy": {"wall": {}, "cpu": {}, "batches": 0}}
LOADER_BOUND = {"wait": 0.4}
"""Seconds of each window in which the step waits for data."""


def loads(replay: float = 1000, **more: Any) -> dict[str, Any]:
    """A rank whose rate is the loader's, of 100 samples/s."""
    return rank([window(100, **LOADER_BOUND)] * 3, replay, 100, busy=busy(), **more)


def change(found: dict[str, Any], what: str) -> dict[str, Any]:
    """The one prediction of that name."""
    (one,) = [one for one in found["what_if"] if one["what"] == what]
    return dict(one)


def table(found: dict[str, Any]) -> str:
    """The table in one line, of words with one space between them."""
    return " ".join(" ".join(verdict.lines(found | {"undone": 0})).split())


def test_rate_and_ceilings_are_medians_of_windows() -> None:
    one = rank([window(rate) for rate in (100, 50, 80)], 0.1, 0.1, **IDLE)
    one["windows"]["replay"] = [window(rate) for rate in (400, 200, 250)]
    one["windows"]["drain"] = [window(rate) for rate in (125, 500, 160)]
    found = verdict.summary([one])
    assert found["rate"]["steady"] == pytest.approx(80)
    assert found["ceiling"]["compute"]["rate"] == pytest.approx(250)
    assert found["ceiling"]["loader"]["rate"] == pytest.approx(160)
    spread = found["rate"]["spread"]
    assert [round(rate) for rate in spread["each"]] == [100, 50, 80]
    # quartiles of 50, 80 and 100 are half way to the median: 65 and 90
    assert spread["iqr"] == pytest.approx(25)
    # 300 samples in 1 + 2 + 1.25 s are 30 steps of 142 ms
    assert found["step_ms"]["p50"] == pytest.approx(4250 / 30)
    assert found["batch_size"] == 10


BOUNDS = {
    # 100 of 105
    "compute": (100, 105, 300, 0.952, "compute"),
    "loader": (97, 300, 100, 0.97, "loader"),
    "each hinders the other": (80, 300, 100, 0.8, "contention"),
    # windows that are within 10 % of those of the ceiling are held to be it
    "above its ceiling by chance": (109, 300, 100, 1.0, "loader"),
    "above its ceiling": (120, 300, 100, 1.2, None),
}


@pytest.mark.parametrize("case", BOUNDS)
def test_what_bounds_the_rate(case: str) -> None:
    own, replay, drain, efficiency, bound = BOUNDS[case]
    found = verdict.summary([rank([window(own)] * 3, replay, drain, **IDLE)])
    assert found["efficiency"] == pytest.approx(efficiency, abs=1e-3)
    assert found["bound"] == bound
    assert ("measure again" in table(found)) == (bound is None)


def test_stages_of_the_workers() -> None:
    found = verdict.summary([loads()])
    # 0.4 s of each second, in which there are 10 steps
    assert found["data_wait"] == pytest.approx({"ms": 40, "share": 0.4})
    decode = found["stages"]["decode"]
    # 6 of 10 s, and 6 s by 600 samples
    assert decode == pytest.approx({"share": 0.6, "ms": 10, "cpu_ms": 10})
    assert found["stages"]["read"]["cpu_ms"] == 0
    assert found["steps"]["decode"] == pytest.approx({"Pillow": 0.6})
    assert found["binds"] == {"side": "loader", "stage": "decode", "share": 0.6}
    assert "decode 60% (Pillow), read 20%, transforms 10% (Crop), collate 10%" in table(
        found
    )


def test_the_queue_is_what_a_batch_costs_that_lies_ready() -> None:
    one = loads()
    one["windows"]["drain"] = [window(100, queue=0.03)] * 3
    stages = verdict.summary([one])["stages"]
    # 30 batches of 30 ms in 3 s are 0.3 of the time; the wait is 0.4 of it
    assert stages["queue"]["share"] == pytest.approx(0.3)
    assert stages["workers"]["share"] == pytest.approx(0.1)


@pytest.mark.parametrize(("compute", "rate"), [(1000, 200), (150, 150)])
def test_twice_the_workers(compute: float, rate: float) -> None:
    # twice the loader's 100, unless the step cannot take as many
    one = change(verdict.summary([loads(compute)]), "num_workers=8")
    assert one["rate"] == pytest.approx(rate)
    assert one["gain"] == pytest.approx(rate / 100 - 1)
    # windows are all alike, so that 5 % of the model itself are unsure
    assert one["low"] == pytest.approx(0.95 * rate)


DECODERS = {"Pillow": 8.0, "OpenCV": 4.0, "torchvision.io": 9.0}
"""Milliseconds a file."""


@pytest.mark.parametrize(
    ("what", "rate"),
    [
        # half of 60 % of a worker's time is not there: 100 / 0.7
        ("decoding by OpenCV", 142.857),
        # nor are 10 %: 100 / 0.9
        ("without Crop", 111.111),
    ],
)
def test_less_work_for_each_worker(what: str, rate: float) -> None:
    found = verdict.summary([loads(decoders=DECODERS)])
    assert change(found, what)["rate"] == pytest.approx(rate, abs=1e-3)
    # which is slower than theirs
    assert not any("torchvision" in one["what"] for one in found["what_if"])


def test_a_rank_that_the_others_wait_for() -> None:
    """Rank 1 waits 90 ms a step for its data, and rank 0 as long for rank 1, in its backward pass."""
    fast = rank([window(100, wait=0.1)] * 3, 250, 400, busy=busy(read=2))
    slow = rank([window(100, wait=0.9)] * 3, 250, 100, busy=busy(read=30))
    found = verdict.summary([fast, slow])
    # both make 100 samples a second; without a step the slow one alone would be waited for
    assert found["rate"]["steady"] == pytest.approx(200)
    assert found["ceiling"]["compute"]["rate"] == pytest.approx(500)
    assert found["ceiling"]["loader"]["rate"] == pytest.approx(200)
    # 10 ms and 90 ms
    assert found["slowest_rank"]["rank"] == 1
    assert found["slowest_rank"]["ms"] == pytest.approx(80)
    assert found["slowest_rank"]["why"] == "read"
    # twice 400, of which the steps take 500
    one = change(found, "rank 1 as fast as the others")
    assert one["rate"] == pytest.approx(500)
    assert "slowest rank rank 1, by its read" in table(found)


def test_a_validation_is_no_part_of_the_rate() -> None:
    # a second of training, and one of validation
    found = verdict.summary([rank([window(100, pause=1.0)] * 3, 100, 400, **IDLE)])
    assert found["rate"]["steady"] == pytest.approx(100)
    assert found["bound"] == "compute"
    assert found["pauses"] == pytest.approx({"validation": 3, "epochs": 0})
    said = table(found)
    assert "validation 50.0% of the time" in said
    assert "validate less often: it takes 50% of the time" in said


@pytest.mark.parametrize(
    ("drained", "ceiling"),
    [
        # four of 20 batches are made while the epoch begins, in 0.5 s, and the others at 100 samples/s in 1.6 s
        ({}, 200 / 2.1),
        # whole epochs were drained
        ({"epochs": 400, "epochs_s": 5.0}, 80),
    ],
)
def test_epochs_that_take_time_to_begin(drained: Any, ceiling: float) -> None:
    one = rank([window(100, gap=1.0)] * 3, 1000, 100, busy=busy())
    one["epoch"] = {"batches": 20, "gap_s": 0.5}
    one["windows"]["drain"] = [window(100, **drained)] * 3
    one["windows"]["kept"] = [window(100, epochs=450, epochs_s=5.0)]
    found = verdict.summary([one])
    # 100 samples in two seconds, one of which was the beginning of an epoch
    assert found["rate"]["steady"] == pytest.approx(50)
    assert found["idle_epochs"] == pytest.approx(0.5)
    assert found["ceiling"]["loader"]["rate"] == pytest.approx(ceiling)
    # 450 samples in 5 s, of which it loses as large a share
    kept = change(found, "one DataLoader with persistent_workers=True")
    assert kept["rate"] == pytest.approx(50 * 90 / ceiling)
    assert "between epochs 50.0% of the time" in table(found)


def copying(transfer_ms: float) -> dict[str, Any]:
    """Return what is found of steps of 10 ms whose batches lie in pageable memory."""
    copies = {"transfer_ms": transfer_ms, "pinned": False}
    return verdict.summary([rank([window(1000)] * 3, 1000, 9000, **copies, **IDLE)])


@pytest.mark.parametrize("transfer_ms", [10.5, 20.0, 25.0])
def test_no_copy_is_spared_that_takes_longer_than_the_step(transfer_ms: float) -> None:
    """A step takes 10 ms, so that the program copies a part of what was copied here."""
    found = copying(transfer_ms)
    assert not [one for one in found["what_if"] if "pin_memory" in one["what"]]


@pytest.mark.parametrize(("transfer_ms", "after_ms"), [(4.0, 6.0), (8.0, 8.0)])
def test_a_copy_from_pageable_memory(transfer_ms: float, after_ms: float) -> None:
    """A step of 10 ms takes as long as the longer of its copy and its rest, and at most half of what is spared more."""
    found = copying(transfer_ms)
    one = change(found, "pin_memory=True with .to(device, non_blocking=True)")
    assert one["rate"] == pytest.approx(1e4 / after_ms)
    assert one["low"] == pytest.approx(0.95 * 1e4 / (5 + after_ms / 2))
    assert one["high"] == pytest.approx(1.05 * 1e4 / after_ms)


@pytest.mark.parametrize(
    ("place", "is_told"), [("grad_scaler.py:371", False), ("train.py:9", True)]
)
def test_a_scalers_wait_is_no_copy(place: str, is_told: bool) -> None:
    """A copy of pinned memory waits where it is without non_blocking."""
    waits = {"pinned": True, "syncs": {place: 1}}
    found = verdict.summary([rank([window(1000)] * 3, 1000, 9000, **waits, **IDLE)])
    assert ("non_blocking=True" in table(found)) is is_told


def test_without_workers_loader_and_step_take_turns() -> None:
    # 1 s for 100 samples, and 0.4 s for the step of them; a worker makes the next ones beside it
    own = [window(100 / 1.4, wait=1.0)] * 3
    one = rank(own, 250, 100, busy=busy())
    one["loader"]["num_workers"] = 0
    found = verdict.summary([one])
    assert found["rate"]["steady"] == pytest.approx(71.43, abs=0.01)
    assert change(found, "num_workers=1")["rate"] == pytest.approx(100)


def test_workers_that_hinder_each_other() -> None:
    one = loads()
    # 24 that all compute, and 2 cores
    one["busy"] = busy(read=0, decode=8)
    one["loader"]["num_workers"], one["hardware"]["cores"] = 24, 2
    assert "num_workers=2: 24 hinder each other" in table(verdict.summary([one]))


def test_a_batch_whose_size_is_a_guess_is_told() -> None:
    one = rank([window(100)] * 3, 200, 300, **IDLE)
    assert "a batch" not in table(verdict.summary([one]))
    guessed = table(verdict.summary([one | {"is_guess": True}]))
    assert "a batch 10 samples, the length of its first tensor; --samples N" in guessed


def test_what_was_tried_is_told_with_what_it_gave() -> None:
    """100 samples/s, the step's own rate, times 1.6; below the loader's 1,000 samples/s."""
    one = rank([window(100)] * 3, 100, 1000, **IDLE)
    one["hardware"] = {"gpu": "H200", "cores": 64}
    left = "not measured torch.autocast, channels_last, torch.compile"
    assert left in table(verdict.summary([one]))
    slower = {"gains": {"channels_last": [1.5, 1.6, 1.8], "torch.autocast": [1.7, 1.9, 2]}}  # fmt: skip
    other = {"gains": {"channels_last": [1.6, 1.7, 1.9], "torch.autocast": [0.8, 0.9, 1]}}  # fmt: skip
    found = verdict.summary([one | slower, one | other])
    gain = change(found, "channels_last")
    # two ranks make 200 samples/s, and the step of both is that of the slower one
    assert gain["rate"] == pytest.approx(320)
    # 1.5 and 1.8 times as fast, less and more by the 5 % of each prediction
    assert gain["low"] == pytest.approx(285) and gain["high"] == pytest.approx(378)
    told = table(found)
    assert "change first channels_last: 320 samples/s are predicted, +60%" in told
    # it was tried, and is slower
    assert "torch.autocast" not in told
    left = told.partition("not measured")[2].partition("change first")[0]
    assert "channels_last" not in left
