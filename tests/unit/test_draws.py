"""The random numbers: fixed for ever. What is drawn with them is held by the tests of plans and augmentations."""

from __future__ import annotations

from saturate.plan.draws import key


def test_every_bit_of_a_word_counts() -> None:
    assert [key(1), key(2**64 - 1)] == [10451216379200822465, 16490336266968443936]
