"""The memory-linear engine of `spread`: chunks of the table, recomputed in the backward pass."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsewire.ops.density import Kind, hidden_logit

# Pairs computed at once: so many that calls take little of the time, or that they fill a GPU.
_CHUNK_PAIRS = {"cpu": 2**18}
_CHUNK_PAIRS_ELSEWHERE = 2**22

# Numbers that a softmax along memory computes at once; it is twenty times slower for shorter rows.
_VECTOR = 16


class ChunkedSpread(torch.autograd.Function):
    """Spread contexts (c, k, r) over (c, m, r); only the inputs are saved for the backward pass.

    The inputs are means, variances, values, indices, what is excluded or None, and the density.
    """

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        means, variances, values, indices, excluded, kind = inputs
        out = means.new_zeros(indices.shape[:-1])
        for chunk in _chunks(means, variances, values, indices, excluded):
            table, _ = chunk.pairs.proportions(kind)
            out[chunk.contexts] += table.mul_(chunk.values.unsqueeze(-1)).sum(-2)
        if excluded is not None:
            return out.masked_fill(excluded, 0)
        # When torch 2.11 compiles a function, the gradient of a result changed in place is lost.
        return out.clone() if torch.compiler.is_compiling() else out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:5])
        ctx.kind = inputs[5]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        result = differentiate(ChunkedSpreadBackward, *grads, *ctx.saved_tensors, ctx.kind)
        return (*result, None, None, None)


class ChunkedSpreadBackward(torch.autograd.Function):
    """The first derivative, written out; its own derivative comes from autograd, chunk by chunk.

    With g the gradient of v' and a_i = Σ_j g_j p_ij: dL/dv_i = a_i, and through the logarithm of
    the density dL/dlog p_ij = v_i p_ij (g_j − a_i).
    """

    @staticmethod
    def forward(grad: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        *tensors, kind = inputs
        means, variances, values, _, excluded = tensors
        # Allocated first: small tensors between the temporary tables would fragment the memory.
        grads = torch.empty_like(means), torch.empty_like(variances), torch.empty_like(values)
        if excluded is not None:
            grad = grad.masked_fill(excluded, 0)
        for chunk in _chunks(*tensors):
            table, distance = chunk.pairs.proportions(kind)
            incoming = grad[chunk.contexts].unsqueeze(-2)
            parts = chunk.pairs.gradients(kind, table, distance, incoming, chunk.values)
            for total, part in zip(grads, parts, strict=True):
                total[chunk.place] = part
        return grads

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[:6])
        ctx.kind = inputs[6]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad, means, variances, values, indices, excluded = ctx.saved_tensors
        tuples = means, variances, values
        # A third derivative needs the graph of this one: memory then grows with the table.
        keep = torch.is_grad_enabled()
        if excluded is not None:
            grad = grad.masked_fill(excluded, 0)
        to_grad, *to_tuples = (torch.zeros_like(t) for t in (grad, *tuples))
        for chunk in _chunks(*tuples, indices, excluded):
            with torch.enable_grad():
                incoming = _leaf(grad[chunk.contexts], keep)
                leaves = [_leaf(t[chunk.place], keep) for t in tuples]
                table, _ = chunk.with_tuples(*leaves).pairs.proportions(ctx.kind)
                out = (table * leaves[2].unsqueeze(-1)).sum(-2)
                first = torch.autograd.grad(out, leaves, incoming, create_graph=True)
                second = [g[chunk.place] for g in grads]
                parts = torch.autograd.grad(first, (incoming, *leaves), second, create_graph=keep)
            to_grad[chunk.contexts] += parts[0]
            for total, part in zip(to_tuples, parts[1:], strict=True):
                total[chunk.place] = part
        if excluded is not None:
            to_grad = to_grad.masked_fill(excluded, 0)
        return (to_grad, *to_tuples, None, None, None)


def differentiate(function: Any, *inputs: Any) -> Any:
    """Call a backward pass, without autograd unless it will itself be differentiated."""
    return function.apply(*inputs) if torch.is_grad_enabled() else function.forward(*inputs)


def _leaf(tensor: Tensor, keep: bool) -> Tensor:
    """Return a tensor that requires grad, with its history or without."""
    return tensor if keep and tensor.requires_grad else tensor.detach().requires_grad_()


class Pairs(NamedTuple):
    """Continuous and integer tuples, axis by axis; all fields broadcast to their table."""

    means: tuple[Tensor, ...]
    scales: tuple[Tensor, ...]
    """One over the standard deviations; precisions would overflow in derivatives."""
    points: tuple[Tensor, ...]
    hiding: Tensor | None
    """Zero, and for hidden tuples a logit that makes their density zero."""

    def distance(self) -> Tensor:
        """Return squared distances, computed axis by axis: no (k, m, r) table."""
        axes = zip(self.points, self.means, self.scales, strict=True)
        steps = ((point - mean).mul_(scale) for point, mean, scale in axes)
        total = next(steps).square_()
        for step in steps:
            total.addcmul_(step, step)
        return total

    def proportions(self, kind: Kind) -> tuple[Tensor, Tensor]:
        """Return the proportions, whose rows sum to one, and the squared distances."""
        distance = self.distance()
        logits = kind.log_density(distance)
        if self.hiding is not None:
            logits += self.hiding
        return _softmax(logits), distance

    def gradients(
        self, kind: Kind, table: Tensor, distance: Tensor, incoming: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of means, variances and values; the table is overwritten."""
        received = (table * incoming).sum(-1, keepdim=True)
        weight = kind.back(table.mul_(incoming - received), distance)
        to_means, to_variances = [], []
        for point, mean, scale in zip(self.points, self.means, self.scales, strict=True):
            step = (point - mean).mul_(scale.square())
            weighted = torch.mul(weight, step, out=table)
            to_means.append(weighted.sum(-1))
            to_variances.append(weighted.mul_(step).sum(-1) / 2)
        first, second = (
            torch.stack(t, -1).mul_(values.unsqueeze(-1)) for t in (to_means, to_variances)
        )
        return first, second, received.squeeze(-1)


