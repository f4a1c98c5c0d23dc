"""The random numbers: fixed for ever, keyed without collisions, uniform and independent."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from plan.draws import Purpose, bits, key, uniforms

GOLDEN_KEYS = [
    0,
    16294208416658607535,
    10451216379200822465,
    6791897765849424158,
    627405149472732430,
    16490336266968443936,
    668567293345086073,
]
GOLDEN_BITS = [
    [5197578548964807871, 15916886550466581944, 16576549522093199164],
    [16159956376739350834, 4309646137001794772, 9318016551795488320],
]
GOLDEN_UNIFORMS = [
    ["0x1.635eae43269e0p-3", "0x1.d1c21f9b2e938p-2"],
    ["0x1.42018d158fad0p-3", "0x1.f68750306faf5p-1"],
    ["0x1.085e12a69aa79p-1", "0x1.3566b364a3fc5p-1"],
]


def test_golden_values() -> None:
    """What was drawn for a run of last year is drawn today."""
    assert [
        key(),
        key(0),
        key(1),
        key(1, 0),
        key(0, 1),
        key(2**64 - 1),
        key(7, 3, 2),
    ] == GOLDEN_KEYS
    assert bits(0, np.arange(3)).tolist() == GOLDEN_BITS[0]
    assert bits(key(7, 3), np.array([0, 1, 1281166])).tolist() == GOLDEN_BITS[1]
    drawn = uniforms(7, 3, Purpose.WINDOW, np.array([0, 1, 49999]), 2)
    assert drawn.dtype == np.float64
    assert [[value.hex() for value in row] for row in drawn.tolist()] == GOLDEN_UNIFORMS


@given(
    st.integers(0, 2**63 - 1),
    st.integers(0, 1000),
    st.sampled_from(Purpose),
    st.lists(st.integers(0, 2**40), min_size=1, max_size=20),
    st.integers(1, 5),
)
def test_a_row_depends_on_its_id_alone(
    seed: int, epoch: int, purpose: Purpose, ids: list[int], count: int
) -> None:
    together = uniforms(seed, epoch, purpose, np.array(ids), count)
    assert together.shape == (len(ids), count)
    assert ((together >= 0) & (together < 1)).all()
    for row, sample in zip(together, ids, strict=True):
        assert (
            row
            == uniforms(seed, epoch, purpose, np.array([sample]), count + 2)[0, :count]
        ).all()
