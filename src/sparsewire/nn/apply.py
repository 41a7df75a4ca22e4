"""Multiply a batch by sparse tensors: as a whole, group by group, or without storing any tuple."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sparsewire.annotations import Float
from sparsewire.nn.layout import Placed, Shapes, Template
from sparsewire.nn.wiring import Wiring
from sparsewire.ops.contract import contract_flat
from sparsewire.ops.fused_gather import fused_gather, kernel_gathers


def contract_placed(
    placed: Placed, x: Float[Tensor, "*x"], shapes: Shapes, features: int
) -> Float[Tensor, "*y"]:
    """Multiply an input (*b, *ins, *features) by a sparse matrix of these shapes."""
    last = x.dim() - features
    batch, rest = x.shape[: last - len(shapes.ins)], x.shape[last:]
    flat = x.reshape(*batch, math.prod(shapes.ins), *rest)
    y = contract_flat(*placed, flat, math.prod(shapes.outs), features)
    return y.reshape((*batch, *shapes.outs, *rest))


def split_batch(x: Float[Tensor, "*x"], dims: int, groups: int) -> Float[Tensor, "w g *inner"]:
    """Split a batch of some dimensions into groups; the last ones may have one instance less.

    Examples:
        >>> split_batch(torch.tensor([1.0, 2.0, 3.0]), dims=1, groups=2)
        tensor([[1., 2.],
                [3., 0.]])
    """
    x = x.flatten(0, dims - 1)
    if x.shape[0] % groups == 0:
        return x.unflatten(0, (groups, -1))
    return pad_sequence(list(x.tensor_split(groups)), batch_first=True)


def join_batch(y: Float[Tensor, "w g *inner"], batch: Sequence[int]) -> Float[Tensor, "*y"]:
    """Undo `split_batch` for a batch of this shape."""
    each, larger = math.prod(batch) // y.shape[0], math.prod(batch) % y.shape[0]
    if not larger:
        return y.flatten(0, 1).unflatten(0, batch)
    parts = y[:larger].flatten(0, 1), y[larger:, :each].flatten(0, 1)
    return torch.cat(parts).unflatten(0, batch)


def read_directly(
    layout: Template, wiring: Wiring, x: Float[Tensor, "*x"], shapes: Shapes, *options: Any
) -> Float[Tensor, "*y"] | None:
    """Sample, spread and contract in one kernel that stores nothing but the output.

    Returns None where there is no such kernel, or where the template does not say what is written.
    Each instance has a wiring whose tuples are contexts of their own; `x` has no feature
    dimensions; `options` are the last arguments of `fused_gather`, from the region on.
    """
    region, _, scattered, *_ = options
    ins, outs = math.prod(shapes.ins), math.prod(shapes.outs)
    if not kernel_gathers(x.device, ins, layout.space(shapes), region, scattered):
        return None
    if (reading := layout.reading(shapes, x.device)) is None:
        return None
    batch = wiring.values.shape[:-1]
    means, variances, values = (t.flatten(0, len(batch) - 1) for t in wiring)
    flat = x.reshape(math.prod(batch), ins)
    y = fused_gather(means, variances, values, flat, reading.addresses, *options)
    if reading.rows is not None:
        y = y.new_zeros(y.shape[0], outs).index_add(1, reading.rows, y)
    return y.reshape((*batch, *shapes.outs))
