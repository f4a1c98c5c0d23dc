"""The settings: preset < flags, one line for every mistake, YAML there and back, --help-all, and who reads
each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from saturate.contracts import UserError
from saturate.settings import config
from saturate.settings.cli import one_of
from saturate.settings.config import (
    FACTS_OF,
    GROUP_OF,
    GROUPS,
    Config,
    as_yaml,
    build,
    micro_batches,
    parse,
)
from saturate.tasks import TASKS, kind_of


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
        (256, 64, 4, (64, 1)),
        (256, 64, 1, (64, 4)),
        (256, 48, 2, (32, 4)),  # the largest divisor of 128
        (96, 64, 8, (12, 1)),
        (256, 64, 3, "multiple of 192"),
        (9, 4, 2, "multiple of 8"),
        (254, 64, 2, "multiple of 128"),  # 127 is prime
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
            micro_batches(asked, ranks)
        return
    assert micro_batches(asked, ranks) == expected
    assert "follows from" in mistake([*flags.split(), "--accumulate", "2"])


CHANGED = {
    "reader": "--loader dali-gpu --reader opencv",
    "val_group": "--val-group folder",
    "val_fold": "--val-fold 2",
    "val_seed": "--val-seed 2",
    "cache_gib": "--cache-gib 2",
    "erase_mode": "--erase-mode pixel",
    "decode_threads": "--loader dali-gpu --decode-threads 3",
    "transforms": "--loader dali-gpu --transforms a.b:c",
    "transforms_on": "--transforms-on region",
    "mix_switch_prob": "--mix-switch-prob 0.3",
    "crop_scale": "--train-window center --crop-scale 0.5 1",
    "crop_ratio": "--train-window center --crop-ratio 1 1",
    "short_sides": "--augment lsj --short-sides 300 400",
    "final_lr": "--schedule constant --final-lr 0.001",
    "lr_milestones": "--schedule constant --lr-milestones 3 6",
    "lr_step_epochs": "--schedule constant --lr-step-epochs 7",
    "lr_gamma": "--schedule constant --lr-gamma 0.5",
    "lr_power": "--schedule constant --lr-power 3",
    "momentum": "--optimizer adamw --momentum 0.5",
    "nesterov": "--optimizer adamw --nesterov false",
    "bce_threshold": "--loss ce --bce-threshold 0.2",
    "predict_format": "--predict-format jsonl",
    "split": "--split test",
    "patience": "--val-every 0 --patience 3",
    "until": "--val-every 0 --until top1=0.5",
    "ema_warmup": "--ema 0 --ema-warmup true",
    "label_separator": "--label-separator |",
    "val_resize": "--val-window stretch --val-resize 300",
    "val_crop_share": "--val-window stretch --val-crop-share 0.9",
    "teacher_share": "--teacher-share 0.2",
    "teacher_temperature": "--teacher-temperature 3",
}
"""A setting that another one makes idle -> flags with both."""


IDLE = {name for name, facts in FACTS_OF.items() if facts.needs}


@pytest.mark.parametrize("name", sorted(IDLE.union(CHANGED)))
def test_a_flag_that_another_one_makes_idle(name: str, tmp_path: Path) -> None:
    assert name in CHANGED, f"{name} has no case in CHANGED"
    assert name in IDLE, f"{name} of CHANGED needs no other setting"
    other, *values = FACTS_OF[name].needs
    words = CHANGED[name].split()
    flag, needs = (f"--{word.replace('_', '-')}" for word in (name, other))
    with pytest.raises(UserError, match=f"^{flag} is for {needs}.*and this is {needs}"):
        parse(words)
    enough = [needs, *(values[:1] or ["0.5" if other in ("ema", "val_share") else "1"])]
    own = words[words.index(flag) :]
    with_it = parse([*enough, *own]).flat()
    assert with_it[name] != Config().flat()[name]
    # a preset may keep what a flag has made idle
    path = preset(tmp_path, yaml.safe_dump({name: with_it[name]}))
    parse(["--config", path, *words[: words.index(flag)]])


def test_flags_over_preset_over_defaults(tmp_path: Path) -> None:
    path = preset(tmp_path, "batch-size: 32\nlr: 0.5\nceilings: false\nsteps: 7\n")
    found = parse(["--config", path, "--lr", "0.1", "--ceilings", "--steps", "None"])
    assert (found.optimisation.lr, found.run.ceilings) == (0.1, True)
    assert (found.optimisation.steps, found.loading.batch_size) == (None, 32)
    assert found.optimisation.momentum == 0.9 and found.run.config == Path(path)
    same = ["--lr=0.1", "--steps", "None", "--ceilings=True", f"--config={path}"]
    assert parse(same) == found
    assert parse(["--batch_size", "3"]) == parse(["--batch-size", "3"])
    told = {"config", "lr", "ceilings", "steps", "batch_size"}
    assert config.given(same) == told and config.given([]) == frozenset()
    drawn = parse(["--crop-scale", "0.25", "1", "--mean", "0", "0", "0"]).augmentation
    assert (drawn.crop_scale, drawn.mean) == ((0.25, 1.0), (0.0, 0.0, 0.0))
    assert parse(["--data", "s3://bucket/x"]).data.data == "s3://bucket/x"
    crops = parse(["--task", "video", "--val-crops", "3", "--graphs", "false"])
    assert (crops.clips.val_crops, crops.model.graphs) == (3, False)


@settings(max_examples=25)
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
    values = {"weights": text, "weight_decay": number, "epochs": whole}
    values |= {"compile": flag, "steps": perhaps, "data": "/" + text}
    made = build(values)
    written = as_yaml(made).encode("utf-8", "strict").decode()
    assert build(yaml.safe_load(written)) == made


PATHS = ["/\udcff\udc80.data", "/😀", "/\u2028b", "/\x85", "/é", "/#b", "/: b", "/ b "]


@pytest.mark.parametrize("path", [*PATHS, "null", "1e-5", "my data: 'x'"])
def test_any_path_comes_back_from_yaml(path: str) -> None:
    """\\udcff is how Python spells a byte of a file name that is no UTF-8."""
    made = build({"data": path, "weights": path, "crop_scale": (0.5, 1)})
    assert build(yaml.safe_load(as_yaml(made).encode("utf-8").decode())) == made


VIDEO = "--task video"
DETECTION = "--task detection"
WRONG_FLAGS = {
    "--batch-size 0": "--batch-size got '0': input should be greater than 0",
    "--batch-size": "--batch-size: expected one argument",
    "--lr nan": "--lr got 'nan': .*finite",
    "--crop-scale 0.5 0.2": "--crop-scale got 0.5 0.2; .*low <= high",
    "--crop-ratio -1 1": "--crop-ratio got -1",
    "--std 1 1 0": "--std .*above 0",
    # ImageNet's in levels, as other programs have them
    "--mean 123.675 116.28 103.53": "--mean got .*divide",
    "--std 58.395 57.12 57.375": "--std got .*divide",
    "--precision fp8": "--precision got 'fp8': .*bf16",
    "--data=": "--data got an empty value",
    f"{VIDEO} --val-crops 2": "--val-crops .*1 or 3",
    f"{VIDEO} --short-side 40 30": "--short-side got 40 30",
    f"{DETECTION} --augment lsjj": "--augment got 'lsjj': .*lsj",
    f"{DETECTION} --graphs true": "--graphs true is not for --arch fasterrcnn.*--graphs auto",
    f"{DETECTION} --label-smoothing 0.1": "--label-smoothing is for --task "
    "classification or video, and this is --task detection",
    # files alone
    f"{DETECTION} --cache-dir a": "--cache-dir is for --task classification or superres",
    f"{VIDEO} --read-threads 3": "--read-threads is for --task classification or superres",
    "--val-clips 3": "--val-clips .*--task video.*--task classification",
    "--task detections": "did you mean detection.*classification, detection, superres",
    "--bach-size 3": "--bach-size.*did you mean.*batch-size.*--help-all",
    "--log wandb tensorboard": "--log got 'tensorboard', which is always written",
    "--lr 0.1 stray": "stray: a path needs a flag; --data FOLDER",
    "--seed -1": "--seed got",
    f"--seed {2**63}": "--seed got",
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
    "lr: .nan": "--lr got nan: .*finite",
    "<<: {lr: 1}\n<<: {epochs: 2}\nbach_size: 3": "unknown key 'bach_size'",
    "lr: 0.1\nepochs: 5\nlr: 0.5": "key 'lr' is there twice",
    "batch-size: 8\nbatch_size: 16": "key 'batch_size' is there twice",
    "run: {seed: 1}": "unknown key 'run'",
    "# only a comment": "nothing.*mapping",
    "a: !!python/object/apply:os.system [ls]": "does not parse as YAML",
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


@pytest.mark.parametrize("key", ["lr", "mean"])
def test_aliases_are_not_written_out(key: str, tmp_path: Path) -> None:
    """Each has several of the one before: the last one, written out, fills any memory."""
    value = "1"
    nest = "[N, N, N, N, N, N, N, N]"
    for level in range(16):
        value = nest.replace("N", f"&a{level} {value}", 1).replace("N", f"*a{level}")
    assert "..." in mistake(["--config", preset(tmp_path, f"{key}: {value}\n")])


OPTIONAL = [
    name
    for cls in GROUPS.values()
    for name, info in cls.model_fields.items()
    if info.default is None
]


@pytest.mark.parametrize("name", OPTIONAL)
def test_every_optional_setting_takes_none(name: str, tmp_path: Path) -> None:
    """It takes back what a preset, or a checkpoint, has set; in a preset the word is the same."""
    flag = f"--{name.replace('_', '-')}"
    for words in ([flag, "none"], [f"{flag}=None"], [flag, "NONE", "--seed", "1"]):
        assert parse(words).flat()[name] is None
        assert name in config.given(words)
    if name != "config":
        path = preset(tmp_path, f"{name}: none\n")
        assert parse(["--config", path]).flat()[name] is None


def test_none_is_a_word_of_settings_that_have_a_value_without_it() -> None:
    assert parse(["--tta", "none", "--predict", "a"]).run.tta == "none"
    assert parse(["--auto-augment", "none"]).augmentation.auto_augment == "none"
    assert "--epochs got 'none'" in mistake(["--epochs", "none"])
    assert "--mean: expected 3 arguments" in mistake(["--mean", "0.1", "0.2"])


PLACES = [
    name
    for cls in GROUPS.values()
    for name, info in cls.model_fields.items()
    if "Path" in str(info.annotation)
    or name in ("resume", "weights", "lmdb_label", "transforms")
]


@pytest.mark.parametrize("name", PLACES)
def test_a_url_is_refused_where_none_is_taken(name: str, tmp_path: Path) -> None:
    """Path would make a folder s3:/bucket below the current one of it."""
    flag = f"--{name.replace('_', '-')}"
    where = f"{flag} is a URL; name a file or folder of this machine"
    assert mistake([flag, "https://host/x?sig=secret"]).endswith(where)
    if name != "config":
        path = preset(tmp_path, f"{name}: s3://bucket/x\n")
        assert mistake(["--config", path]) == f"--config {path}: {where}"


@pytest.mark.parametrize("words", ["--arch resnet50", "--weights w.pt"])
def test_a_preset_is_named_to_who_has_no_recipe_of_their_own(words: str) -> None:
    named = words.split()
    assert all("defaults" in line for line in config.recipe(parse(named), "resnet50"))
    assert config.recipe(parse([*named, "--epochs", "3"]), "resnet50")
    for own in ("--lr 0.01", "--optimizer adamw", "--warmup-epochs 0"):
        assert not config.recipe(parse([*named, *own.split()]), "resnet50")


def test_nearest_names() -> None:
    known = ["resnet18", "resnet50", "alexnet"]
    assert one_of("--arch", "alexnet", known) == "alexnet"
    assert one_of("--loader", "auto", known, auto="alexnet") == "alexnet"
    for name, words in {
        "alexnett": " (did you mean alexnet?)",
        "zzz": ", which is unknown; known: resnet18, resnet50, alexnet",
    }.items():
        with pytest.raises(UserError, match=re.escape(f"--arch got '{name}'{words}")):
            one_of("--arch", name, known)
    with pytest.raises(UserError) as caught:
        one_of("--arch", "zzz", [f"net{i}" for i in range(80)])
    assert len(str(caught.value)) < 80, "a list of 80 names is no help"


def test_help_lists_every_setting_in_groups(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert len(GROUP_OF) == sum(len(group.model_fields) for group in GROUPS.values())
    assert {task for facts in FACTS_OF.values() for task in facts.tasks} <= TASKS.keys()
    with pytest.raises(SystemExit) as stop:
        parse(["--help-all"])
    assert not stop.value.code
    out = capsys.readouterr().out
    # a word alone on the last line of a paragraph
    orphans = re.findall(r"[^\n]\n +\w+[.)]+(?=\n\n|$)|\n\w+\.(?=\n\n)", out)
    assert not orphans
    text = " ".join(out.split())
    places = [text.index(f"{group} options") for group in GROUPS]
    ends = [*places[1:], len(text)]
    for cls, start, end in zip(GROUPS.values(), places, ends, strict=True):
        assert start < end and " ".join((cls.__doc__ or "?").split()) in text
        for name, info in cls.model_fields.items():
            said = " ".join((info.description or "").split())
            assert said.endswith((".", "?")) and len(said) > 10, name
            assert f"--{name.replace('_', '-')} " in text[start:end], name
            assert said in text[start:end], name
