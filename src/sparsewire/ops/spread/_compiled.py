"""The compiled CPU engine of `spread`: sums over pairs in loops that store no table.

`torch.compile` compiles two functions to C++, forward and backward, in which every pair is computed
inside the sums that need it. The second derivative is that of the chunked engine.
"""

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from sparsewire.engines import has_compiler
from sparsewire.ops.density import Kind
from sparsewire.ops.spread._chunked import (
    ChunkedSpread,
    ChunkedSpreadBackward,
    Pairs,
    differentiate,
    places,
)

# From this number of pairs, `"auto"` compiles. The first call then takes some twenty seconds more,
# and the process a few hundred MiB; calls this large, a second each in plain chunks, soon make up
# for it.
WORTHWHILE = 2**26

# Pairs computed at once. Nothing of this size is stored, except by compilers before torch 2.13.
_CHUNK_PAIRS = 2**22

# Sizes (c, k) and (c, m) that the code is optimised for. Fixed, or the code and its rounding would
# depend on the first call. One context, so that threads share its rows.
_HINTS = (1, 1024), (1, 8192)

_MANY = 2**30

Function = Callable[[Tensor, Tensor, Kind], tuple[Tensor, ...]]


class CompiledSpread(ChunkedSpread):
    """`ChunkedSpread`, compiled; where that fails, `ChunkedSpread` itself."""

    @classmethod
    def apply(cls, *inputs: Any) -> Any:
        """Return the values of the integer tuples."""
        return _Spread.apply(*inputs)[0]


