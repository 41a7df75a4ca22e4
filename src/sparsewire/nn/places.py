"""Multiply by a sparse matrix whose places are fixed, in the time of a product in CSR form.

`torch.nn.functional.embedding_bag` with a weight for each index is that product: bag r holds the
columns of row r, and the table is the input. Unlike a sparse tensor it costs nothing to construct,
gives no warnings, and never makes the host wait for a GPU.
"""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional

from sparsewire.annotations import Float, Int
from sparsewire.engines import concrete

# Fewer multiplications than this cost less as plain operations, and so do fewer dot products.
SMALL_PRODUCTS = 2**14
FEW_COLUMNS = 8


class _Runs(NamedTuple):
    """The elements of a sparse matrix, row by row or column by column."""

    starts: Tensor
    """Where each row (column) starts among the elements, and one more number: their count."""
    others: Tensor
    """The column (row) of each element."""
    order: Tensor | None
    """Which element each is in row-major order; None where that is the order."""


class Places:
    """The places of the elements of a sparse matrix, in row-major order, prepared for products.

    What a product needs is computed at the first product of its kind, and then saved.
    """

    def __init__(
        self, rows: Int[Tensor, " m"], cols: Int[Tensor, " m"], out_size: int, in_size: int
    ) -> None:
        self.rows, self.cols = rows, cols
        self.sizes = out_size, in_size
        self._versions = _version(rows), _version(cols)

    def current(self, rows: Tensor, cols: Tensor) -> bool:
        """Whether these are the tensors that the places were made of, unchanged since."""
        same = rows is self.rows and cols is self.cols
        return same and self._versions == (_version(rows), _version(cols))

    @functools.cached_property
    def by_row(self) -> _Runs:
        """Runs of equal rows."""
        with torch.inference_mode(False):
            return _Runs(_starts(self.rows, self.sizes[0]), self.cols, None)

    @functools.cached_property
    def by_col(self) -> _Runs:
        """Runs of equal columns."""
        with torch.inference_mode(False):
            order = self.cols.argsort(stable=True)
            return _Runs(_starts(self.cols[order], self.sizes[1]), self.rows[order], order)


def fast(values: Tensor, x: Tensor, in_size: int) -> bool:
    """Whether `multiply` computes this, and faster than plain operations.

    Transforms and traces need plain operations.
    """
    return _eager(values, x) and values.numel() * x.numel() > SMALL_PRODUCTS * in_size


def _eager(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are concrete, without a tangent, and on a device known to be fast."""
    return (
        concrete(first)
        and concrete(second)
        and first.device.type in ("cpu", "cuda")
        and not torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        and forward_ad.unpack_dual(first).tangent is None
        and forward_ad.unpack_dual(second).tangent is None
    )


def multiply(
    values: Float[Tensor, " m"], x: Float[Tensor, "n b"], places: Places, transposed: bool = False
) -> Float[Tensor, "n_out b"]:
    """Return W x, or Wᵀ x, for W with these values at the places; differentiable any often.

    For what is `fast`. Values and input have the same dtype, float32 or float64.
    """
    return _run(_Multiply, _multiply, values, x, places, transposed)


def _multiply(values: Tensor, x: Tensor, places: Places, transposed: bool) -> Tensor:
    starts, others, order = places.by_col if transposed else places.by_row
    return functional.embedding_bag(
        others,
        _canonical(x),
        starts,
        mode="sum",
        per_sample_weights=values if order is None else values.index_select(0, order),
        include_last_offset=True,
    )


def _dot(left: Tensor, right: Tensor, places: Places) -> Tensor:
    """Return left rightᵀ at the places: the dot product of rows r and c for each place (r, c)."""
    rows, cols = places.rows, places.cols
    if left.shape[1] < FEW_COLUMNS:
        sums = left.new_zeros(rows.shape)
        for one, other in zip(left.unbind(1), right.unbind(1), strict=True):
            sums.addcmul_(one.index_select(0, rows), other.index_select(0, cols))
        return sums
    # The gradient of the weights of `embedding_bag`, which gathers nothing of size (m, b).
    starts = places.by_row.starts
    gradient = torch.ops.aten._embedding_bag_per_sample_weights_backward
    return gradient(_canonical(left), _canonical(right), cols, starts, rows, 0)


def _run(function: Any, compute: Any, *args: Any) -> Tensor:
    """Skip autograd, which costs more than a small product, where nothing needs a gradient."""
    first, second, *_ = args
    if torch.is_grad_enabled() and (first.requires_grad or second.requires_grad):
        return function.apply(*args)
    return compute(*args)


# What a backward pass calls, where gradients may be batched (`is_grads_batched`) or traced.
def _multiply_any(values: Tensor, x: Tensor, places: Places, transposed: bool) -> Tensor:
    if _eager(values, x):
        return multiply(values, x, places, transposed)
    rows, cols = (places.cols, places.rows) if transposed else (places.rows, places.cols)
    y = x.new_zeros(places.sizes[int(transposed)], x.shape[1])
    return y.index_add(0, rows, x.index_select(0, cols) * values.unsqueeze(-1))


def _dot_any(left: Tensor, right: Tensor, places: Places) -> Tensor:
    if _eager(left, right):
        return _run(_Dot, _dot, left, right, places)
    return (left.index_select(0, places.rows) * right.index_select(0, places.cols)).sum(-1)


class _Multiply(torch.autograd.Function):
    """W x or Wᵀ x, whose gradients are products and dot products again."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, x: Tensor, places: Places, transposed: bool) -> Tensor:
        ctx.save_for_backward(values, x if ctx.needs_input_grad[0] else None)
        ctx.places, ctx.transposed = places, transposed
        return _multiply(values, x, places, transposed)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (values, x), (grad,) = ctx.saved_tensors, grads
        to_values = to_x = None
        if ctx.needs_input_grad[0]:
            ends = (x, grad) if ctx.transposed else (grad, x)
            to_values = _dot_any(*ends, ctx.places)
        if ctx.needs_input_grad[1]:
            to_x = _multiply_any(values, grad, ctx.places, not ctx.transposed)
        return to_values, to_x, None, None


class _Dot(torch.autograd.Function):
    """left rightᵀ at the places, whose gradients are products again."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, places: Places) -> Tensor:
        ctx.save_for_backward(left, right)
        ctx.places = places
        return _dot(left, right, places)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (left, right), (grad,) = ctx.saved_tensors, grads
        to_left = to_right = None
        if ctx.needs_input_grad[0]:
            to_left = _multiply_any(grad, right, ctx.places, False)
        if ctx.needs_input_grad[1]:
            to_right = _multiply_any(grad, left, ctx.places, True)
        return to_left, to_right, None


def _canonical(x: Tensor) -> Tensor:
    """Return a contiguous tensor with stride 1 along its last dimension, even if that has size 1.

    `embedding_bag` is several times slower on the CPU without.
    """
    return x.reshape(-1).view(x.shape)


def _starts(ordered: Tensor, size: int) -> Tensor:
    """Return where each of the numbers 0 … size starts in an ordered list."""
    numbers = torch.arange(size + 1, device=ordered.device)
    return torch.searchsorted(ordered.contiguous(), numbers)


def _version(tensor: Tensor) -> int | None:
    """Return how often a tensor was changed in place; tensors of inference mode do not count it."""
    return None if tensor.is_inference() else tensor._version
