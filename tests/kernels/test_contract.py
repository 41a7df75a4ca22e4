"""The kernels of `contract`: strides, and what is saved. `test_engines_agree.py` has all else."""

from typing import Any

import pytest
import torch
from tests.helpers import seeded, sizes_kept
from tests.kernels.compare import assert_near, by_kernels, exactly, random_tuples
from torch import Tensor

from sparsewire.ops import contract, contract_flat, contract_reference
from sparsewire.ops.contract._triton import kernels as contraction


@pytest.mark.parametrize("small", [2**18, -1], ids=["in a cache", "lanes innermost"])
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.transpose(0, 2).contiguous().transpose(0, 2),
        lambda x: x.flip(1).transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: x[:1].expand(3, 4, 7),
        lambda x: x[..., :1].expand(3, 4, 7),
        lambda x: torch.stack([x, -x], -1)[..., 1],
    ],
    ids=["transposed", "flipped", "one instance for all", "one place for all", "strided"],
)
def test_any_strides(change, small, device, monkeypatch):
    """Of the input, and of rows, columns and values that lie beside each other."""
    monkeypatch.setattr(contraction, "_SMALL", small)
    indices = random_tuples((3,), 20, (5, 7))
    leaves = {
        "values": torch.randn(3, 20, dtype=torch.float64, generator=seeded(2)),
        "x": torch.randn(3, 4, 7, dtype=torch.float64, generator=seeded(3)),
    }

    def strided(values: Tensor, x: Tensor, **_: Any) -> Tensor:
        rows, cols = indices.to(x.device).unbind(-1)
        beside = torch.stack([values, values], -1)[..., 0]
        return contract_flat(rows, cols, beside, change(x), 5)

    def dense(values: Tensor, x: Tensor, **_: Any) -> Tensor:
        return contract_reference(indices, values, change(x), (5,))

    assert_near(by_kernels(strided, leaves, device), exactly(dense, leaves))


def test_nothing_that_was_moved_is_kept(device):
    """Only indices, values and the input are."""
    leaves = {"values": torch.randn(100), "x": torch.randn(60, 7)}
    indices = random_tuples((), 100, (5, 7))
    with sizes_kept() as kept:
        by_kernels(contract, leaves, device, indices=indices, out_shape=(5,))
    assert kept
    assert max(kept) <= 60 * 7
