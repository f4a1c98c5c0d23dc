"""The settings: preset < flags, one line for every mistake, YAML there and back, --help."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts import UserError
from settings import config
from settings.cli import one_of
from settings.config import FACTS, GROUP_OF, GROUPS, Config, as_yaml, build, parse
from tasks import TASKS, kind_of

ROOT = Path(__file__).resolve().parents[2]


def preset(folder: Path, text: str, name: str = "preset.yaml") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def mistake(argv: list[str]) -> str:
    with pytest.raises(UserError) as caught:
        kind_of(parse(argv))
    said = str(caught.value)
    assert said and "\n" not in said and not re.search("[│╭╰─]|  ", said), said
    return said


def test_a_flag_that_another_one_makes_idle() -> None:
    assert {name for name, facts in FACTS.items() if facts.needs} == CHANGED.keys()
    for name in CHANGED:
        other, *values = FACTS[name].needs
        assert other in GROUP_OF, name
        flag, needs = f"--{name.replace('_', '-')}", f"--{other.replace('_', '-')}"
        assert (
            f"{flag} is for {needs} {' or '.join(values)}, and this is {needs} "
            in mistake([*OTHERWISE[other], flag, *CHANGED[name]])
        )
        given = [
            needs,
            values[0],
            *(("--task", "detection") if other == "augment" else ()),
        ]
        assert (
            parse([*given, flag, *CHANGED[name]]).flat()[name] != Config().flat()[name]
        )


OTHERWISE = {
    "loader": ["--loader", "dali-gpu"],
    "train_window": ["--train-window", "center"],
    "augment": ["--task", "detection", "--augment", "lsj"],
    "schedule": ["--schedule", "constant"],
    "optimizer": ["--optimizer", "adamw"],
    "loss": ["--loss", "ce"],
}
CHANGED = {
    "reader": ["opencv"],
    "decode_threads": ["3"],
    "transforms": ["loaders.images.presets:torchvision_v2"],
    "transforms_on": ["region"],
    "crop_scale": ["0.5", "1"],
    "crop_ratio": ["1", "1"],
    "short_sides": ["300", "400"],
    "final_lr": ["0.001"],
    "lr_milestones": ["3", "6"],
    "lr_step_epochs": ["7"],
    "lr_gamma": ["0.5"],
    "momentum": ["0.5"],
    "nesterov": ["false"],
    "bce_threshold": ["0.2"],
}


def test_a_flag_may_make_idle_what_a_preset_has(tmp_path: Path) -> None:
    path = preset(tmp_path, "schedule: step\nlr_milestones: [3, 6]\n")
    found = parse(["--config", path, "--schedule", "cosine"])
    assert parse(
        ["--config", preset(tmp_path, as_yaml(found), "kept.yaml")]
    ).optimisation.lr_milestones == (
        3,
        6,
    )
    assert (
        "--lr-gamma is for --schedule step, and this is --schedule cosine"
        in mistake(["--config", path, "--schedule", "cosine", "--lr-gamma", "0.5"])
    )


def test_flags_over_preset_over_defaults(tmp_path: Path) -> None:
    path = preset(tmp_path, "batch_size: 32\nlr: 0.5\narch: alexnet\n")
    found = parse(["--config", path, "--lr", "0.25"])
    assert (found.optimisation.lr, found.loading.batch_size, found.model.arch) == (
        0.25,
        32,
        "alexnet",
    )
    assert found.optimisation.momentum == 0.9 == Config().optimisation.momentum
    assert found.run.config == Path(path)
    assert parse([f"--config={path}", "--lr=0.25"]) == found
    assert parse(["--lr", "0.25", "--config", path]) == found


def test_a_flag_with_the_defaults_value_still_wins(tmp_path: Path) -> None:
    path = preset(tmp_path, "lr: 0.5\nceilings: false\nsteps: 7\n")
    found = parse(
        ["--config", path, "--lr", "0.1", "--ceilings", "true", "--steps", "None"]
    )
    assert (found.optimisation.lr, found.run.ceilings, found.optimisation.steps) == (
        0.1,
        True,
        None,
    )


def test_keys_with_dashes_are_those_with_underscores(tmp_path: Path) -> None:
    assert (
        parse(["--config", preset(tmp_path, "batch-size: 3\n")]).loading.batch_size == 3
    )
    assert parse(["--batch-size", "3"]) == parse(["--batch_size", "3"])


@pytest.mark.parametrize("word", ["true", "True"])
@pytest.mark.parametrize("form", ["{} {}", "{}={}"])
def test_true_and_false_in_both_cases(word: str, form: str) -> None:
    assert parse(form.format("--evaluate", word).split()).run.evaluate is True
    other = {"true": "false", "True": "False"}[word]
    assert parse(form.format("--ceilings", other).split()).run.ceilings is False


def test_tuples_take_their_values_one_by_one() -> None:
    assert parse(
        ["--crop-scale", "0.25", "1", "--mean", "0", "0", "0"]
    ).augmentation.crop_scale == (
        0.25,
        1.0,
    )


def test_what_a_run_writes_is_the_preset_of_the_same_run(tmp_path: Path) -> None:
    for argv in (
        [],
        [
            "--lr",
            "1e-5",
            "--steps",
            "3",
            "--crop-scale",
            "0.5",
            "1",
            "--data",
            "my data: 'x'",
            "--compile",
            "true",
        ],
    ):
        found = parse(argv)
        assert parse(
            ["--config", preset(tmp_path, as_yaml(found))]
        ).flat() == found.flat() | {"config": str(tmp_path / "preset.yaml")}


@settings(max_examples=50)
@given(
    st.text(min_size=1),
    st.floats(0, 1e9),
    st.integers(1, 10**12),
    st.booleans(),
    st.none() | st.integers(1, 5),
)
def test_any_value_comes_back_from_yaml(
    text: str, number: float, whole: int, flag: bool, perhaps: int | None
) -> None:
    if "\0" in text:
        return
    values = {
        "weights": text,
        "weight_decay": number,
        "epochs": whole,
        "compile": flag,
        "steps": perhaps,
        "data": "/" + text,
    }
    made = build(values)
    written = as_yaml(made).encode("utf-8", "strict").decode()
    assert build(yaml.safe_load(written)) == made


@pytest.mark.parametrize(
    "path",
    [
        "/a/\udcff\udc80.data",
        "/a/😀",
        "/a/\u2028b",
        "/a/\x85",
        "/a/é",
        "/a/#b",
        "/a/: b",
        "/a/ b ",
        "null",
        "1e-5",
    ],
)
def test_any_path_comes_back_from_yaml(path: str) -> None:
    """\\udcff is how Python spells a byte of a file name that is no UTF-8."""
    made = build({"data": path, "weights": path})
    assert build(yaml.safe_load(as_yaml(made).encode("utf-8").decode())) == made


WRONG_FLAGS = [
    (["--batch-size", "0"], ["--batch-size", "0", "greater than 0"]),
    (["--batch-size"], ["--batch-size"]),
    (["--lr", "nan"], ["--lr", "nan", "finite"]),
    (["--lr", "0"], ["--lr", "greater than 0"]),
    (["--epochs", "0"], ["--epochs"]),
    (["--steps", "0"], ["--steps"]),
    (["--image-size", "4"], ["--image-size", "8"]),
    (["--flip", "1.5"], ["--flip", "1.5"]),
    (["--label-smoothing", "1"], ["--label-smoothing", "less than 1"]),
    (["--momentum", "2"], ["--momentum"]),
    (["--crop-scale", "0.5", "0.2"], ["--crop-scale", "0.5 0.2", "low <= high"]),
    (["--crop-scale", "0", "1"], ["--crop-scale", "0 <"]),
    (["--crop-scale", "0.1", "2"], ["--crop-scale", "<= 1"]),
    (["--crop-ratio", "-1", "1"], ["--crop-ratio"]),
    (["--std", "1", "1", "0"], ["--std", "above 0"]),
    (["--precision", "fp8"], ["--precision", "fp8", "bf16"]),
    (["--optimizer", "adam"], ["--optimizer", "adam", "adamw"]),
    (["--reader", "jpeg"], ["--reader", "pil"]),
    (["--compile", "yes"], ["--compile", "yes"]),
    (["--ceilings", "maybe"], ["'maybe'", "true, false"]),
    (["--output", ""], ["--output got an empty value"]),
    (["--data="], ["--data got an empty value"]),
    (["--val-crops", "2", "--task", "video"], ["--val-crops", "2", "1", "3"]),
    (["--val-clips", "0", "--task", "video"], ["--val-clips", "greater than 0"]),
    (["--clip-fps", "0", "--task", "video"], ["--clip-fps", "greater than 0"]),
    (["--short-side", "40", "30", "--task", "video"], ["--short-side", "40 30"]),
    (["--augment", "lsjj", "--task", "detection"], ["--augment", "'lsjj'", "lsj"]),
    (
        ["--short-side", "40", "--task", "video"],
        ["--short-side got 40; it takes INT INT"],
    ),
    (
        ["--short-side", "32", "99999999999", "--task", "video"],
        ["--short-side got 99999999999: ", "65536"],
    ),
    (
        ["--crop-scale", "nan", "1"],
        ["flags: --crop-scale got nan: input should be a finite number"],
    ),
    (
        ["--val-resize", "1000000000000000000"],
        ["--val-resize got 1000000000000000000: ", "65536"],
    ),
    (["--batch-size", "abc"], ["--batch-size got 'abc'; it takes a whole number"]),
    (["--epochs", "1.5"], ["--epochs got '1.5'; it takes a whole number"]),
    (["--lr", "x"], ["--lr got 'x'; it takes a number"]),
    (
        ["--clip-stride", "99999999999999999999", "--task", "video"],
        ["--clip-stride got 99999999999999999999", "1000000"],
    ),
    (["--graphs", "fast"], ["--graphs", "fast", "auto"]),
    (
        ["--graphs", "true", "--task", "detection"],
        ["--graphs auto", "--task detection"],
    ),
    (
        ["--precision", "fp16-pure", "--task", "detection"],
        ["--precision fp16", "not for --task detection"],
    ),
    (["--bach-size", "3"], ["--bach-size", "did you mean", "batch-size", "--help"]),
    (["--lr", "0.1", "stray"], ["stray"]),
    (["--seed", "-1"], ["--seed"]),
    (["--seed", str(2**63)], ["--seed"]),
    (["--workers", "-1"], ["--workers"]),
    (["--val-clips", "3"], ["--val-clips", "--task video", "--task classification"]),
    (
        ["--task", "video", "--augment", "lsj"],
        ["--augment", "--task detection", "--task video"],
    ),
    (
        ["--task", "video", "--crop-scale", "0.5", "1"],
        ["--crop-scale", "--task classification", "--task video"],
    ),
    (["--score", "found.json"], ["--score", "--task detection"]),
    (
        ["--task", "detection", "--label-smoothing", "0.1"],
        [
            "--label-smoothing is for --task classification or video, and this is --task detection"
        ],
    ),
    (
        ["--task", "detections"],
        [
            "--task",
            "detections",
            "did you mean detection",
            "classification, detection, superres",
        ],
    ),
    (
        ["--config", "/nowhere/x.yaml"],
        ["--config /nowhere/x.yaml", "No such file", "configs/"],
    ),
    (["--config", "/"], ["--config /", "directory"]),
]


@pytest.mark.parametrize(
    ("argv", "words"), WRONG_FLAGS, ids=lambda value: " ".join(value)[:30]
)
def test_wrong_flags_get_one_line(argv: list[str], words: list[str]) -> None:
    said = mistake(argv)
    assert all(word in said for word in words), said
    assert len(said) < 300, said


WRONG_PRESETS = [
    ("bach_size: 3", ["unknown key 'bach_size'", "batch_size", "--help"]),
    ("batch_size: 0", ["--batch-size", "0", "greater than 0"]),
    ("batch_size: [1, 2]", ["--batch-size", "[1, 2]"]),
    ("batch_size:", ["--batch-size", "None"]),
    ("lr: .nan", ["--lr", "nan", "finite"]),
    ("precision: fp8", ["--precision", "'fp8'"]),
    ("crop_scale: [0.5]", ["--crop-scale"]),
    ("crop_scale: [0.5, 0.1]", ["--crop-scale", "low <= high"]),
    ("run: {seed: 1}", ["unknown key 'run'"]),
    ("- a\n- b", ["list", "mapping"]),
    ("# only a comment", ["nothing", "mapping"]),
    ("lr: [0.1", ["does not parse as YAML"]),
    ("lr: 0.1\n\tepochs: 3", ["does not parse as YAML"]),
    ("a: !!python/object/apply:os.system [ls]", ["does not parse as YAML"]),
    ("3: 4", ["unknown key '3'"]),
]


@pytest.mark.parametrize(
    ("text", "words"), WRONG_PRESETS, ids=lambda value: str(value)[:30]
)
def test_wrong_presets_get_one_line_that_names_the_file(
    text: str, words: list[str], tmp_path: Path
) -> None:
    path = preset(tmp_path, text)
    said = mistake(["--config", path])
    assert all(word in said for word in [*words, path]), said


PLACES = [
    name
    for cls in GROUPS.values()
    for name, info in cls.model_fields.items()
    if "Path" in str(info.annotation)
    or name in ("resume", "weights", "lmdb_label", "transforms")
]


@pytest.mark.parametrize("url", ["s3://bucket/x", "https://host/x?sig=secret"])
@pytest.mark.parametrize("name", PLACES)
def test_a_url_is_refused_where_none_is_taken(
    name: str, url: str, tmp_path: Path
) -> None:
    """Path would make a folder s3:/bucket below the current one of it."""
    flag = f"--{name.replace('_', '-')}"
    where = " is a URL; name a file or folder of this machine"
    said = f"{flag}{where}" if name == "config" else f"flags: {flag}{where}"
    assert mistake([flag, url]) == mistake([f"{flag}={url}"]) == said
    if name != "config":
        path = preset(tmp_path, f"{name}: {url}\n")
        assert mistake(["--config", path]) == f"--config {path}: {flag}{where}"


def test_data_may_be_a_url() -> None:
    assert parse(["--data", "s3://bucket/x"]).data.data == "s3://bucket/x"


def test_a_preset_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00\x01")
    assert "does not parse" in mistake(["--config", str(tmp_path / "x.yaml")])


def test_nearest_names() -> None:
    known = ["resnet18", "resnet50", "alexnet"]
    assert one_of("--arch", "alexnet", known) == "alexnet"
    assert one_of("--loader", "auto", known, auto="alexnet") == "alexnet"
    for name, words in (
        ("alexnett", "did you mean alexnet?"),
        ("zzz", "which is unknown; known: resnet18, resnet50, alexnet"),
    ):
        with pytest.raises(UserError, match=re.escape(words)) as caught:
            one_of("--arch", name, known)
        assert str(caught.value).startswith(f"--arch got '{name}'") and "\n" not in str(
            caught.value
        )
    with pytest.raises(UserError) as caught:
        one_of("--arch", "zzz", [f"net{i}" for i in range(80)])
    assert len(str(caught.value)) < 80, "a list of 80 names is no help"


def test_names_of_settings_are_unique_over_groups() -> None:
    assert len(GROUP_OF) == sum(len(group.model_fields) for group in GROUPS.values())
    assert set(GROUPS) == set(Config.model_fields)
    assert {task for facts in FACTS.values() for task in facts.tasks} <= TASKS.keys()


def test_help_lists_every_setting_in_groups(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        parse(["--help"])
    assert not stop.value.code
    text = " ".join(re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    places = [text.index(f"{group} options") for group in GROUPS]
    assert places == sorted(places)
    ends = [*places[1:], len(text)]
    for (group, cls), start, end in zip(GROUPS.items(), places, ends, strict=True):
        part = text[start:end]
        assert cls.__doc__ and cls.__doc__.strip() in part
        for name, info in cls.model_fields.items():
            said = info.description or ""
            assert said.strip().endswith((".", "?")) and len(said) > 10, name
            flag = f"--{name.replace('_', '-')} "
            assert flag in part, f"{flag} is not among the {group} options"
            assert (
                " ".join(said.split()) in part.replace("- ", "-")
                or " ".join(said.split()) in part
            ), f"{flag} is not explained"


STABLE = """config task data source arch loader reader batch-size val-batch-size accumulate epochs steps
image-size workers precision lr optimizer seed output manifest-dir rescan resume evaluate weights compile
ceilings profile read-delay-ms"""


def test_flags_that_stay_stable() -> None:
    assert {flag.replace("-", "_") for flag in STABLE.split()} <= set(GROUP_OF)


def test_which_settings_the_user_gave(tmp_path: Path) -> None:
    preset = tmp_path / "own.yaml"
    preset.write_text("batch_size: 8\nval-resize: 40\n")
    argv = ["--config", str(preset), "--image-size", "32", "--lr=0.1", "--evaluate"]
    assert config.given(argv) == {
        "config",
        "batch_size",
        "val_resize",
        "image_size",
        "lr",
        "evaluate",
    }
    assert config.given([]) == frozenset()
