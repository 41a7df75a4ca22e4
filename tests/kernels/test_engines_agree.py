"""The engine `"triton"` computes every function from all arguments: on a GPU, or interpreted."""

import pytest
from tests.agreement import CASES, assert_agreement


@pytest.mark.parametrize("name", CASES)
def test_kernels_agree_with_the_specification(name, device):
    for row in CASES[name].rows():
        assert_agreement(name, row, "triton", device)
