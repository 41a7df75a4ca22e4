"""Stages 2 to 5 in one, for contexts of one continuous tuple that read from one input each.

This is the case of templates such as `fan_in`, of which glimpse attention is made: every output
draws its own few tuples, so that nothing but the result need ever be stored. `read_drawn` is the
specification, plain PyTorch on tuples that were drawn before; `read` is the fused kernel, which
draws as `sample` does.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sparsewire.annotations import Float, Int
from sparsewire.engines import deterministic, kernels_run
from sparsewire.ops.bound import working_dtype
from sparsewire.ops.density import Kind, tame
from sparsewire.ops.repeats import mark_repeats
from sparsewire.ops.sample import draw_seed
from sparsewire.ops.spread._chunked import ChunkedSpread

# What a thread of the kernel can hold: cells of the box around a mean in which repeats are found
# by their place, and samples from everywhere, which are compared with each other.
_LARGEST_BOX, _LARGEST_GLOBAL = 512, 64


class Where(NamedTuple):
    """Where contexts read: sizes of the learned columns, and what they are in the flat input."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    base: Int[Tensor, " c"]  # what the fixed columns of each context add up to


def can_read(
    device: torch.device,
    in_size: int,
    sizes: Sequence[int],
    region: Sequence[int],
    global_samples: int,
) -> bool:
    """Whether the fused kernel takes such contexts, reading from an input of this size."""
    return (
        kernels_run(device)
        and not deterministic(device)
        and max(in_size, math.prod(sizes)) < 2**31
        and box_cells(sizes, region) <= _LARGEST_BOX
        and global_samples <= _LARGEST_GLOBAL
    )


def box_cells(sizes: Sequence[int], region: Sequence[int]) -> int:
    """Return how many tuples lie in the region or just beside it: all those around the mean."""
    return math.prod([min(span + 2, size) for size, span in zip(sizes, region, strict=True)])


def read(
    means: Float[Tensor, "w c r"],
    variances: Float[Tensor, "w c r"],
    values: Float[Tensor, "w c"],
    x: Float[Tensor, "w n"],
    where: Where,
    region: Sequence[int],
    local_samples: int,
    global_samples: int,
    density: str = "gaussian",
    degrees: float = 1.0,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "w c"]:
    """Draw, mark repeats, spread and contract: z = v Σ_j p_j x[j] for each context.

    Needs a device for which `can_read` holds.
    """
    from sparsewire.ops.fused_gather._triton import operators

    dtype = working_dtype(torch.promote_types(means.dtype, values.dtype))
    z = operators.read(
        means.to(dtype),
        variances.to(dtype),
        values.to(dtype),
        x,
        where.base,
        draw_seed(means.device, generator),
        where.strides,
        where.sizes,
        region,
        local_samples,
        global_samples,
        density,
        float(degrees),
    )[0]
    return z.to(x.dtype)


def read_drawn(
    means: Float[Tensor, "w c r"],
    variances: Float[Tensor, "w c r"],
    values: Float[Tensor, "w c"],
    x: Float[Tensor, "w n"],
    indices: Int[Tensor, "w c s r"],
    where: Where,
    density: str = "gaussian",
    degrees: float = 1.0,
) -> Float[Tensor, "w c"]:
    """Compute `read` for tuples that were drawn before: the specification of the kernel.

    Examples:
        >>> where = Where(sizes=(4,), strides=(1,), base=torch.tensor([0]))
        >>> means, variances = torch.tensor([[[1.0]]]), torch.tensor([[[0.5]]])
        >>> x, drawn = torch.tensor([[0.0, 1.0, 10.0, 0.0]]), torch.tensor([[[[0], [1], [2], [2]]]])
        >>> read_drawn(means, variances, torch.ones(1, 1), x, drawn, where)
        tensor([[2.6955]])
    """
    excluded = mark_repeats(indices, where.sizes)
    w, c, s, r = indices.shape
    spots = sum(
        (indices[..., axis] * stride for axis, stride in enumerate(where.strides)),
        start=where.base.view(1, c, 1).expand(w, c, s),
    )
    found = x.gather(1, spots.reshape(w, c * s)).view(w, c, s)
    means, variances = tame(means, variances)
    shares = ChunkedSpread.apply(
        means.reshape(w * c, 1, r),
        variances.reshape(w * c, 1, r),
        values.reshape(w * c, 1),
        indices.reshape(w * c, s, r),
        excluded.view(w * c, s),
        Kind(density, degrees, r),
    )
    return (shares.view(w, c, s) * found).sum(-1)
