"""Every engine of every public function computes what the reference computes, for all arguments."""

import pytest
from tests.sorting.cases import (
    AXES,
    ROWS,
    WITHOUT_ENGINES,
    arguments_of,
    assert_as_reference,
)

from sparsewire import sorting

ENGINES = {"half": ("chunked",), "QuickSort": ("chunked",), "order_loss": ("fourier",)}


def test_every_public_function_and_argument_has_an_axis():
    assert set(sorting.__all__) == WITHOUT_ENGINES | set(AXES)
    for name, axes in AXES.items():
        assert arguments_of(name) | {"n"} == set(axes) | ({"odds"} & {name}), name


@pytest.mark.parametrize(("name", "row"), ROWS, ids=str)
def test_values_and_gradients_are_those_of_the_reference(name, row):
    assert_as_reference(name, row, *ENGINES.get(name, ("numpy", "chunked")))
