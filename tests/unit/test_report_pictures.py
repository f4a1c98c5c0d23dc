"""Training images as TensorBoard shows them."""

from __future__ import annotations

import numpy as np
import torch

from saturate.contracts import Batch
from saturate.report.pictures import augmented

ZERO, ONE = torch.zeros(3), torch.ones(3)


def test_each_image_has_the_name_of_its_class_below_it_where_it_has_one_label() -> None:
    labels = {"labels": torch.tensor([0, 1, 1, 0, -1])}
    images, valid = torch.zeros(5, 3, 40, 60), torch.ones(5, dtype=torch.bool)
    batch = Batch(
        images=images, sizes=valid, targets=labels, valid=valid, ids=np.arange(5)
    )
    (sheet,) = augmented(batch, ZERO, ONE, ("cat", "dog"))
    assert sheet.shape == (2 * (4 * 40 + 22), 4 * 4 * 60, 3), "four a row, enlarged"
    below = [sheet[160:182, 240 * place : 240 * (place + 1)] for place in range(4)]
    assert (below[0] == below[3]).all() and (below[0] != below[1]).any()
    assert (sheet[342:364, :240] == 255).all(), "padding has none"
    for several in ("offsets", "wanted"):
        batch.targets = {**labels, several: valid}
        assert augmented(batch, ZERO, ONE, ("a", "b")).shape == (5, 40, 60, 3)
