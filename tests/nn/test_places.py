"""Products with matrices of fixed places: the dense product, and every derivative of it."""

import copy
import io
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import LargestStorage, pairs, seeded, sizes_kept
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from sparsewire import FrozenLayer
from sparsewire.nn import places
from sparsewire.nn.places import Places, multiply


@pytest.fixture(autouse=True)
def _small_products_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute products of any size as those of large matrices."""
    monkeypatch.setattr(places, "SMALL_PRODUCTS", 0)


def random_places(out_size: int, in_size: int, count: int) -> Places:
    """Some places in order; rows and columns without any are likely."""
    flat = torch.randperm(out_size * in_size, generator=seeded(0))[:count].sort().values
    return Places(flat // in_size, flat % in_size, out_size, in_size)


def filled(out: int, ins: int, count: int, **options: bool) -> FrozenLayer:
    """A layer with random elements in float64, and a bias."""
    layer = FrozenLayer((ins,), (out,), bias=True, dtype=torch.float64, **options)
    made = random_places(out, ins, count)
    values = torch.randn(len(made.rows), dtype=torch.float64)
    bias = torch.randn(out, dtype=torch.float64)
    layer.load_state_dict({"rows": made.rows, "cols": made.cols, "values": values, "bias": bias})
    return layer


def expected(layer: FrozenLayer, x: Tensor) -> Tensor:
    assert layer.bias is not None
    return x @ layer.dense().T + layer.bias


sizes = st.integers(1, 9)


@given(sizes, sizes, st.integers(0, 30), st.integers(1, 19), st.booleans())
def test_a_product_is_the_dense_product(out_size, in_size, count, columns, transposed):
    made = random_places(out_size, in_size, count)
    for dtype in (torch.float32, torch.float64):
        dense = torch.zeros(out_size, in_size, dtype=dtype)
        dense[made.rows, made.cols] = values = torch.randn(len(made.rows), dtype=dtype)
        dense = dense.T if transposed else dense
        x = torch.randn(columns, dense.shape[1], dtype=dtype).T  # strides of a batch
        torch.testing.assert_close(multiply(values, x, made, transposed), dense @ x)


@pairs(
    columns=[1, places.FEW_COLUMNS - 1, places.FEW_COLUMNS + 1],
    transposed=[False, True],
    learned=[(True, True), (True, False), (False, True)],
)
def test_first_and_second_derivatives_are_exact(columns, transposed, learned):
    made = random_places(5, 7, 11)
    values = torch.randn(11, dtype=torch.float64, requires_grad=learned[0])
    x = torch.randn(5 if transposed else 7, columns, dtype=torch.float64, requires_grad=learned[1])

    def call(values: Tensor, x: Tensor) -> Tensor:
        return multiply(values, x, made, transposed)

    assert gradcheck(call, (values, x))
    assert gradgradcheck(call, (values, x))


# What may happen to a layer between two products.


def reload(layer: FrozenLayer, count: int, **options: bool) -> FrozenLayer:
    layer.load_state_dict(filled(5, 7, count).state_dict(), **options)
    return layer


def edit(layer: FrozenLayer) -> FrozenLayer:
    layer.rows.clamp_(max=3)
    return layer


def replace(layer: FrozenLayer) -> FrozenLayer:
    layer.cols = layer.cols.flip(0)
    return layer


def saved_whole(layer: FrozenLayer) -> FrozenLayer:
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


CHANGES: dict[str, Callable[[FrozenLayer], FrozenLayer]] = {
    "a state of the same size": lambda layer: reload(layer, 6),
    "a state of another size": lambda layer: reload(layer, 17),
    "an assigned state": lambda layer: reload(layer, 6, assign=True),
    "an empty state": lambda layer: reload(layer, 0),
    "rows changed in place": edit,
    "other columns": replace,
    "a copy that is changed": lambda layer: edit(copy.deepcopy(layer)),
    "a file": saved_whole,
    "another dtype": lambda layer: layer.float().double(),
    "shared memory": lambda layer: layer.share_memory(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_products_follow_the_rows_and_columns(name):
    """What is prepared for a product is never that of earlier rows and columns."""
    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    layer = filled(5, 7, 6)
    layer(x).sum().backward()
    layer, x.grad = CHANGES[name](layer), None
    rows, cols, values = layer.rows.tolist(), layer.cols.tolist(), layer.values.tolist()
    dense = torch.zeros(5, 7, dtype=torch.float64)
    for row, col, value in zip(rows, cols, values, strict=True):
        dense[row, col] += value
    layer.bias = None
    y = layer(x)
    torch.testing.assert_close(y, x @ dense.T)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, dense.sum(0).expand(3, 7))


def test_a_product_in_inference_mode_does_not_hinder_training():
    layer, x = filled(5, 7, 9, trainable=True), torch.randn(3, 7, dtype=torch.float64)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), expected(layer, x))
    assert gradcheck(layer, x.requires_grad_())


# Transforms, for which there are only plain operations.


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # in forward_ad
def test_transforms_of_torch_func_and_forward_mode():
    layer, x = filled(5, 7, 9), torch.randn(3, 7, dtype=torch.float64)
    tangent = torch.randn_like(x)
    moved = tangent @ layer.dense().T
    torch.testing.assert_close(torch.func.vmap(layer)(x), expected(layer, x))
    torch.testing.assert_close(torch.func.jvp(layer, (x,), (tangent,))[1], moved)
    torch.testing.assert_close(torch.func.jacrev(layer)(x[0]), layer.dense())
    with forward_ad.dual_level():
        dual = layer(forward_ad.make_dual(x, tangent))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, moved)


def test_batched_gradients():
    """The forward pass is computed before it is known that gradients are batched."""
    layer = filled(5, 7, 9, trainable=True)
    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    grads = torch.randn(4, *y.shape, dtype=torch.float64)
    inputs = x, layer.values
    batched = torch.autograd.grad(y, inputs, grads, is_grads_batched=True, retain_graph=True)
    single = [torch.autograd.grad(y, inputs, grad, retain_graph=True) for grad in grads]
    for got, *want in zip(batched, *single, strict=True):
        torch.testing.assert_close(got, torch.stack(want))


# Memory.


def test_nothing_has_the_size_of_elements_times_batch():
    layer = filled(50, 70, 900, trainable=True).float()
    x = torch.randn(40, 70, requires_grad=True)
    with LargestStorage() as largest, sizes_kept() as saved:
        layer(x).square().sum().backward()
    assert largest.bytes <= 4 * 70 * 50
    assert max(saved) <= 70 * 40
    with sizes_kept() as saved:
        layer.requires_grad_(False)(x)
    assert max(saved) <= 900  # the input is not needed for its own gradient
