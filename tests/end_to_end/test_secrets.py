"""A password and a signature in URLs: a run reads with them, and leaves them in no file and no message."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.end_to_end.runs import Runner
from tests.unit.ranges import serving

pytest.importorskip("aiohttp")
LOGIN = "canary-name:canary-password"
QUERY = "?X-Amz-Signature=canary-signature&sig=canary-sas"
SIGNS = (b"canary", b64encode(LOGIN.encode()))
FLAGS = """--source tar --arch tests.end_to_end.networks:tiny --image-size 32 --batch-size 8 --precision fp32
--workers 1 --loader torchvision --ceilings false --output run --manifest-dir cache --keep 1 --resume auto"""


def test_secrets_are_in_no_file_and_a_resume_says_what_is_missing(
    train: Runner, pictures: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    served = tmp_path_factory.mktemp("served")
    packed = ["--from", pictures, "--format", "tar", "--manifest-dir", served / "m"]
    train.python("-m", "scripts.pack", served / "set", *packed).wait()
    # of one split the server says itself where the shards are, and signs each
    shards = sorted((served / "set/val").glob("*.tar"))
    with serving(served) as server:
        server.login, server.query = LOGIN, QUERY
        of_server = server.url.replace("://", f"://{LOGIN}@")
        lines = [f"{of_server}/set/val/{path.name}{QUERY}\n" for path in shards]
        (served / "set/val/shards.txt").write_text("".join(lines))
        url = f"{of_server}/set{QUERY}"
        train("--data", url, FLAGS, "--epochs 1").done()
        assert all(urlsplit(path).query for path in server.paths)
        more = ("--config", "run/config.yaml", FLAGS, "--epochs 2")
        said = train(*more).mistake()
        shown = server.url.replace("://", "://***@")
        assert f"--data {shown}/set?***: no file keeps its password" in said
        assert "SATURATE_URLS" in said
        # another password is none, and neither is it said
        wrong = f"{of_server.replace(LOGIN, 'canary:x')}/set{QUERY}"
        assert "access is denied" in train("--data", wrong, FLAGS).mistake()
        unknown = train(f"--dta={url}", FLAGS).mistake()
        assert f"--dta={shown}/set?***" in unknown
        out = train(*more, env={"SATURATE_URLS": url}).done().out
        assert "goes on in epoch 2" in " ".join(out.split())
    files = [path for path in train.cwd.rglob("*") if path.is_file()]
    assert {"last.pt", "summary.json", "report.html"} <= {path.name for path in files}
    found = {
        str(path.relative_to(train.cwd))
        for path in files
        if any(sign in path.read_bytes() for sign in SIGNS)
    }
    assert not found
    assert not [path for path in train.cwd.rglob("*") if "canary" in path.name]