def _softmax(logits: Tensor) -> Tensor:
    """Return the softmax of each row; across memory where a row does not fill a vector."""
    if logits.shape[-1] >= _VECTOR:
        return logits.softmax(-1)
    return logits.transpose(0, -1).contiguous().softmax(0).transpose(0, -1).contiguous()


class _Chunk(NamedTuple):
    """Rows of the table: continuous tuples at `place`, all integer tuples of their contexts."""

    contexts: slice
    place: tuple[slice, slice]
    pairs: Pairs
    values: Tensor

    def with_tuples(self, means: Tensor, variances: Tensor, values: Tensor) -> "_Chunk":
        """Return the chunk with these continuous tuples, split by axis."""
        pairs = self.pairs._replace(
            means=means.unsqueeze(-1).unbind(-2),
            scales=variances.sqrt().reciprocal().unsqueeze(-1).unbind(-2),
        )
        return self._replace(pairs=pairs, values=values)


def _chunks(
    means: Tensor, variances: Tensor, values: Tensor, indices: Tensor, excluded: Tensor | None
) -> Iterator[_Chunk]:
    """Divide the tables of all contexts into chunks of whole rows."""
    points = indices.movedim(-1, 0).to(means.dtype).contiguous().unsqueeze(-2)
    hiding = None
    if excluded is not None:  # added, for to fill by a mask takes longer than an exponential
        hiding = means.new_zeros(excluded.shape).masked_fill(excluded, hidden_logit(means.dtype))
        hiding = hiding.unsqueeze(-2)
    pairs = _CHUNK_PAIRS.get(means.device.type, _CHUNK_PAIRS_ELSEWHERE)
    for place in places(values, indices.shape[-2], pairs):
        here, _ = place
        near = Pairs((), (), points[:, here].unbind(0), None if hiding is None else hiding[here])
        chunk = _Chunk(here, place, near, values)
        yield chunk.with_tuples(means[place], variances[place], values[place])


def places(values: Tensor, m: int, pairs: int) -> Iterator[tuple[slice, slice]]:
    """Divide (c, k) rows of m into parts of so many pairs: a few contexts, or part of one."""
    contexts, k = values.shape
    rows = max(pairs // max(m, 1), 1)
    together, part = max(rows // max(k, 1), 1), max(min(rows, k), 1)
    for start in range(0, contexts, together):
        for first in range(0, k, part):
            yield slice(start, start + together), slice(first, first + part)