class _Spread(torch.autograd.Function):
    """Returns the values, and norms of the continuous tuples for the backward pass."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        means, variances, values, indices, excluded, kind = inputs
        out, norms = means.new_zeros(indices.shape[:-1]), means.new_empty(2, *values.shape)
        columns = _columns(means, indices, excluded)
        for place in places(values, indices.shape[-2], _CHUNK_PAIRS):
            rows = _rows(means[place], variances[place], values[place])
            result = _run(_forward, rows, columns[:, place[0]], kind)
            if result is None:
                return ChunkedSpread.forward(*inputs), means.new_empty(0)
            out[place[0]] += result[0]
            norms[:, *place] = result[1]
        return (out if excluded is None else out.masked_fill(excluded, 0)), norms

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs[:5], output[1])
        ctx.kind = inputs[5]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        *tensors, norms = ctx.saved_tensors
        inputs = grads[0], *tensors, ctx.kind
        if norms.numel():
            result = differentiate(_SpreadBackward, *inputs, norms)
        else:
            result = differentiate(ChunkedSpreadBackward, *inputs)
        return (*result, None, None, None)


class _SpreadBackward(ChunkedSpreadBackward):
    """`ChunkedSpreadBackward`, compiled."""

    @staticmethod
    def forward(grad: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        means, variances, values, indices, excluded, kind, norms = inputs
        grads = torch.empty_like(means), torch.empty_like(variances), torch.empty_like(values)
        incoming = grad if excluded is None else grad.masked_fill(excluded, 0)
        columns = _columns(means, indices, excluded, incoming)
        for place in places(values, indices.shape[-2], _CHUNK_PAIRS):
            rows = _rows(means[place], variances[place], values[place], *norms[:, *place])
            result = _run(_backward, rows, columns[:, place[0]], kind)
            if result is None:
                return ChunkedSpreadBackward.forward(grad, *inputs[:-1])
            for total, part in zip(grads, result, strict=True):
                total[place] = part
        return grads

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return (*ChunkedSpreadBackward.backward(ctx, *grads), None)


def _rows(means: Tensor, variances: Tensor, *others: Tensor) -> Tensor:
    """Pack the data of continuous tuples as (q, c, k): one row of memory for each quantity."""
    tuples = means.movedim(-1, 0), variances.sqrt().reciprocal().movedim(-1, 0)
    return torch.cat([*tuples, *(t.unsqueeze(0) for t in others)])


def _columns(means: Tensor, indices: Tensor, excluded: Tensor | None, *others: Tensor) -> Tensor:
    """Pack the data of integer tuples as (q, c, m)."""
    points = indices.movedim(-1, 0).to(means.dtype)
    hidden = torch.zeros_like(points[0]) if excluded is None else excluded.to(means.dtype)
    return torch.cat([points, *(t.unsqueeze(0) for t in (hidden, *others))])


def _unpack(
    rows: Tensor, columns: Tensor, rank: int, transposed: bool = False
) -> tuple[Pairs, Any]:
    """Return the pairs as a table, (k, m) or transposed, and the other rows and columns."""
    i, j = (-2, -1) if transposed else (-1, -2)
    tuples, points = rows.unsqueeze(i).unbind(0), columns.unsqueeze(j).unbind(0)
    pairs = Pairs(tuples[:rank], tuples[rank : 2 * rank], points[:rank], points[rank] != 0)
    return pairs, (*tuples[2 * rank :], *points[rank + 1 :])


def _forward(rows: Tensor, columns: Tensor, kind: Kind) -> tuple[Tensor, ...]:
    """Return the values of integer tuples, and the largest logit and 1 / Σ_j p_ij of each row."""
    pairs, (values,) = _unpack(rows, columns, kind.rank)
    distance = pairs.distance()
    seen = distance if pairs.hidden is None else distance.masked_fill(pairs.hidden, math.inf)
    highest = kind.log_density(seen.amin(-1, keepdim=True))
    total = _exp(pairs.logits(kind, distance) - highest, kind).sum(-1, keepdim=True)
    # Where all are hidden, the total is 0.
    scale = total.clamp(min=torch.finfo(total.dtype).tiny).reciprocal()
    # Transposed, the sum over continuous tuples runs along memory too.
    pairs, _ = _unpack(rows, columns, kind.rank, transposed=True)
    logits = pairs.logits(kind, pairs.distance()) - highest.mT
    out = (_exp(logits, kind) * (values * scale).mT).sum(-1)
    return out, torch.stack((highest.squeeze(-1), scale.squeeze(-1)))


def _backward(rows: Tensor, columns: Tensor, kind: Kind) -> tuple[Tensor, ...]:
    """Return the gradients of means, variances and values."""
    pairs, (values, highest, scale, incoming) = _unpack(rows, columns, kind.rank)
    distance = pairs.distance()
    table = _exp(pairs.logits(kind, distance) - highest, kind) * scale
    return pairs.gradients(kind, table, distance, incoming, values.squeeze(-1))


def _exp(x: Tensor, kind: Kind) -> Tensor:
    """Return exp(x) for x ≤ 0, in plain arithmetic where that is faster.

    A function call spills the registers of a loop; Student-t loops call the logarithm anyway. With
    x = n log 2 + y, exp(x) = 2^n exp(y): the first factor is assembled from its bits, the second is
    a Taylor polynomial for |y| < 0.35.
    """
    if x.dtype != torch.float32 or kind.name != "gaussian":
        return x.exp()
    x = x.clamp(min=-88)  # 2^−127 is zero, in these bits
    n = (x * (1 / math.log(2))).round()
    coarse = 355 / 512  # of log 2: so few bits that n times it is exact
    y = x - n * coarse - n * (math.log(2) - coarse)
    series = y * (1 / math.factorial(7)) + 1 / math.factorial(6)
    for degree in range(5, -1, -1):
        series = series * y + 1 / math.factorial(degree)
    return series * ((n.to(torch.int32) + 127) << 23).view(torch.float32)


_broken: set[tuple[Any, ...]] = set()


def _run(
    function: Function, rows: Tensor, columns: Tensor, kind: Kind
) -> tuple[Tensor, ...] | None:
    """Call a function, compiled; return None if it cannot be compiled."""
    key = function, kind.name, kind.rank, len(rows), len(columns), rows.dtype
    if key in _broken or _busy() or not columns.numel():
        return None
    degrees = rows.new_full((), kind.degrees)
    try:
        return _compiled(*key)(*_any_size(rows.contiguous(), columns.contiguous()), degrees)
    except Exception:
        _broken.add(key)
        return None


def _busy() -> bool:
    """Whether a compilation, a trace or a dispatch mode is active, which would see our calls."""
    return torch.compiler.is_compiling() or is_in_torch_dispatch_mode()


@functools.cache
def _compiled(
    function: Function, name: str, rank: int, rows: int, columns: int, dtype: torch.dtype
) -> Callable[..., tuple[Tensor, ...]]:
    """Trace a function to a graph of tensor operations, and compile it for every size."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def function_of_tensors(rows: Tensor, columns: Tensor, degrees: Tensor) -> tuple[Tensor, ...]:
        return function(rows, columns, Kind(name, 1.0, rank)._replace(degrees=degrees))

    options: dict[str, Any] = {
        # Recompute, rather than store, whatever several sums need.
        "realize_opcount_threshold": _MANY,
        "realize_acc_reads_threshold": _MANY,
        # But share, inside one loop, what reads as many numbers as a pair's weight in the gradient.
        "realize_reads_threshold": 3 * rank + 5 if rank > 1 else _MANY,
    }
    sizes = (rows, 2, 3), (columns, 2, 3), ()
    example = [torch.ones(size, dtype=dtype, device="cpu") for size in sizes]
    with warnings.catch_warnings(action="ignore"):
        graph = make_fx(function_of_tensors)(*example)
        compiled: Any = torch.compile(graph, fullgraph=True, options=options)
        compiled(*_any_size(*example[:2]), example[2])
    return compiled


def _any_size(rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Mark the numbers of contexts, rows and columns as dynamic, one included."""
    from torch._dynamo.decorators import mark_unbacked

    for table, (contexts, length) in zip((rows, columns), _HINTS, strict=True):
        mark_unbacked(table, 1, hint_override=contexts, shape_id="contexts")
        mark_unbacked(table, 2, hint_override=length)
    return rows, columns


def available() -> bool:
    """Whether functions can be compiled now: there is a compiler, and it works."""
    return has_compiler() and not _busy() and _works()


@functools.cache
def _works() -> bool:
    """Compile a tiny function, and return whether it was compiled."""
    try:
        with warnings.catch_warnings(action="ignore"):
            probe = torch.compile(lambda x: (x + 1, torch.compiler.is_compiling()), fullgraph=True)
            return probe(torch.ones(2, device="cpu"))[1]
    except Exception:
        return False
