"""Kernels of the lab are tested where those of the library are."""

from tests.kernels.conftest import (  # noqa: F401
    _full_products,
    _order_of_sums,
    device,
    pytest_collect_file,
    pytest_itemcollected,
)
