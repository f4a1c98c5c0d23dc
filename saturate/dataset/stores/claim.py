"""The claim of a run on a URL of --output: a small object beside its files, which is renewed while the run lives.

    .claim-000003   {"run": "8f2c...", "holder": "node7 51aa...", "renewals": 41, "ended": false}

The one with the highest number holds. Whoever begins makes the next one by a put that replaces nothing
(If-None-Match: * of S3, ifGenerationMatch=0 of Google's). Some stores know no such put, or ignore it: of two that
come at once the later one stays. So after SETTLED_S the object is read, and whose it is, holds. No clock is
compared with another one: who waits counts, by its own, for how long a claim has not changed.
"""

from __future__ import annotations

import json
import re
import socket
import tempfile
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from saturate.contracts import UserError
from saturate.dataset.scan.manifest import masked
from saturate.dataset.stores import remote
from saturate.system import storage

RENEWED_S = 15.0
"""Seconds between two renewals. What has not changed in two of them is of a run that is no more."""
GRACE_S = 60.0
"""Seconds for which a job that goes on waits for a predecessor that still renews, since it may be ending."""
SETTLED_S = 1.0
LOOK_S = 2.0
NAME = re.compile(r"\.claim-(\d{6})")
LOCAL = ".claim"
"""The file of the run's own folder that has its last claim: which run it is, and who began it there."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a claim says."""

    run: str  # the run's id, from its first start on
    holder: str  # the host, and what each start draws anew
    number: int = 0
    renewals: int = 0
    ended: bool = False

    @property
    def host(self) -> str:
        """Return the name of the holder's host."""
        return self.holder.partition(" ")[0]

    def put(self, url: str, *, new: bool = False) -> None:
        """Write it below a URL, over that of this number; not where it is to be `new`, and the store knows how."""
        target = f"{url}/.claim-{self.number:06}"
        with tempfile.NamedTemporaryFile() as file:
            file.write(json.dumps(asdict(self)).encode())
            file.flush()

            def action(system: Any) -> None:
                if not new:
                    system.put_file(file.name, target)
                    return
                try:
                    system.put_file(file.name, target, mode="create")
                except FileExistsError:  # whose it is, is read
                    pass
                except TypeError:  # knows no such put
                    system.put_file(file.name, target)

            remote.tried(target, action)

    def keep(self, folder: Path) -> None:
        """Write it into the run's own folder."""
        content = json.dumps(asdict(self)).encode()
        path = folder / LOCAL
        storage.replace(path, folder / f"{LOCAL}.new", lambda file: file.write(content))


def names(url: str) -> list[str]:
    """List what is below a URL, by names from there on. Raises OSError."""
    try:
        paths = remote.tried(url, lambda system: system.find(url))
    except FileNotFoundError:
        return []
    # fsspec's paths have no protocol
    start = url.partition("://")[2]
    return [path.partition(f"{start}/")[2] for path in paths]


def newest(url: str) -> Claim | None:
    """Return the claim that holds a URL, None for none. Raises OSError, and UserError where it is no claim."""
    name = max(filter(NAME.fullmatch, names(url)), default=None)
    if name is None:
        return None
    source = f"{url}/{name}"
    for _ in range(5):
        if claim := _parsed(
            remote.tried(source, lambda system: system.cat_file(source))
        ):
            return claim
        time.sleep(SETTLED_S)  # on a disk it may be half written
    raise UserError(f"--output {masked(source)}: no claim of a run; remove it")


def of_folder(folder: Path) -> Claim | None:
    """Return the last claim that was made from a run's folder, None where there is none."""
    with suppress(FileNotFoundError):
        return _parsed((folder / LOCAL).read_bytes())
    return None


def _parsed(content: bytes) -> Claim | None:
    with suppress(ValueError, TypeError):
        return Claim(**json.loads(content))
    return None


def take(url: str, folder: Path, *, resuming: bool) -> Claim:
    """Claim a URL for the run of `folder`, which no other process of this host holds.

    A run that is `resuming` waits for a predecessor that is dead, or about to end. Raises UserError where another
    run is writing there, or is not that of the folder, and OSError.
    """
    own = of_folder(folder) if resuming else None
    host = socket.gethostname()
    began_s = changed_s = time.monotonic()
    before: Claim | None = None
    while True:
        current = newest(url)
        now_s = time.monotonic()
        if current and resuming:
            _require_same(url, folder, current, own)
        is_renewed = before is not None and current != before
        if is_renewed:
            changed_s = now_s
        # the folder's lock is ours, so whoever has begun from here is dead
        is_free = (
            not current or current.ended or (_is(current, own) and current.host == host)
        )
        if is_free or now_s - changed_s > 2 * RENEWED_S:
            known = (current or own) if resuming else None
            new = Claim(
                run=known.run if known else uuid.uuid4().hex[:12],
                holder=f"{host} {uuid.uuid4().hex[:12]}",
                number=1 + (current.number if current else 0),
            )
            if _holds(url, new, current):
                new.keep(folder)
                return new
            continue
        assert current is not None
        who = f"--output {masked(url)}: another run is writing there ({current.run} on {current.host})"
        if is_renewed and (not resuming or now_s - began_s > GRACE_S):
            raise UserError(f"{who}; wait for its end, or name another URL")
        storage.notify_once(who, f"{who}; it is waited for until it renews no more")
        before = current
        time.sleep(LOOK_S)


def _holds(url: str, new: Claim, before: Claim | None) -> bool:
    """Write a `new` claim behind the one that was there `before`; return whether it holds the URL."""
    try:
        new.put(url, new=True)
    except OSError:
        # another one was faster, or the store refuses such a put
        if newest(url) == before:
            new.put(url)
    time.sleep(SETTLED_S)
    return _is(newest(url), new)


def require_held(url: str, claim: Claim) -> None:
    """Raise Superseded where another run has claimed a URL since."""
    current = newest(url)
    if current and not _is(current, claim):
        raise storage.Superseded(
            f"--output {masked(url)}: {current.run} on {current.host} has taken this run's place, since its claim was "
            "not renewed in time; nothing more is uploaded"
        )


def renew(url: str, claim: Claim) -> None:
    """Renew a claim for as long as this process lives."""
    while True:
        time.sleep(RENEWED_S)
        claim = replace(claim, renewals=claim.renewals + 1)
        # uploads say what is wrong
        with suppress(OSError, UserError):
            claim.put(url)


def _is(current: Claim | None, claim: Claim | None) -> bool:
    """Whether both are of one start of a run."""
    key = [each and (each.number, each.holder) for each in (current, claim)]
    return key[0] is not None and key[0] == key[1]


def _require_same(url: str, folder: Path, current: Claim, own: Claim | None) -> None:
    has_run = own is not None or (folder / "last.pt").exists()
    run = own.run if own else "without an id"
    if has_run and run != current.run:
        raise UserError(
            f"--output {masked(url)} holds run {current.run}, and its folder here, {folder}, another one ({run}); "
            "move one of them away, or name another URL"
        )
