"""URLs that a user names, and their secrets: a password, a key, the signature in a query.

A secret is taken out where a URL comes in, and put back where the URL is read. In between the URL is text that
may be shown and written:

    https://bob:pw@host/set?sig=1  -- taken -->  https://***@host/set?***  -- bare -->  https://host/set
    https://host/set/train/0.tar   -- whole -->  https://bob:pw@host/set/train/0.tar?sig=1
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote

VARIABLE = "SATURATE_URLS"
"""The environment variable that holds whole URLs whose secrets are known, for this process and those it starts."""
MARK = "***"
"""Stands for a secret."""
BUCKETS = ("s3", "gs", "gcs")
"""Protocols whose URLs have no query: a ? is a letter of an object's key."""
_SIGNED = re.compile(r"[?&]x-(?:amz|goog)-", re.IGNORECASE)
# what stands before the host; a key of a bucket may have slashes, and what is no port behind a colon is one
_USER = r"[^\s/?#@:\[]*:(?!\d*(?:[/?#\s]|$))[^\s@]*@(?:[^\s/?#@]*@)*|[^\s/?#]*@"
# as a Path, one of the common protocols has one slash
_PROTOCOL = r"([a-z][a-z0-9+.-]*(?=://)|(?:https?|s3|gs|gcs)(?=:/))"
_URL = re.compile(rf"{_PROTOCOL}(:/{{1,2}})({_USER})?([^\s?]*)(\?\S*)?", re.IGNORECASE)


class _Parts(NamedTuple):
    """What a URL consists of; `user` ends with @, and `query` begins with ?, where there is one."""

    protocol: str
    user: str
    place: str  # host and path, behind the slashes
    query: str

    @property
    def has_secret(self) -> bool:
        """Whether it has one, and no mark of one."""
        parts = (self.user[:-1], self.query[1:])
        return any(part not in ("", MARK) for part in parts)

    @property
    def bare(self) -> str:
        """The URL without its secret."""
        return f"{self.protocol}{self.place}"


def _parts(url: re.Match[str]) -> _Parts:
    name, slashes, user, place, query = (part or "" for part in url.groups())
    is_bucket = name.lower() in BUCKETS
    # of others a name alone may be that of a container or of a user
    if ":" not in user and not is_bucket and name.lower() not in ("http", "https"):
        user, place = "", user + place
    if is_bucket and query != f"?{MARK}" and not _SIGNED.search(query):
        query, place = "", place + query
    return _Parts(f"{name}{slashes}", user, place, query)


_NONE = _Parts("", "", "", "")


def _parse(url: str) -> _Parts | None:
    """Return the parts of a URL, None of any other text."""
    match = _URL.fullmatch(url)
    return _parts(match) if match else None


def taken(text: str) -> str:
    """Return a text in which URLs have marks in place of their secrets, which this process then knows."""
    for url in _URL.finditer(text):
        known = os.environ.get(VARIABLE, "").split()
        if _parts(url).has_secret and url[0] not in known:
            os.environ[VARIABLE] = " ".join([*known, url[0]])
    return masked(text)


def masked(text: str) -> str:
    """Return a text in which URLs have marks in place of their secrets, for messages."""
    return _URL.sub(_marked, text)


def _marked(url: re.Match[str]) -> str:
    parts = _parts(url)
    known = _known(parts.bare) or parts
    user = f"{MARK}@" if parts.user or known.user else ""
    query = f"?{MARK}" if parts.query or known.query else ""
    return f"{parts.protocol}{user}{parts.place}{query}"


def bare(url: str) -> str:
    """Return a URL without its secret and its marks, as files and folders are named by; any other text as it is."""
    parts = _parse(url)
    return parts.bare if parts else url


def ready(flag: str, url: str) -> str:
    """Return the `bare` URL that a flag has named. Raises UserError where a secret is marked that nobody knows."""
    # with NumPy, which the first steps of train.py do without
    from saturate.contracts import UserError

    parts = _parse(url)
    if not parts:
        return url
    known = _known(parts.bare) or _NONE
    for kind, part, own in (
        ("password", parts.user[:-1], known.user),
        ("signature", parts.query[1:], known.query),
    ):
        if part == MARK and not own:
            remedy = f"give {flag} with it again, or the whole URL in {VARIABLE}"
            raise UserError(f"{flag} {url}: no file keeps its {kind}; {remedy}")
    return parts.bare


def whole(url: str) -> str:
    """Return a URL with the secret of itself or of the nearest folder above it, to be read with; of a bucket
    without the key, which `credentials` has.
    """
    parts = _parse(url)
    if not parts:
        return url
    secret = _nearest(parts)
    user = quote(secret.user, safe=":@%!$&'()*+,;=") if credentials(url) is None else ""
    return f"{parts.protocol}{user}{parts.place}{secret.query}"


def credentials(url: str) -> tuple[str, str] | None:
    """Return (key, secret) of a bucket's URL, None where it has none."""
    parts = _parse(url)
    if not parts or parts.protocol.partition(":")[0].lower() not in BUCKETS:
        return None
    key, colon, secret = _nearest(parts).user[:-1].partition(":")
    return (key, secret) if colon else None


def _nearest(parts: _Parts) -> _Parts:
    """Return the parts whose secret a URL is read with: its own, or what is known of it or above it."""
    if parts.has_secret:
        return parts
    place = parts.bare
    while len(place) > len(parts.protocol):
        if known := _known(place):
            return known
        place = place.rstrip("/").rpartition("/")[0]
    return _NONE


# --- what this process knows --------------------------------------------------------------------------------

_listed: dict[str, str] = {}
"""Bare -> whole URL, of lists."""


def remember(urls: Mapping[str, str]) -> None:
    """Know the whole URLs of a list, by their bare ones; they are too many for the environment."""
    _listed.update(urls)


def _known(url: str) -> _Parts | None:
    """Return the parts of the whole URL that is known for a bare one."""
    url = url.rstrip("/")
    text = _listed.get(url)
    if text is None:
        return _of_environment(os.environ.get(VARIABLE, "")).get(url)
    return _parse(text)


@lru_cache(maxsize=1)
def _of_environment(text: str) -> dict[str, _Parts]:
    parsed = map(_parse, text.split())
    return {
        parts.bare.rstrip("/"): parts for parts in parsed if parts and parts.has_secret
    }
