"""Every setting is read by code, from a group of settings: a key that nothing reads is a lie."""

from __future__ import annotations

import re

from settings.config import GROUP_OF
from tests.unit.test_house import MAY_IMPORT, ROOT, python

PRODUCTION = {"train", "predict", *MAY_IMPORT} - {"contracts", "settings"}


def test_every_setting_is_read() -> None:
    """And so every key of every preset, which can hold nothing else. `config` is read before there is a
    Config.
    """
    source = "\n".join(
        (ROOT / path).read_text(encoding="utf-8")
        for path in python()
        if path.parts[0].removesuffix(".py") in PRODUCTION
    )
    read = {*re.findall(r"\.(\w+)\b(?!\()", source), *re.findall(r'"(\w+)"', source)}
    assert not set(GROUP_OF) - {"config"} - read
