import pytest
import torch
from tests.helpers import seeded

from sparsewire_lab.kernels._triton.totals import total


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (256, 8), (600, 2, 9), (1056, 33), (70, 1100)])
def test_programs_are_added_up(shape, device):
    sums = torch.randn(shape, generator=seeded(0)).to(device)
    torch.testing.assert_close(total(sums), sums.double().sum(0).float(), rtol=1e-6, atol=1e-6)


def test_the_order_of_sums_is_fixed(device):
    sums = torch.randn(700, 20, generator=seeded(1)).to(device)
    assert torch.equal(total(sums), total(sums))


def test_large_sums_keep_what_is_small(device):
    """Added in float64: in float32 the ones would be lost beside 2²⁵."""
    sums = torch.ones(257, 1, device=device)
    sums[0] = 2.0**25
    assert total(sums).item() == 2.0**25 + 256


def test_what_is_not_a_number_stays(device):
    sums = torch.zeros(300, 9, device=device)
    sums[270, 4] = torch.nan
    assert total(sums).isnan().nonzero().flatten().tolist() == [4]
