"""Stage 5, contract: multiply the input by a sparse tensor given as index tuples and values."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from sparsewire.annotations import Float, Int
from sparsewire.checks import (
    check_count,
    check_devices,
    check_dims,
    check_exact,
    check_floating,
    check_integer,
    check_shape,
)
from sparsewire.engines import Engine, deterministic, dispatch
from sparsewire.ops.bound import working_dtype
from sparsewire.ops.repeats import flat_index
from sparsewire.precision import without_autocast

# Products computed at once: what is gathered from the input is never stored whole.
_CHUNK_ELEMENTS = 2**22

# Elements of a dense W for each tuple, up to which W is smaller than the tuples themselves.
_GRID_CELLS = 8

# Up to this number of products it is cheaper to save what was gathered than to gather it again.
_SMALL_ELEMENTS = 2**14


def contract(
    indices: Int[Tensor, "*w m r"],
    values: Float[Tensor, "*w m"],
    x: Float[Tensor, "*x"],
    out_shape: Sequence[int],
    features: int = 0,
) -> Float[Tensor, "*y"]:
    """Contract the input with a sparse tensor W.

    y[b_1 … b_m] = Σ_{a_1 … a_n} W[b_1 … b_m, a_1 … a_n] · x[a_1 … a_n]

    W is zero but for W[indices[j]] = values[j]; values at equal indices add up.

    Args:
        indices: Tuples (b_1 … b_m, a_1 … a_n), output columns first. Tuples outside W raise an
            error on the CPU; elsewhere the check would make the host wait and is left out.
        values: Their values.
        x: Input of shape (*w, *b, *in_shape, *features). With a prefix `w` there is one wiring for
            each element of it; the batch `b` that follows shares a wiring.
        out_shape: Sizes of the output axes; the other columns of `indices` belong to the input.
        features: Number of trailing dimensions of `x` that are not contracted. With one, `x` is a
            matrix, and `y = W x` a product of matrices.

    Returns:
        Tensor of shape (*w, *b, *out_shape, *features) in the dtype of `x`. Sums are taken in
        float32 at least. Any order of derivative is exact, and none is ever larger than the
        tensor it belongs to.

    Examples:
        >>> indices = torch.tensor([[0, 2], [1, 0], [1, 1]])  # y[0] reads x[2], y[1] the others
        >>> values, x = torch.tensor([5.0, 1.0, 1.0]), torch.tensor([1.0, 2.0, 3.0])
        >>> contract(indices, values, x, out_shape=(2,))
        tensor([15.,  3.])
    """
    rows, cols, flat, first = _flatten(indices, values, x, out_shape, features)
    y = contract_flat(rows, cols, values, flat, math.prod(out_shape), features)
    return y.reshape((*y.shape[:first], *out_shape, *y.shape[first + 1 :]))


def contract_reference(
    indices: Int[Tensor, "*w m r"],
    values: Float[Tensor, "*w m"],
    x: Float[Tensor, "*x"],
    out_shape: Sequence[int],
    features: int = 0,
) -> Float[Tensor, "*y"]:
    """Compute `contract` with a dense W: the specification of every engine.

    Examples:
        >>> indices, values, x = torch.tensor([[1, 0]]), torch.tensor([2.0]), torch.tensor([3.0])
        >>> contract_reference(indices, values, x, out_shape=(2,))
        tensor([0., 6.])
    """
    rows, cols, flat, first = _flatten(indices, values, x, out_shape, features)
    y = _compute(_dense, rows, cols, values, flat, math.prod(out_shape), features)
    return y.reshape((*y.shape[:first], *out_shape, *y.shape[first + 1 :]))


def contract_flat(
    rows: Int[Tensor, "*w m"],
    cols: Int[Tensor, "*w m"],
    values: Float[Tensor, "*w m"],
    x: Float[Tensor, "*x"],
    out_size: int,
    features: int = 0,
) -> Float[Tensor, "*y"]:
    """Contract with a sparse matrix: `contract` for one output and one input axis.

    y[row] = Σ_j [rows_j = row] · values_j · x[cols_j]

    Examples:
        >>> rows, cols = torch.tensor([0, 1, 1]), torch.tensor([2, 0, 1])
        >>> values, x = torch.tensor([5.0, 1.0, 1.0]), torch.tensor([1.0, 2.0, 3.0])
        >>> contract_flat(rows, cols, values, x, out_size=2)
        tensor([15.,  3.])
    """
    check_integer("rows", rows)
    check_integer("cols", cols)
    check_floating("values", values)
    check_floating("x", x)
    check_exact("cols", cols, tuple(rows.shape))
    check_exact("values", values, tuple(rows.shape))
    check_devices(rows=rows, cols=cols, values=values, x=x)
    _check_input(x, rows.shape[:-1], "n", 1, features)
    run = functools.partial(dispatch, ENGINES, x.device)
    return _compute(run, rows, cols, values, x, out_size, features)


def _compute(engine: Callable[..., Tensor], *call: Any) -> Tensor:
    """Call an engine, which takes the input as (w, b, n, f) and returns (w, b, out_size, f).

    It computes in the dtype of the values that it is given, which is float32 at least.
    """
    rows, cols, values, x, out_size, features = call
    axis, prefix = x.dim() - features - 1, rows.dim() - 1
    before, n, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    blocks = math.prod(before[:prefix]), math.prod(before[prefix:]), n, math.prod(after)
    values = values.to(working_dtype(torch.promote_types(values.dtype, x.dtype)))
    y = engine(rows, cols, values, x.reshape(blocks), out_size)
    return y.reshape((*before, out_size, *after)).to(x.dtype)


def _dense(rows: Tensor, cols: Tensor, values: Tensor, x: Tensor, out_size: int) -> Tensor:
    matrix = _matrix(rows, cols, values, x, out_size)
    return torch.einsum("woi,wbif->wbof", matrix, x.to(values.dtype))


def _on_grid(rows: Tensor, cols: Tensor, values: Tensor, x: Tensor, out_size: int) -> Tensor:
    w, b, n, f = x.shape
    inner = x.to(values.dtype).transpose(2, 3).reshape(w, b * f, n)
    y: Any = _Product.apply(inner, _matrix(rows, cols, values, x, out_size).mT)
    return y.view(w, b, f, out_size).transpose(2, 3)


def _matrix(rows: Tensor, cols: Tensor, values: Tensor, x: Tensor, out_size: int) -> Tensor:
    """Return each wiring as a dense matrix (w, out_size, n)."""
    w, _, n, _ = x.shape
    cells = (rows * n + cols).reshape(w, rows.shape[-1])
    dense = values.new_zeros(w, out_size * n).scatter_add(-1, cells, values.reshape(cells.shape))
    return dense.view(w, out_size, n)


def _in_chunks(rows: Tensor, cols: Tensor, values: Tensor, x: Tensor, out_size: int) -> Tensor:
    """Contract with one block-diagonal matrix that has a block for each wiring.

    The batch is the innermost axis, so that each tuple moves one contiguous run of numbers.
    """
    w, b, n, f = x.shape
    inner = x.to(values.dtype).transpose(1, 2).reshape(w * n, b * f)
    if rows.dim() > 1:
        block = torch.arange(w, device=rows.device).view(*rows.shape[:-1], 1)
        rows, cols = rows + block * out_size, cols + block * n
    rows, cols, values = rows.reshape(-1), cols.reshape(-1), values.reshape(-1)
    if torch.compiler.is_exporting() or rows.numel() * b * f <= _SMALL_ELEMENTS:
        moved = _take_rows(inner, cols) * values.unsqueeze(-1)
        y: Any = _add_rows(inner.new_zeros(w * out_size, b * f), rows, moved)
    else:
        y = _Contract.apply(rows, cols, values, inner, w * out_size)
    return y.view(w, out_size, b, f).transpose(1, 2)


def _fused(rows: Tensor, cols: Tensor, values: Tensor, x: Tensor, out_size: int) -> Tensor:
    from sparsewire.ops.contract._triton import operators

    w, b, n, f = x.shape
    tuples = (t.reshape(w, rows.shape[-1]) for t in (rows, cols, values))
    inner = x.transpose(1, 2).reshape(w, n, b * f)
    return operators.contract(*tuples, inner, out_size).view(w, out_size, b, f).transpose(1, 2)


def _is_small(rows: Tensor, cols: Tensor, values: Tensor, x: Tensor, out_size: int) -> bool:
    """Whether the dense matrices are smaller than the tuples that they are made of."""
    cells = x.shape[0] * out_size * x.shape[2]
    return x.device.type == "cpu" and cells <= _GRID_CELLS * rows.numel()


def _is_reused(rows: Tensor, cols: Tensor, values: Tensor, x: Tensor, out_size: int) -> bool:
    """Whether the dense matrices serve enough instances to be worth making."""
    w, b, n, f = x.shape
    # An exported program takes a batch of any size, so its form may not depend on that size.
    return not torch.compiler.is_exporting() and w * out_size * n <= rows.numel() * b * f


ENGINES = (
    Engine("triton", _fused, takes=lambda rows, *_: not deterministic(rows.device)),
    Engine("grid", _on_grid, takes=_is_small, pays=_is_reused),
    Engine("chunked", _in_chunks),
    Engine("reference", _dense),
)


class _Product(torch.autograd.Function):
    """A product of matrices in the precision of its factors, whatever autocast would do."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        with without_autocast(a):
            return a @ b

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        a, b = ctx.saved_tensors
        to_a = _call(_Product)(grads[0], b.mT) if ctx.needs_input_grad[0] else None
        to_b = _call(_Product)(a.mT, grads[0]) if ctx.needs_input_grad[1] else None
        return to_a, to_b


