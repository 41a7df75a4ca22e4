"""The kernels of every public function of sorting compute what the reference does."""

import pytest
import torch
from tests.sorting.cases import ROWS, assert_as_reference

import sparsewire as sw


# The first product in a backward pass of a process creates its context.
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")
@pytest.mark.parametrize(("name", "row"), ROWS, ids=str)
def test_values_and_gradients_are_those_of_the_reference(name, row, device):
    assert_as_reference(name, row, "triton", device=device)


def test_without_ties_equal_targets_have_an_order_in_the_kernel_too(device):
    keys, target = torch.tensor([1.0, 2.0], device=device), torch.tensor([7, 7], device=device)
    with sw.engine("triton"):
        strict, loose = (sw.order_loss(keys, target, ties=ties).item() for ties in (False, True))
    assert (round(strict, 4), round(loose, 4)) == (0.3133, 0.0)
