"""Secrets of URLs: what is shown, what a URL is read with, and what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from saturate.contracts import UserError
from saturate.dataset.stores import remote
from saturate.run.program import Parser
from saturate.settings.config import as_yaml, build
from saturate.settings.preset import read_preset
from saturate.settings.run import Run
from saturate.system import urls
from tests.unit.folders import refused


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(urls.VARIABLE, "")
    monkeypatch.setattr(urls, "_listed", {})


SHOWN = {
    "https://bob:pw@host/set": "https://***@host/set",
    "https://bob:p@w@host:8080/set": "https://***@host:8080/set",
    "https://ghp_token@host/set": "https://***@host/set",
    "HTTPS://bob:pw@host/set": "HTTPS://***@host/set",
    "https:/bob:pw@host/set": "https:/***@host/set",
    "https://host/set?sig=a;b,c'd&token=e": "https://host/set?***",
    "az://box/set?sv=1&sig=pw": "az://box/set?***",
    "--data=https://bob:pw@host/set?sig=pw": "--data=https://***@host/set?***",
    "s3://AKIA:p/w+@bucket/set": "s3://***@bucket/set",
    "s3://bucket/set?a=1&X-Amz-Signature=pw": "s3://bucket/set?***",
    "no https://a:pw@b/c, nor s3://a:pw@b": "no https://***@b/c, nor s3://***@b",
}
PLAIN = """/mnt/a:/b@c?d s3://bucket/what?/a@b https://host:80/a@b http://[::1]:80/a@b
abfs://container@account/a hdfs://user@host/a sqlite:///a.db file:///a@b C:/a@b"""


@pytest.mark.parametrize("url", SHOWN)
def test_a_secret_is_not_shown(url: str) -> None:
    assert urls.taken(url) == urls.masked(url) == SHOWN[url]
    assert urls.taken(SHOWN[url]) == SHOWN[url]


@pytest.mark.parametrize("name", PLAIN.split())
def test_what_has_no_secret_stays_as_it_is(name: str) -> None:
    assert urls.taken(name) == urls.bare(name) == urls.whole(name) == name
    assert urls.ready("--data", name) == name


def test_a_url_is_read_with_the_nearest_secret() -> None:
    urls.taken("https://bob:pw@host/set/?sig=1")
    urls.taken("https://eve:p/w@host/set/train")
    urls.remember({"https://host/set/val/0.tar": "https://host/set/val/0.tar?own"})
    for url, expected in {
        "https://host/set": "https://bob:pw@host/set?sig=1",
        "https://***@host/set?***": "https://bob:pw@host/set?sig=1",
        "https://host/set/a/0.tar": "https://bob:pw@host/set/a/0.tar?sig=1",
        "https://host/set/train/0.tar": "https://eve:p%2Fw@host/set/train/0.tar",
        "https://host/set/val/0.tar": "https://host/set/val/0.tar?own",
        "https://host/set/val/1.tar?own": "https://host/set/val/1.tar?own",
        # another folder, host or protocol gets none
        "https://host/setting/0.tar": "https://host/setting/0.tar",
        "https://host": "https://host",
        "https://evil/set": "https://evil/set",
        "http://host/set": "http://host/set",
    }.items():
        assert urls.whole(urls.bare(url) if "***" in url else url) == expected
    # the last one that was given is the newest
    urls.taken("https://bob:new@host/set?sig=2")
    assert urls.whole("https://host/set/a") == "https://bob:new@host/set/a?sig=2"


def test_a_bucket_is_opened_with_the_key_of_its_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = []
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setattr(remote, "PACKAGES", {})
    monkeypatch.setattr(remote, "_systems", {})
    monkeypatch.setattr(fsspec, "filesystem", lambda name, **how: opened.append(how))
    urls.taken("s3://AKIA:p/w@mine/set")
    for url in ("s3://mine/set/a", "s3://theirs/a", "s3://mine/set/b"):
        assert urls.whole(url) == url
        remote._system(url)
    assert [(how.get("key"), how.get("secret")) for how in opened] == [
        ("AKIA", "p/w"),
        (None, None),
    ]


def test_settings_keep_no_secret_and_say_which_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"data": "https://bob:pw@host/set", "output": "s3://AKIA:pw@bucket/run"}
    config = build(given)
    assert config.run.folder == Path("runs/bucket/run")
    assert "pw" not in f"{config!r} {as_yaml(config)} {config.flat()}"
    kept = yaml.safe_load(as_yaml(config))
    monkeypatch.setenv(urls.VARIABLE, "")
    for name in given:
        flag = f"--{name}"
        with pytest.raises(UserError) as caught:
            urls.ready(flag, kept[name])
        said = f"{flag} {kept[name]}: no file keeps its password; give {flag} with it"
        assert str(caught.value).startswith(said) and urls.VARIABLE in str(caught.value)
    assert build(kept).run.folder == config.run.folder, "the same folder"
    monkeypatch.setenv(urls.VARIABLE, " ".join(given.values()))
    for name, url in given.items():
        assert urls.ready(f"--{name}", kept[name]) == urls.bare(url)
    # whoever gives it by the environment alone is told, too, should it be missing later
    assert build({"data": "https://host/set"}).data.data == "https://***@host/set"


def test_mistakes_of_a_command_line_repeat_no_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        Parser("pack", "").parse_args(["--frm=https://bob:pw@host/set"])
    said = capsys.readouterr().err
    assert "https://***@host/set" in said and "pw" not in said
    preset = tmp_path / "preset.yaml"
    preset.write_text("data: https://bob:pw@host/set: 1")
    assert "pw" not in refused(lambda: read_preset(preset))


def test_run_folder_is_named_by_the_bare_url() -> None:
    for url in ("s3://bucket/run", "s3://AKIA:p/w@bucket/run?X-Amz-Signature=pw"):
        assert Run(output=url).folder == Path("runs/bucket/run")
