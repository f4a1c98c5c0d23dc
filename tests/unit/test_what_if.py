"""Predictions held against rates worked out by hand, and against a simulated machine with workers and cores."""

from __future__ import annotations

from typing import Any

import pytest

from saturate.report import what_if


def summary(**changes: Any) -> dict[str, Any]:
    """A run of 4 workers on 16 cores: 10 ms an image of reading, 2 of decoding, so that 333 img/s are loaded."""
    return {
        "rate": {"steady": 330.0, "spread": {"iqr": 3.3}, "short": False},
        "ceiling": {"compute": {"rate": 2000.0}, "loader": {"rate": 333.0}},
        "hardware": {"cores": 16, "gpu": None},
        "cpu": {"utilisation": 0.05},
        "workers": 4,
        "world_size": 1,
        "one_shape": True,
        "stages": {
            "read": {"ms": 10.0, "cpu_ms": 0.0},
            "decode": {"ms": 2.0, "cpu_ms": 2.0},
            "idle": {"ms": 50.0, "cpu_ms": 0.1},
        },
    } | changes


def predicted(of: dict[str, Any], what: str) -> dict[str, Any]:
    (one,) = (one for one in what_if.predictions(of) if one["what"] == what)
    assert one["low"] <= one["rate"] <= one["high"]
    return one


def simulated(workers: int, read: float, decode: float, cores: float) -> float:
    """The rate of workers that wait and compute in turn: as many as there are, or as the cores allow."""
    return min(workers / (read + decode), cores / decode)


@pytest.mark.parametrize(
    ("what", "after"),
    [
        ("--workers 2", simulated(2, 0.010, 0.002, 16)),
        ("--workers 8", simulated(8, 0.010, 0.002, 16)),
        ("--workers 16", simulated(16, 0.010, 0.002, 16)),
        ("storage without latency", min(simulated(4, 0, 0.002, 16), 2000)),
    ],
)
def test_workers_that_wait_for_storage(what: str, after: float) -> None:
    assert predicted(summary(), what)["rate"] == pytest.approx(after, rel=0.02)


def test_no_more_than_the_step_takes_nor_than_the_cores_give() -> None:
    fed = summary(ceiling={"compute": {"rate": 500.0}, "loader": {"rate": 333.0}})
    one = predicted(fed, "storage without latency")
    assert one["rate"] == pytest.approx(500 * 330 / 333, rel=0.01)
    # 20.1 ms of loading and 8 of the step: 16 cores make 569 img/s, whatever else runs on this machine
    stages = summary()["stages"] | {"decode": {"ms": 20.0, "cpu_ms": 20.0}}
    for utilisation in (0.8, 1.0):
        busy = summary(cpu={"utilisation": utilisation}, stages=stages)
        one = predicted(busy, "--workers 8")
        assert one["rate"] == pytest.approx(569 * 330 / 333, rel=0.01)


def test_a_slow_function_of_ones_own() -> None:
    stages = {
        "read": {"ms": 0.5, "cpu_ms": 0.5},
        "decode": {"ms": 1.5, "cpu_ms": 1.5},
        "transforms": {"ms": 6.0, "cpu_ms": 0.0},
    }
    one = predicted(summary(stages=stages), "--transforms that take no time")
    assert one["rate"] == pytest.approx(330 * 4, rel=0.01)


GPU = {"gpu": "H100", "cores": 16}


def test_launches_and_passes_over_memory() -> None:
    compute = {"rate": 1000.0, "step_ms": 10.0, "kernel_ms": 4.0, "arithmetic_ms": 1.0}
    ceiling = {"compute": compute, "loader": {"rate": 20_000.0}}
    rate = {"steady": 1000.0, "spread": {"iqr": 0.0}, "short": False}
    of = summary(rate=rate, ceiling=ceiling, hardware=GPU, stages={}, batch_size=10)
    of["graphs_off"] = "--graphs false"
    graphs = predicted(of, "--graphs true")
    likely, most = (1 - share * 0.6 for share in (0.2, 0.4))
    assert graphs["rate"] == pytest.approx(2500 / likely)
    assert graphs["low"] == pytest.approx(2500 * (1 - what_if.MODEL))
    assert graphs["high"] == pytest.approx(2500 / most * (1 + what_if.MODEL))
    assert predicted(of, "--batch-size 20, another recipe")["rate"] == pytest.approx(
        2000
    )
    compiled = predicted(of, "--compile true")
    least, most = what_if.FUSED_PRODUCTS
    # 3 of 10 ms pass over memory, of which the middle of the range is saved
    middle = (least + most) / 2
    assert compiled["rate"] == pytest.approx(1000 * 10 / (10 - middle * 3))
    assert compiled["low"] <= 1000 * 10 / (10 - least * 3)
    assert compiled["high"] >= 1000 * 10 / (10 - most * 3)
    compute["convolutions"] = 0.9
    assert predicted(of, "--compile true")["rate"] < compiled["rate"]
    for refused in (
        {"graphs_off": None, "compile": True},
        {"graphs_off": "the host waits in the step", "compile": True},
        {"one_shape": False},
    ):
        told = {one["what"] for one in what_if.predictions(of | refused)}
        assert not told & {"--graphs true", "--compile true"}, refused


