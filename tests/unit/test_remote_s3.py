"""Shards and runs in a bucket: moto's S3 server, through s3fs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from saturate.dataset.stores import claim, mirror, remote
from tests.conformance.sources import all_read, write_shards
from tests.unit.test_mirror import at_once, save
from tests.unit.test_remote import FILES, opened

pytest.importorskip("s3fs", reason="without s3fs: pip install s3fs")
boto3 = pytest.importorskip("boto3", reason="without boto3: pip install boto3")
moto = pytest.importorskip(
    "moto.server", reason="without moto: pip install 'moto[server]'"
)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket of a server on this machine, as a user's environment names it."""
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    told = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    told |= {"AWS_ACCESS_KEY_ID": "some-key", "AWS_SECRET_ACCESS_KEY": "some-secret"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    found = boto3.resource("s3").Bucket("pets")
    found.create()
    remote._systems.clear()  # of another test's server
    yield found
    server.stop()


def put(bucket: Any, folder: Path, below: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            bucket.put_object(
                Key=f"{below}/{path.relative_to(folder)}", Body=path.read_bytes()
            )


def test_a_bucket(
    bucket: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Shards below a prefix, byte for byte; an object that is put again is walked again."""
    for split in ("train", "val"):
        write_shards(tmp_path / "set", split, FILES)
    put(bucket, tmp_path / "set", "set")
    before = opened("s3://pets/set", tmp_path, cache_dir=tmp_path / "kept")["train"]
    assert sorted(all_read(before.source)) == sorted(FILES.values())
    assert before.source.name(0).startswith("s3://pets/set/train/")
    smaller = dict(list(FILES.items())[:6])
    write_shards(tmp_path / "set", "train", smaller)
    put(bucket, tmp_path / "set", "set")
    assert sorted(
        all_read(opened("s3://pets/set", tmp_path)["train"].source)
    ) == sorted(smaller.values())
    assert "some-secret" not in "".join(capfd.readouterr())


def test_a_run_goes_through_a_bucket(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "SETTLED_S", 0)
    for step, name in ((100, "here"), (200, "there"), (200, "here")):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        with mirror.mirrored("s3://pets/run", folder, resuming=True) as upload:
            assert upload is not None
            save(folder, step)
            upload()
    keys = {each.key for each in bucket.objects.filter(Prefix="run/")}
    files = {"best.pt", "last.pt", "step-100.pt", "step-200.pt"}
    claims = {f".claim-{number:06}" for number in (1, 2, 3)}
    assert keys == {f"run/{name}" for name in files | claims}
    found = remote.apart(partial(claim.newest, "s3://pets/run"))
    assert found is not None and found.ended and found.number == 3


def test_a_bucket_that_knows_conditions_is_held_by_one(
    bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reads at once what it has put: the put alone has decided."""
    monkeypatch.setattr(claim, "SETTLED_S", 0)
    held = remote.apart(
        lambda: at_once("s3://pets/race", monkeypatch, all_have_put=False)
    )
    assert held == 1