class _Contract(torch.autograd.Function):
    """y[row_j] += v_j x[col_j] in chunks, which are gathered again in the backward pass."""

    @staticmethod
    def forward(rows: Tensor, cols: Tensor, values: Tensor, x: Tensor, size: int) -> Tensor:
        y = x.new_zeros(size, x.shape[1])
        for chunk in _chunks(rows, x):
            moved = _take_rows(x, cols[chunk]).mul_(values[chunk].unsqueeze(-1))
            y = _add_rows(y, rows[chunk], moved)
        # When torch 2.11 compiles a function, the gradient of a result changed in place is lost.
        return y.clone() if torch.compiler.is_compiling() else y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:4])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        rows, cols, values, x = ctx.saved_tensors
        to_values = to_x = None
        if ctx.needs_input_grad[2]:
            to_values = _call(_Dot)(rows, cols, grads[0], x)
        if ctx.needs_input_grad[3]:
            to_x = _call(_Contract)(cols, rows, values, grads[0], x.shape[0])
        return None, None, to_values, to_x, None


class _Dot(torch.autograd.Function):
    """v_j = y[row_j] · x[col_j]: an outer product at the places of the tuples."""

    @staticmethod
    def forward(rows: Tensor, cols: Tensor, y: Tensor, x: Tensor) -> Tensor:
        out = x.new_empty(rows.shape)
        for chunk in _chunks(rows, x):
            out[chunk] = _take_rows(y, rows[chunk]).mul_(_take_rows(x, cols[chunk])).sum(-1)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        rows, cols, y, x = ctx.saved_tensors
        to_y = to_x = None
        if ctx.needs_input_grad[2]:
            to_y = _call(_Contract)(rows, cols, grads[0], x, y.shape[0])
        if ctx.needs_input_grad[3]:
            to_x = _call(_Contract)(cols, rows, grads[0], y, x.shape[0])
        return None, None, to_y, to_x