def test_loaders_that_auto_has_measured() -> None:
    measured = {
        "dali-gpu": {"rate": 1500.0},
        "torchvision": {"rate": 330.0},
        "dali-cpu": {"why": "no"},
    }
    of = summary(loader="torchvision", loader_auto={"measured": measured})
    listed = what_if.predictions(of)
    assert listed[0]["what"] in ("storage without latency", "--loader dali-gpu")
    assert predicted(of, "--loader dali-gpu")["rate"] == pytest.approx(1500, rel=0.02)
    assert [one["gain"] for one in listed] == sorted(
        (one["gain"] for one in listed), reverse=True
    )


def test_more_workers_are_worth_no_more_than_the_decoder_behind_them() -> None:
    """Twice the workers read 660 images/s, of which DALI decodes 500, and the run loses 3 of 333."""
    of = summary()
    of["ceiling"]["loader"]["decoder"] = 500.0
    assert predicted(of, "--workers 8")["rate"] == pytest.approx(500 * 330 / 333)
    # a GPU that decodes 2,000 and trains 2,000 makes 1,000 in turns, and 0.8 of what is between that and 2,000;
    # as it is, with 333, 285.5 in turns and 323.5
    of["ceiling"]["loader"]["decoder"] = 2000.0
    on_gpu = of | {"loader": "dali-fed", "hardware": {"cores": 16, "gpu": "a"}}
    faster = predicted(on_gpu, "storage without latency")["rate"]
    assert faster == pytest.approx(1800 * 330 / 323.5, rel=1e-3)
    # it is the very decoder that holds the loader: nothing is lost
    of["ceiling"]["loader"]["decoder"] = 300.0
    assert predicted(of, "--workers 8")["rate"] == pytest.approx(330)


def test_a_rate_that_was_measured_with_the_step_is_lessened_once() -> None:
    """The run makes 330 of its 500 img/s; before, its loader made 300 with the step, and another one 400."""
    of = summary(loader="torchvision")
    of["ceiling"] = {"compute": {"rate": 500.0}, "loader": {"rate": 600.0}}
    measured = {"dali-cpu": {"rate": 400.0}, "torchvision": {"rate": 300.0}}
    of["loader_auto"] = {"measured": measured}
    assert predicted(of, "--loader dali-cpu")["rate"] == pytest.approx(440)


@pytest.mark.parametrize("what", ["--workers 8", "storage without latency"])
def test_a_loader_is_no_use_to_a_step_that_has_its_data(what: str) -> None:
    """Beside the loader, which alone makes 600 img/s, the step takes 330, and waits for 1 % of its time."""
    of = summary(data_wait={"share": 0.01})
    of["ceiling"] = {"compute": {"rate": 2000.0}, "loader": {"rate": 600.0}}
    assert predicted(of, what)["rate"] == pytest.approx(330 / 0.99)
    of["data_wait"] = {"share": 0.5}
    slow = predicted(of, what)["rate"]
    assert slow == predicted(of | {"data_wait": None}, what)["rate"], (
        "a step that waits is slow for that"
    )


def test_no_rate_is_below_zero() -> None:
    rate = {"steady": 330.0, "spread": {"iqr": 400.0}, "short": False}
    assert predicted(summary(rate=rate), "--workers 8")["low"] == 0


