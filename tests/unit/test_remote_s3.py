"""Shards in a bucket: moto's S3 server, read through s3fs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from dataset.stores import remote
from tests.conformance.sources import all_read, write_shards
from tests.unit.test_remote import FILES, opened, refused

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


def ask_for_rights(after: bytes) -> None:
    """Let the server of this process look at rights after so many requests."""
    url = f"{os.environ['AWS_ENDPOINT_URL']}/moto-api/reset-auth"
    urlopen(Request(url, after, {"Content-Type": "text/plain"}, method="POST")).close()


def test_what_a_bucket_refuses_is_named(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By real errors of botocore; a user who may read, and not list, trains from shards.txt."""
    for split in ("train", "val"):
        write_shards(tmp_path / "set", split, FILES)
        names = sorted(path.name for path in (tmp_path / "set" / split).iterdir())
        (tmp_path / "set" / split / "shards.txt").write_text(
            "".join(f"{name}\n" for name in names)
        )
    put(bucket, tmp_path / "set", "set")
    for split in ("train", "val"):
        for name in ("0.tar", "1.tar"):
            bucket.put_object(
                Key=f"odd/{split}/a?#{name}",
                Body=(tmp_path / "set" / split / name).read_bytes(),
            )
    assert sorted(
        all_read(opened("s3://pets/odd", tmp_path)["train"].source)
    ) == sorted(FILES.values())
    assert "there is no such bucket" in refused(
        lambda: opened("s3://cats/set", tmp_path)
    )
    client = boto3.client("iam")
    client.create_user(UserName="reader")
    key = client.create_access_key(UserName="reader")["AccessKey"]
    may = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [may]})
    client.put_user_policy(UserName="reader", PolicyName="reads", PolicyDocument=policy)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    remote._systems.clear()  # it has the credentials of before
    ask_for_rights(b"0")  # from the next request on
    try:
        found = opened("s3://pets/set", tmp_path)["train"]
        assert sorted(all_read(found.source)) == sorted(FILES.values())
        assert "access is denied (AccessDenied)" in refused(
            lambda: opened("s3://pets/none", tmp_path)
        )
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
        assert "(SignatureDoesNotMatch)" in refused(
            lambda: opened("s3://pets/set", tmp_path)
        )
    finally:
        ask_for_rights(b"inf")
