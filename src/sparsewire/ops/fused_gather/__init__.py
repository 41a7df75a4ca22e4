"""Stages 2 to 5 in one, for contexts of one continuous tuple that gather from one input each.

This is the case of templates such as `fan_in`, on which glimpse attention is built: each output
samples its own few tuples, so that only the result has to be stored. `gather_reference` is the
specification, in plain PyTorch for tuples sampled before; the kernel samples as `sample` does.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsewire.annotations import Float, Int
from sparsewire.engines import Engine, deterministic, dispatch, kernels_run
from sparsewire.ops.bound import working_dtype
from sparsewire.ops.density import Density
from sparsewire.ops.repeats import mark_repeats
from sparsewire.ops.sample import sample, sample_seed
from sparsewire.ops.spread import spread_reference

# What a thread of the kernel can hold: cells of the box around a mean, in which repeats are found
# by their position, and samples from everywhere, which are compared with each other.
_LARGEST_BOX, _LARGEST_GLOBAL = 512, 64


class Addresses(NamedTuple):
    """Where index tuples are in the flat input: base[context] + Σ_d index[d] · strides[d]."""

    sizes: tuple[int, ...]  # of the learned columns
    strides: tuple[int, ...]
    base: Int[Tensor, " c"]  # from the fixed columns of each context


def fused_gather(
    means: Float[Tensor, "w c r"],
    variances: Float[Tensor, "w c r"],
    values: Float[Tensor, "w c"],
    x: Float[Tensor, "w n"],
    addresses: Addresses,
    region: Sequence[int],
    local_samples: int,
    global_samples: int,
    density: Density = "gaussian",
    degrees: float = 1.0,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "w c"]:
    """Sample, mark repeats, spread and contract: z = v Σ_j p_j x[j] for each context.

    Each context has one continuous tuple, and each element of `w` one flat input, in which
    `addresses` says where index tuples are. The options are those of `sample` and `spread`.

    Examples:
        >>> addresses = Addresses(sizes=(4,), strides=(1,), base=torch.tensor([0]))
        >>> means, variances = torch.tensor([[[1.0]]]), torch.tensor([[[1e-9]]])
        >>> x = torch.tensor([[0.0, 1.0, 10.0, 0.0]])
        >>> fused_gather(means, variances, torch.ones(1, 1), x, addresses, (2,), 1, 1)
        tensor([[1.]])
    """
    tuples = means, variances, values, x, addresses, tuple(region), local_samples, global_samples
    return dispatch(ENGINES, means.device, *tuples, density, float(degrees), generator)


def gather_reference(
    means: Float[Tensor, "w c r"],
    variances: Float[Tensor, "w c r"],
    values: Float[Tensor, "w c"],
    x: Float[Tensor, "w n"],
    indices: Int[Tensor, "w c s r"],
    addresses: Addresses,
    density: Density = "gaussian",
    degrees: float = 1.0,
) -> Float[Tensor, "w c"]:
    """Compute `fused_gather` for tuples that are sampled already: the specification of the kernel.

    Examples:
        >>> addresses = Addresses(sizes=(4,), strides=(1,), base=torch.tensor([0]))
        >>> means, variances = torch.tensor([[[1.0]]]), torch.tensor([[[0.5]]])
        >>> x = torch.tensor([[0.0, 1.0, 10.0, 0.0]])
        >>> sampled = torch.tensor([[[[0], [1], [2], [2]]]])
        >>> gather_reference(means, variances, torch.ones(1, 1), x, sampled, addresses)
        tensor([[2.6955]])
    """
    w, c, s, _ = indices.shape
    spots = sum(
        (indices[..., axis] * stride for axis, stride in enumerate(addresses.strides)),
        start=addresses.base.view(1, c, 1).expand(w, c, s),
    )
    gathered = x.gather(1, spots.reshape(w, c * s)).view(w, c, s)
    tuples = means.unsqueeze(-2), variances.unsqueeze(-2), values.unsqueeze(-1)
    excluded = mark_repeats(indices, addresses.sizes)
    shares = spread_reference(*tuples, indices, excluded, density, degrees)
    return (shares * gathered).sum(-1).to(x.dtype)


def kernel_gathers(
    device: torch.device,
    in_size: int,
    sizes: Sequence[int],
    region: Sequence[int],
    global_samples: int,
) -> bool:
    """Whether `fused_gather` runs its kernel for such contexts and an input of this size."""
    return (
        kernels_run(device)
        and not deterministic(device)
        and max(in_size, math.prod(sizes)) < 2**31
        and box_cells(sizes, region) <= _LARGEST_BOX
        and global_samples <= _LARGEST_GLOBAL
    )


def box_cells(sizes: Sequence[int], region: Sequence[int]) -> int:
    """Return the number of tuples in the region around a mean and one index to each side of it."""
    return math.prod([min(span + 2, size) for size, span in zip(sizes, region, strict=True)])


# The engines: all have the arguments of `fused_gather`.


def _by_stages(*args: Any) -> Tensor:
    means, variances, values, x, addresses, *how = args
    region, local_samples, global_samples, density, degrees, generator = how
    counts = local_samples, global_samples
    indices = sample(means.unsqueeze(-2), addresses.sizes, region, *counts, generator)
    return gather_reference(means, variances, values, x, indices, addresses, density, degrees)


def _fused(*args: Any) -> Tensor:
    from sparsewire.ops.fused_gather._triton import operators

    means, variances, values, x, (sizes, strides, base), *how, generator = args
    dtype = working_dtype(torch.promote_types(means.dtype, values.dtype))
    tuples = means.to(dtype), variances.to(dtype), values.to(dtype)
    seed = sample_seed(means.device, generator)
    return operators.fused_gather(*tuples, x, base, seed, strides, sizes, *how)[0].to(x.dtype)


def _takes(*args: Any) -> bool:
    means, _, _, x, addresses, region, _, global_samples, *_ = args
    return kernel_gathers(means.device, x.shape[1], addresses.sizes, region, global_samples)


ENGINES = Engine("triton", _fused, takes=_takes), Engine("reference", _by_stages)