def test_ranks_share_the_cores_of_a_machine() -> None:
    """Two ranks of two workers on four cores, whose images take 2 ms of a core: no worker more helps."""
    stages = {"decode": {"ms": 2.0, "cpu_ms": 2.0}}
    ceiling = {"compute": {"rate": 9000.0}, "loader": {"rate": 2000.0}}
    rate = {"steady": 1900.0, "spread": {"iqr": 0.0}, "short": False}
    of = summary(stages=stages, ceiling=ceiling, rate=rate, workers=2, world_size=2)
    of |= {"hardware": {"cores": 4}, "cores_a_rank": 2.0, "cpu": {"utilisation": None}}
    assert predicted(of, "--workers 4")["rate"] == pytest.approx(1900)
    # as many ranks on each of two machines: the cores of the other one count too
    four = of | {"world_size": 4, "cpu": {"utilisation": 0.5}}
    model = what_if.model_of(four)
    assert model is not None and model.cpu_s == pytest.approx(0.5 * 8 / 1900)
    assert model.cpu_s and model.cores and model.stage("decode") == 0.002
    assert model.without_cpu(model.cpu_s / 2) == pytest.approx(2 * model.cores)


@pytest.mark.parametrize(
    ("workers", "ms", "cpu_ms", "gain"),
    [
        (4, 18.0, 0.0, 1.0),  # it waits: twice the workers make twice as much
        (40, 180.0, 18.0, 0.0),  # it waits for one of four cores, as decoding does
    ],
)
def test_a_function_that_waits_and_one_that_lacks_a_core(
    workers: int, ms: float, cpu_ms: float, gain: float
) -> None:
    stretched = ms / cpu_ms if cpu_ms else 1.0
    stages = {
        "decode": {"ms": 2.0 * stretched, "cpu_ms": 2.0},
        "transforms": {"ms": ms, "cpu_ms": cpu_ms},
    }
    of = summary(stages=stages, workers=workers, hardware={"cores": 4})
    of["ceiling"] = {"compute": {"rate": 9000.0}, "loader": {"rate": 333.0}}
    one = predicted(of, f"--workers {2 * workers}")
    assert one["gain"] == pytest.approx(gain, abs=0.01)
    half = predicted(of, f"--workers {workers // 2}")
    assert half["gain"] == pytest.approx(-gain / 2, abs=0.01)


def test_nothing_is_predicted_where_the_rate_is_above_a_ceiling() -> None:
    rate = {"steady": 350.0, "spread": {"iqr": 3.3}, "short": False}
    assert what_if.predictions(summary(rate=rate)) == []


def decodes(**changes: Any) -> dict[str, Any]:
    """A run of 4 workers that decode an image in 6 ms of a core, of which each gets the half."""
    stages = {"decode": {"ms": 12.0, "cpu_ms": 6.0}}
    return summary(stages=stages, hardware={"cores": 4, "gpu": "H100"}, **changes)


@pytest.mark.parametrize(
    ("busy", "loader", "of_loader", "gains"),
    [
        # each gets half of the time where both want all of it
        (1.0, "torchvision", 2000.0, [1.0]),
        (0.25, "torchvision", 2000.0, [1 / 3]),
        # a loader that decodes there is slow for it too, and another one is not
        (0.25, "dali-gpu", 333.0, [1 / 3]),
        (0.25, "torchvision", 333.0, [0.0]),
        (None, "dali-gpu", 333.0, []),
    ],
)
def test_a_neighbour_on_the_gpu(
    busy: float | None, loader: str, of_loader: float, gains: list[float]
) -> None:
    of = summary(
        ceiling={"compute": {"rate": 333.0}, "loader": {"rate": of_loader}},
        loader=loader,
        gpu={"shared": busy and {"busy": busy, "who": []}},
    )
    found = [one for one in what_if.predictions(of) if one["what"] == "this GPU alone"]
    assert [one["gain"] for one in found] == pytest.approx(gains, abs=0.01)
    assert not any(one["settings"] for one in found)


@pytest.mark.parametrize(
    ("rates", "changes", "gain"),
    [
        ((2000.0, 333.0), {}, 0.0),  # which the cores decode
        ((2000.0, 333.0), {"stages": {"dali": {"ms": 3.0, "cpu_ms": 0.0}}}, 1.0),
        ((333.0, 2000.0), {}, 0.9),  # 1.90 x, as 95 % of two
    ],
)
def test_a_second_gpu(
    rates: tuple[float, float], changes: dict[str, Any], gain: float
) -> None:
    compute, loader = rates
    ceiling = {"compute": {"rate": compute}, "loader": {"rate": loader}}
    of = decodes() | {"ceiling": ceiling, **changes}
    assert predicted(of, "2 GPUs for 1")["gain"] == pytest.approx(gain, abs=0.01)


