"""Shards, and the folder of a run, in a bucket: moto's S3 server, through s3fs."""

from __future__ import annotations

import http.client
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from contracts import UserError
from dataset.stores import remote
from dataset.stores.mirror import mirrored
from tests.conformance.sources import all_read, write_shards
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


class Faulty(BaseHTTPRequestHandler):
    """Passes requests on to moto, but for the next PUTs of `faults`: 503, or the connection is cut."""

    protocol_version = "HTTP/1.1"
    faults: ClassVar[list[str]] = []
    behind = ""

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = Faulty.faults.pop() if body and Faulty.faults else ""
        if fault == "cut":
            self.close_connection = True
            self.connection.close()
        elif fault:
            self.answer(503, {}, b"<Error><Code>ServiceUnavailable</Code></Error>")
        else:
            server = http.client.HTTPConnection(Faulty.behind)
            server.request(self.command, self.path, body, dict(self.headers))
            found = server.getresponse()
            self.answer(found.status, dict(found.getheaders()), found.read())

    do_GET = do_HEAD = do_POST = do_DELETE = do_PUT

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in (
                "content-length",
                "connection",
                "transfer-encoding",
            ):
                self.send_header(name, value)
        length = headers.get("Content-Length", len(body))
        self.send_header(
            "Content-Length", str(length if self.command == "HEAD" else len(body))
        )
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def faults(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Faults to come of a server in front of the bucket's."""
    Faulty.behind = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
    with ThreadingHTTPServer(("127.0.0.1", 0), Faulty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        yield Faulty.faults
        server.shutdown()
    Faulty.faults.clear()


def test_the_folder_of_a_run(bucket: Any, faults: list[str], tmp_path: Path) -> None:
    """503 and a connection that is cut are tried again; an upload that fails is made up for by the next."""
    here = tmp_path / "here"
    here.mkdir()
    last = here / "last.pt"
    for key in ("", "a/", ".hidden", "../above"):  # none is a run's file
        bucket.put_object(Key=f"run/{key}", Body=b"")
    with mirrored("s3://pets/run", here, resuming=False) as upload:
        assert upload
        last.write_bytes(os.urandom(1 << 20))
        faults += ["503", "cut"]
        upload()
        assert not faults
        before, after = last.read_bytes(), os.urandom(1 << 20)
        last.write_bytes(after)
        faults += ["503"] * 1000
        with pytest.raises(
            UserError, match=r"^--output s3://pets/run cannot be written: HTTP 503; "
        ):
            upload()
        assert bucket.Object("run/last.pt").get()["Body"].read() == before
        faults.clear()
        upload()
    with mirrored("s3://pets/run", tmp_path / "there", resuming=True):
        assert (tmp_path / "there/last.pt").read_bytes() == after
        assert [path.name for path in (tmp_path / "there").iterdir()] == ["last.pt"]
        assert not (tmp_path / "above").exists()
    # the upload of this one has failed, in an earlier part of the run
    last.write_bytes(b"newer")
    later = time.time() + 60
    os.utime(last, (later, later))
    with (
        pytest.warns(UserWarning, match="here has newer files"),
        mirrored("s3://pets/run", here, resuming=True),
    ):
        assert last.read_bytes() == b"newer"
    assert bucket.Object("run/last.pt").get()["Body"].read() == b"newer"
    os.utime(last, (0, 0))
    bucket.put_object(Key="run/last.pt", Body=b"of another host")
    with mirrored("s3://pets/run", here, resuming=True):
        assert last.read_bytes() == b"of another host"
    with (
        pytest.raises(UserError, match="no such bucket"),
        mirrored("s3://none/run", here, resuming=True),
    ):
        pass
