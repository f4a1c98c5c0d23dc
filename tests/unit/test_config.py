"""The settings: preset < flags, one line for every mistake, YAML there and back, --help-all, and who reads
each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from contracts import UserError
from settings import config
from settings.config import (
    FACTS,
    GROUP_OF,
    GROUPS,
    as_yaml,
    build,
    for_ranks,
    parse,
)
from tasks import TASKS, kind_of


def preset(folder: Path, text: str | bytes) -> str:
    path = folder / "preset.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def mistake(argv: list[str]) -> str:
    with pytest.raises(UserError) as caught:
        kind_of(parse(argv))
    said = str(caught.value)
    assert said and "\n" not in said and len(said) < 600, said
    return said


@pytest.mark.parametrize(
    ("samples", "batch", "ranks", "expected"),
    [
        (256, 64, 1, (64, 4)),
        (256, 48, 2, (32, 4)),  # the largest divisor of 128
        (256, 64, 3, "multiple of 192"),
        (257, 64, 4, "multiple of 256"),
        (2, 64, 4, "multiple of 4"),
    ],
)
def test_micro_batches_of_a_global_batch(
    samples: int, batch: int, ranks: int, expected: tuple[int, int] | str
) -> None:
    flags = f"--global-batch-size {samples} --batch-size {batch}"
    asked = parse(flags.split())
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            for_ranks(asked, ranks)
        return
    sized = for_ranks(asked, ranks)
    assert (sized.loading.batch_size, sized.optimisation.accumulate) == expected
    assert "follows from" in mistake([*flags.split(), "--accumulate", "2"])


@pytest.mark.parametrize(
    ("name", "flags", "needs"),
    [
        ("decode_threads", "--loader dali-gpu", "--loader dali-fed"),
        ("decode_threads", "--loader dali-gpu", "--loader auto"),
        ("ema_warmup", "--ema 0", "--ema 0.5"),
        ("tta", "", "--predict x"),
    ],
)
def test_a_flag_that_another_one_makes_idle(
    name: str, flags: str, needs: str, tmp_path: Path
) -> None:
    value = {"decode_threads": 3, "ema_warmup": True, "tta": "flip"}[name]
    flag = f"--{name.replace('_', '-')}"
    own = [flag, str(value)]
    other = needs.split()[0]
    with pytest.raises(UserError, match=f"^{flag} is for {other}.*and this is {other}"):
        parse([*flags.split(), *own])
    assert parse([*needs.split(), *own]).flat()[name] == value
    # a preset may keep what a flag has made idle
    parse(["--config", preset(tmp_path, f"{name}: {value}"), *flags.split()])


def test_flags_over_preset_over_defaults(tmp_path: Path) -> None:
    path = preset(tmp_path, "batch-size: 32\nlr: 0.5\nceilings: false\nsteps: 7\n")
    found = parse(["--config", path, "--lr", "0.1", "--ceilings", "--steps", "None"])
    assert (found.optimisation.lr, found.run.ceilings) == (0.1, True)
    assert (found.optimisation.steps, found.loading.batch_size) == (None, 32)
    assert found.optimisation.momentum == 0.9 and found.run.config == Path(path)
    same = ["--lr=0.1", "--steps", "None", "--ceilings=True", f"--config={path}"]
    assert parse(same) == found
    told = {"config", "lr", "ceilings", "steps", "batch_size"}
    assert config.given(same) == told and config.given([]) == frozenset()
    drawn = parse(["--crop-scale", "0.25", "1", "--mean", "0", "0", "0"]).augmentation
    assert (drawn.crop_scale, drawn.mean) == ((0.25, 1.0), (0.0, 0.0, 0.0))
    assert parse(["--data", "s3://bucket/x"]).data.data == "s3://bucket/x"
    crops = parse(["--task", "video", "--val-crops", "3", "--graphs", "false"])
    assert (crops.clips.val_crops, crops.model.graphs) == (3, False)


PATHS = ["/\udcff\udc80.data", "/😀", "/\u2028b", "/\x85", "/é", "/#b", "/: b", "/ b "]


@pytest.mark.parametrize("path", [*PATHS, "null", "1e-5", "my data: 'x'"])
def test_any_value_comes_back_from_yaml(path: str) -> None:
    """\\udcff is how Python spells a byte of a file name that is no UTF-8."""
    values = {"data": path, "weights": path, "crop_scale": (0.5, 1), "steps": 3}
    made = build(values | {"weight_decay": 1e-7, "compile": True})
    assert build(yaml.safe_load(as_yaml(made).encode("utf-8").decode())) == made


VIDEO = "--task video"
DETECTION = "--task detection"
WRONG_FLAGS = {
    "--batch-size 0": "--batch-size got '0': input should be greater than 0",
    "--batch-size": "--batch-size: expected one argument",
    "--lr nan": "--lr got 'nan': .*finite",
    "--crop-scale 0.5 0.2": "--crop-scale got 0.5 0.2; .*low <= high",
    "--precision fp8": "--precision got 'fp8': .*bf16",
    "--data=": "--data got an empty value",
    f"{VIDEO} --val-crops 2": "--val-crops .*1 or 3",
    f"{DETECTION} --graphs true": "--graphs true is not for --arch fasterrcnn.*--graphs auto",
    f"{DETECTION} --label-smoothing 0.1": "--label-smoothing is for --task "
    "classification or video, and this is --task detection",
    "--val-clips 3": "--val-clips .*--task video.*--task classification",
    "--task detections": "did you mean detection.*classification, detection, superres",
    "--bach-size 3": "--bach-size.*did you mean.*batch-size.*--help-all",
    "--lr 0.1 stray": "stray: a path needs a flag, --data FOLDER",
    "--config /nowhere/x.yaml": "--config /nowhere/x.yaml: No such file.*configs/",
    "--predict a --evaluate": "--predict and --evaluate are two runs",
    "--data a --output a/b": "--output a/b lies inside --data a",
    "--model resnet18": "--model is --arch NAME here",
}


@pytest.mark.parametrize("words", WRONG_FLAGS)
def test_wrong_flags_get_one_line(words: str) -> None:
    assert re.search(WRONG_FLAGS[words], mistake(words.split()))


WRONG_PRESETS = {
    "bach_size: 3": "unknown key 'bach_size'.*batch_size.*--help",
    "batch_size:": "--batch-size got None",
    "run: {seed: 1}": "unknown key 'run'",
    "# only a comment": "nothing.*mapping",
    "seed: !!bool abc": "does not parse as YAML",
    b"\xff\xfe\x00\x01": "does not parse",
    "lr: " + "[" * 3000: "does not parse",
}


@pytest.mark.parametrize("text", WRONG_PRESETS, ids=lambda text: str(text)[:30])
def test_wrong_presets_get_one_line_that_names_the_file(
    text: str | bytes, tmp_path: Path
) -> None:
    path = preset(tmp_path, text)
    said = mistake(["--config", path])
    assert path in said and re.search(WRONG_PRESETS[text], said), said


@pytest.mark.parametrize("name", ["config", "manifest_dir", "transforms"])
def test_a_url_is_refused_where_none_is_taken(name: str, tmp_path: Path) -> None:
    """Path would make a folder s3:/bucket below the current one of it."""
    flag = f"--{name.replace('_', '-')}"
    where = f"{flag} is a URL; name a file or folder of this machine"
    assert mistake([flag, "https://host/x?sig=secret"]).endswith(where)
    if name != "config":
        path = preset(tmp_path, f"{name}: s3://bucket/x\n")
        assert mistake(["--config", path]) == f"--config {path}: {where}"


def test_help_lists_every_setting_in_groups(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert len(GROUP_OF) == sum(len(group.model_fields) for group in GROUPS.values())
    assert {task for facts in FACTS.values() for task in facts.tasks} <= TASKS.keys()
    with pytest.raises(SystemExit) as stop:
        parse(["--help-all"])
    assert not stop.value.code
    text = " ".join(capsys.readouterr().out.split())
    for group, cls in GROUPS.items():
        assert (
            f"{group} options:" in text
            and " ".join((cls.__doc__ or "?").split()) in text
        )
        for name, info in cls.model_fields.items():
            said = " ".join((info.description or "").split())
            assert said.endswith(".") and len(said) > 10, name
            assert f"--{name.replace('_', '-')} " in text and said in text, name
