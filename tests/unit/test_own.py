"""What tests/conftest.py asks of every test: a planted one that leaves signals as they were not."""

from __future__ import annotations

import signal

import pytest

from tests.own import own_signals


@pytest.mark.parametrize("number", [signal.SIGPIPE, signal.SIGINT, signal.SIGUSR1])
def test_a_handler_that_is_left_is_seen_and_put_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(AssertionError, match="has left other handlers"):
        with own_signals():
            signal.signal(number, lambda *_: None)
    assert signal.getsignal(number) == before
    with own_signals():
        pass