def _call(function: Any) -> Any:
    """Skip autograd in a backward pass that will not itself be differentiated."""
    return function.apply if torch.is_grad_enabled() else function.forward


def _chunks(rows: Tensor, x: Tensor) -> Iterator[slice]:
    step = max(_CHUNK_ELEMENTS // max(x.shape[1], 1), 1)
    return (slice(start, start + step) for start in range(0, rows.shape[0], step))


# Gather and scatter-add with an index expanded over the lanes are several times faster on the CPU
# than index_select and index_add; a single lane is faster still without its axis.
def _take_rows(table: Tensor, index: Tensor) -> Tensor:
    lanes = table.shape[1]
    if lanes == 1:
        return table.view(-1).gather(0, index).unsqueeze(-1)
    return table.gather(0, index.unsqueeze(-1).expand(-1, lanes))


def _add_rows(table: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """Add rows to a table, in place."""
    lanes = table.shape[1]
    if lanes == 1:
        return table.view(-1).scatter_add_(0, index, rows.view(-1)).view_as(table)
    return table.scatter_add_(0, index.unsqueeze(-1).expand(-1, lanes), rows)


def _flatten(
    indices: Tensor, values: Tensor, x: Tensor, out_shape: Sequence[int], features: int
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Check everything; return rows, columns, the flattened input and its contracted axis."""
    outs = check_shape("out_shape", out_shape)
    check_integer("indices", indices)
    check_floating("values", values)
    check_floating("x", x)
    check_count("features", features)
    check_dims("indices", indices, (None, None), "(*w, m, r)")
    check_exact("values", values, tuple(indices.shape[:-1]))
    check_devices(indices=indices, values=values, x=x)
    in_rank = indices.shape[-1] - len(outs)
    if in_rank < 0:
        raise ValueError(
            f"indices must have at least {len(outs)} columns, one for each size of out_shape "
            f"{outs}; got {indices.shape[-1]}"
        )
    first = _check_input(x, indices.shape[:-2], "*in_shape", in_rank, features)
    ins = tuple(x.shape[first : first + in_rank])
    if indices.device.type == "cpu" and not torch.compiler.is_compiling():
        _check_inside(indices, (*outs, *ins))
    rows = flat_index(indices[..., : len(outs)], outs)
    cols = flat_index(indices[..., len(outs) :], ins)
    flat = x.reshape(*x.shape[:first], math.prod(ins), *x.shape[first + in_rank :])
    return rows, cols, flat, first


def _check_input(x: Tensor, w: Sequence[int], axes: str, in_rank: int, features: int) -> int:
    """Return the first dimension of the input that is contracted."""
    first = x.dim() - features - in_rank
    if first < len(w) or tuple(x.shape[: len(w)]) != tuple(w):
        raise ValueError(
            f"x must have shape (*w, *b, {axes}, *features) with w = {tuple(w)}, {in_rank} input "
            f"and {features} feature dimensions; got {tuple(x.shape)}"
        )
    return first


def _check_inside(indices: Tensor, shape: Sequence[int]) -> None:
    """Raise an error for indices outside W, which flattened would be other elements of it."""
    if not indices.numel():
        return
    flat = indices.flatten(0, -2)
    ends = zip(flat.amin(0).tolist(), flat.amax(0).tolist(), shape, strict=True)
    for column, (low, high, size) in enumerate(ends):
        if low < 0 or high >= size:
            raise ValueError(
                f"indices must lie in 0 … {size - 1} in column {column}; got {low} … {high}"
            )
