"""Stage 2, sample: integer index tuples near, around and far from each continuous tuple.

Nothing here carries a gradient: the integer tuples are constants of the forward pass.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sparsewire.annotations import Float, Int
from sparsewire.checks import (
    check_count,
    check_dims,
    check_floating,
    check_rank,
    check_shape,
    check_sizes,
    constant,
)
from sparsewire.engines import kernels_run
from sparsewire.ops.bound import working_dtype

# Drawing from a power of two is exact; the remainder by a size n is then off by less than n / 2⁶².
_DRAW_RANGE = 2**62


def sample(
    means: Float[Tensor, "*b k r"],
    shape: Sequence[int],
    region: Sequence[int],
    local_samples: int,
    global_samples: int,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "*b m r"]:
    """Draw the integer tuples of a forward pass (the paper's algorithm 1).

    For each continuous tuple: the 2^r nearest integer tuples, `local_samples` (a_l) uniform over
    the region around its rounded mean, `global_samples` (a_g) uniform over all. Draws are with
    replacement; `mark_repeats` finds the repeats.

    Args:
        means: Continuous tuples inside the bounds of `shape`, any batch prefix.
        shape: Sizes of the index axes.
        region: Sizes (l_1 … l_r) of the local region, at most `shape`.
        local_samples: Tuples drawn from the region, for each continuous tuple.
        global_samples: Tuples drawn from everywhere, for each continuous tuple.
        generator: Source of randomness, on the device of `means`. The same state, the same draw;
            another device or engine draws other tuples from it.

    Returns:
        m = k · (2^r + a_l + a_g) tuples, those of the first continuous tuple first.

    Examples:
        >>> means = torch.tensor([[0.2, 6.7]])
        >>> sample(means, (8, 8), (3, 3), 2, 1, torch.Generator().manual_seed(0))
        tensor([[0, 6],
                [0, 7],
                [1, 6],
                [1, 7],
                [0, 5],
                [2, 5],
                [3, 2]])
    """
    sizes = _check_means(means, shape)
    check_count("local_samples", local_samples)
    check_count("global_samples", global_samples)
    _check_generator(generator, means.device)
    if kernels_run(means.device):
        from sparsewire.ops.sample import _triton

        counts = local_samples, global_samples
        seed = draw_seed(means.device, generator)
        flat = _resolved(means).reshape(math.prod(means.shape[:-1]), len(sizes))
        drawn = _triton.sample(flat, seed, sizes, check_region("region", region, sizes), *counts)
        *prefix, k, rank = means.shape
        return drawn.view(*prefix, k * drawn.shape[1], rank)
    spots = [
        nearest(means, sizes),
        local(means, sizes, region, local_samples, generator),
        everywhere(tuple(means.shape[:-1]), sizes, global_samples, generator, means.device),
    ]
    return torch.cat(spots, dim=-2).flatten(-3, -2)


def draw_seed(device: torch.device, generator: torch.Generator | None = None) -> Int[Tensor, "1"]:
    """Draw the seed of a kernel, on the device: the host need not know it, and graphs draw anew."""
    return _random_bits((1,), generator, device)


def nearest(means: Float[Tensor, "*b k r"], shape: Sequence[int]) -> Int[Tensor, "*b k s r"]:
    """Return the 2^r integer tuples around each mean: on each axis ⌊mean⌋ and the index after it.

    At the upper bound the pair is the last two indices. There are always 2^r valid tuples; they
    repeat only along axes of size one.

    Examples:
        >>> nearest(torch.tensor([[1.5, 4.0]]), (8, 5))
        tensor([[[1, 3],
                 [1, 4],
                 [2, 3],
                 [2, 4]]])
    """
    sizes = _check_means(means, shape)
    low = _clamped(_resolved(means).floor(), [max(n - 2, 0) for n in sizes])
    corners = list(itertools.product(*((0, min(n - 1, 1)) for n in sizes)))
    return low.unsqueeze(-2) + _table(corners, means.device)


def rounded(means: Float[Tensor, "*b k r"], shape: Sequence[int]) -> Int[Tensor, "*b k r"]:
    """Return the integer tuple nearest to each mean.

    Examples:
        >>> rounded(torch.tensor([[1.4, 3.6]]), (8, 5))
        tensor([[1, 4]])
    """
    sizes = _check_means(means, shape)
    return _clamped(_resolved(means).round(), [n - 1 for n in sizes])


def local(
    means: Float[Tensor, "*b k r"],
    shape: Sequence[int],
    region: Sequence[int],
    count: int,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "*b k s r"]:
    """Draw `count` tuples for each mean, uniform over the region around its rounded value.

    Examples:
        >>> local(
        ...     torch.tensor([[0.2]]), (100,), (4,), 5, torch.Generator().manual_seed(0)
        ... ).flatten()
        tensor([3, 0, 3, 3, 3])
    """
    sizes, spans = _check_region(means, shape, region)
    low = _region_start(means, sizes, spans).unsqueeze(-2)
    draw_shape = (*means.shape[:-1], count)
    return low + everywhere(draw_shape[:-1], spans, count, generator, means.device)


def window(
    means: Float[Tensor, "*b k r"], shape: Sequence[int], region: Sequence[int]
) -> Int[Tensor, "*b k s r"]:
    """Enumerate every tuple of the region around each rounded mean, aligned to the bounds.

    Examples:
        >>> window(torch.tensor([[0.2, 6.7]]), (8, 8), (1, 3))
        tensor([[[0, 5],
                 [0, 6],
                 [0, 7]]])
    """
    sizes, spans = _check_region(means, shape, region)
    low = _region_start(means, sizes, spans).unsqueeze(-2)
    axes = [torch.arange(n, device=means.device) for n in spans]
    return low + torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2)


def everywhere(
    prefix: Sequence[int],
    shape: Sequence[int],
    count: int,
    generator: torch.Generator | None = None,
    device: torch.device | None = None,
) -> Int[Tensor, "*b s r"]:
    """Draw `count` tuples for each place of the batch prefix, uniform over all index tuples.

    Examples:
        >>> everywhere((), (8, 100), 3, torch.Generator().manual_seed(0))
        tensor([[ 7, 20],
                [ 3, 87],
                [ 3, 54]])
    """
    sizes = check_shape("shape", shape)
    check_count("count", count)
    size = (*prefix, count, len(sizes))
    drawn = _random_bits(size, generator, device)
    return drawn % constant(sizes, torch.int64, drawn.device)


def _random_bits(
    size: Sequence[int], generator: torch.Generator | None, device: torch.device | None
) -> Tensor:
    # Said only where there is one: the form with a generator does not take symbolic sizes.
    given: Any = {} if generator is None else {"generator": generator}
    return torch.randint(_DRAW_RANGE, tuple(size), device=device, **given)


def _region_start(means: Tensor, sizes: Sequence[int], spans: Sequence[int]) -> Tensor:
    """First index of the region on each axis: centred on the rounded mean, pushed inside."""
    means = _resolved(means)
    half = constant([span // 2 for span in spans], means.dtype, means.device)
    return _clamped(means.round() - half, [n - s for n, s in zip(sizes, spans, strict=True)])


def _clamped(floats: Tensor, last: Sequence[int]) -> Tensor:
    """Turn floats into valid indices 0 … last, NaN too: no bad number becomes a bad address."""
    upper = constant(last, floats.dtype, floats.device)
    whole = torch.minimum(floats, upper).long()
    # Once more, for a long axis has no exact last index in floating point.
    return torch.minimum(whole, constant(last, torch.int64, floats.device)).clamp_(min=0)


def _resolved(means: Tensor) -> Tensor:
    """Means without their gradient, in a dtype that can tell indices apart."""
    return means.detach().to(working_dtype(means.dtype))


def _table(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    flat = [number for row in rows for number in row]
    return constant(flat, torch.int64, device).view(len(rows), -1)


def _check_means(means: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    check_floating("means", means)
    sizes = check_rank("shape", shape)
    check_dims("means", means, (None, len(sizes)), "(*b, k, r)")
    return sizes


def _check_region(
    means: Tensor, shape: Sequence[int], region: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    sizes = _check_means(means, shape)
    return sizes, check_region("region", region, sizes)


def check_region(name: str, region: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Return `region` if it has one size for each axis of `shape`, none larger than the axis."""
    spans = check_sizes(name, region)
    if len(spans) != len(shape):
        raise ValueError(f"{name} must have {len(shape)} sizes, one for each column; got {spans}")
    for axis, (span, size) in enumerate(zip(spans, shape, strict=True)):
        if span > size:
            raise ValueError(
                f"{name}[{axis}] must be at most {size}, the size of that axis; got {span}"
            )
    return spans


def _check_generator(generator: torch.Generator | None, device: torch.device) -> None:
    if generator is None:
        return
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator; got {type(generator).__name__}")
    if generator.device.type != device.type:
        raise ValueError(
            f"generator must be on the device of means, {device}; got {generator.device}"
        )