@pytest.mark.parametrize(("others", "gains"), [(2, [1.0]), (1, [1 / 3]), (0.3, [])])
def test_neighbours_on_the_cores(others: float, gains: list[float]) -> None:
    """Workers on half a core each double at most, and by no more than what others have taken."""
    of = decodes(cpu={"utilisation": 1.0, "others": others})
    found = [o for o in what_if.predictions(of) if o["what"] == "these cores alone"]
    assert [one["gain"] for one in found] == pytest.approx(gains, abs=0.02)
    # of 24 ms half are waits for storage, and a worker that gets a core of its own has 18 left
    stages = {
        "decode": {"ms": 12.0, "cpu_ms": 6.0},
        "read": {"ms": 12.0, "cpu_ms": 0.0},
    }
    half = {**of, "stages": stages}
    if gains == [1.0]:
        gain = predicted(half, "these cores alone")["gain"]
        assert gain == pytest.approx(24 / 18 - 1, abs=0.02)
    # a loop of one thread that had 0.6 of a core, where others took nine tenths of the cores, gets one at most
    one = summary(
        cpu={"utilisation": (0.6 + 14.4) / 16, "others": 14.4, "threads": 1},
        ceiling={"compute": {"rate": 330.0}, "loader": {"rate": 1e4}},
    )
    gain = predicted(one, "these cores alone")["gain"]
    assert gain == pytest.approx(1 / 0.6 - 1, abs=0.02)
    # who waits for storage, and gets a core at once, gains nothing
    waits = summary(cpu={"utilisation": 0.9, "others": 9.0})
    assert predicted(waits, "these cores alone")["gain"] == pytest.approx(0.0, abs=0.01)


def test_files_that_are_slow_to_decode() -> None:
    """One of 200 images has as many pixels as the others together."""
    large = {"files": 0.005, "pixels": 0.51, "above_median": 0.5}
    one = predicted(decodes(files={"large": large, "progressive": 0.0}), LARGE)
    assert one["gain"] == pytest.approx(1.0, rel=0.01)
    of_dali = {
        "stages": {"dali": {"ms": 3.0, "cpu_ms": 0.0}},
        "files": {"large": large},
    }
    one = predicted(summary(**of_dali), LARGE)
    assert one["gain"] == pytest.approx(1.0, rel=0.01) and one["low"] < 330.0
    # half of the files take 1.8 to 2.6 times as long, 2.2 mostly: all take 1.4 to 1.8 times, and 1.6
    of = decodes(files={"progressive": 0.5})
    one = predicted(of, BASELINE)
    assert one["gain"] == pytest.approx(0.6, rel=0.01)
    assert one["low"] < 330 * 1.4 < 330 * 1.8 < one["high"]
    # what the decoders of a GPU would gain nobody has measured
    of = summary(stages=of_dali["stages"], files={"progressive": 1.0})
    assert BASELINE not in {one["what"] for one in what_if.predictions(of)}


def test_photographs_that_are_larger_than_what_is_seen_of_them() -> None:
    """Nine tenths of the pixels would not be there, and decoding takes all of the time."""
    what = "copies of 640 px (scripts.pack)"
    one = predicted(decodes(files={"above_side": 0.9}), what)
    # the loader could make ten times as much, and the step 2,000
    assert one["gain"] == pytest.approx(2000 / 333 - 1, rel=0.02)
    few = what_if.predictions(decodes(files={"above_side": 0.7}))
    assert what not in {one["what"] for one in few}


LARGE, BASELINE = "large files made like the others", "baseline JPEGs (jpegtran)"


@pytest.mark.parametrize("missing", ["rate", "ceiling"])
def test_nothing_is_predicted_of_what_was_not_measured(missing: str) -> None:
    assert what_if.predictions(summary() | {missing: None}) == []
    assert what_if.sentence([], summary()) == ""


def test_three_lines_of_those_that_gain() -> None:
    of = summary()
    lines = what_if.sentence(what_if.predictions(of), of).split("; ")
    assert len(lines) == what_if.SHOWN
    assert lines[0].startswith("storage without latency: 1,9") and "+500%" in lines[0]
