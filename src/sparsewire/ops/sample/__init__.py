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
from sparsewire.engines import Engine, dispatch
from sparsewire.ops.bound import working_dtype

# The remainder of a number below 2⁶² by a size n is uniform up to n / 2⁶².
_RANGE = 2**62


def sample(
    means: Float[Tensor, "*b k r"],
    shape: Sequence[int],
    region: Sequence[int],
    local_samples: int,
    global_samples: int,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "*b m r"]:
    """Sample the integer tuples of a forward pass (the paper's algorithm 1).

    For each continuous tuple: the 2^r nearest integer tuples, `local_samples` (a_l) uniform over
    the region around its rounded mean, `global_samples` (a_g) uniform over all. Sampling is with
    replacement; `mark_repeats` finds the repeats.

    Args:
        means: Continuous tuples inside the bounds of `shape`, any batch prefix.
        shape: Sizes of the index axes.
        region: Sizes (l_1 … l_r) of the local region, at most `shape`.
        local_samples: Tuples sampled from the region, for each continuous tuple.
        global_samples: Tuples sampled from everywhere, for each continuous tuple.
        generator: Source of randomness, on the device of `means`. The same state gives the same
            tuples, on one device and with one engine.

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
    counts = local_samples, global_samples
    spans = check_region("region", region, sizes)
    return dispatch(ENGINES, means.device, _resolved(means), sizes, spans, *counts, generator)


def _by_stages(means: Tensor, sizes: tuple[int, ...], *how: Any) -> Tensor:
    spans, local_samples, global_samples, generator = how
    spots = [
        _corners(means, sizes),
        _in_region(means, sizes, spans, local_samples, generator),
        _anywhere((*means.shape[:-1], global_samples), sizes, generator, means.device),
    ]
    return torch.cat(spots, dim=-2).flatten(-3, -2)


def _fused(means: Tensor, *how: Any) -> Tensor:
    *options, generator = how
    seed = sample_seed(means.device, generator)
    *prefix, k, r = means.shape
    indices = sample_by_seed(means.reshape(math.prod(prefix) * k, r), seed, *options)
    return indices.view(*prefix, k * indices.shape[1], r)


ENGINES = Engine("triton", _fused), Engine("reference", _by_stages)


def sample_seed(device: torch.device, generator: torch.Generator | None = None) -> Int[Tensor, "1"]:
    """Sample the seed of a kernel on the device, where a captured graph samples it anew."""
    return _random_bits((1,), generator, device)


def sample_by_seed(
    means: Float[Tensor, "q r"], seed: Int[Tensor, "1"], *options: Any
) -> Int[Tensor, "q s r"]:
    """Return the tuples that the kernels sample from a seed, for each mean.

    The options are sizes, sizes of the region, and the numbers of local and of global samples.
    """
    from sparsewire.ops.sample import _triton

    return _triton.sample(means, seed, *options)


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
    return _corners(_resolved(means), sizes)


def _corners(means: Tensor, sizes: tuple[int, ...]) -> Tensor:
    low = _clamped(means.floor(), [max(n - 2, 0) for n in sizes])
    corners = list(itertools.product(*((0, min(n - 1, 1)) for n in sizes)))
    flat = constant([i for corner in corners for i in corner], torch.int64, means.device)
    return low.unsqueeze(-2) + flat.view(len(corners), -1)


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
    """Sample `count` tuples for each mean, uniform over the region around its rounded value.

    Examples:
        >>> generator = torch.Generator().manual_seed(0)
        >>> local(torch.tensor([[0.2]]), (100,), (4,), 5, generator).flatten()
        tensor([3, 0, 3, 3, 3])
    """
    spans = _check_region(means, shape, region)
    return _in_region(_resolved(means), *spans, check_count("count", count), generator)


def _in_region(means: Tensor, sizes: tuple[int, ...], *how: Any) -> Tensor:
    spans, count, generator = how
    low = _region_start(means, sizes, spans).unsqueeze(-2)
    return low + _anywhere((*means.shape[:-1], count), spans, generator, means.device)


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
    low = _region_start(_resolved(means), sizes, spans).unsqueeze(-2)
    axes = [torch.arange(n, device=means.device) for n in spans]
    return low + torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2)


def everywhere(
    prefix: Sequence[int],
    shape: Sequence[int],
    count: int,
    generator: torch.Generator | None = None,
    device: torch.device | None = None,
) -> Int[Tensor, "*b s r"]:
    """Sample `count` tuples for each element of the prefix, uniform over all index tuples.

    Examples:
        >>> everywhere((), (8, 100), 3, torch.Generator().manual_seed(0))
        tensor([[ 7, 20],
                [ 3, 87],
                [ 3, 54]])
    """
    sizes = check_shape("shape", shape)
    return _anywhere((*prefix, check_count("count", count)), sizes, generator, device)


def _anywhere(
    prefix: Sequence[int],
    sizes: Sequence[int],
    generator: torch.Generator | None,
    device: torch.device | None,
) -> Tensor:
    bits = _random_bits((*prefix, len(sizes)), generator, device)
    return bits % constant(sizes, torch.int64, bits.device)


def _random_bits(size: Sequence[int], generator: Any, device: torch.device | None) -> Tensor:
    # Passed only if there is one: the overload with a generator does not take symbolic sizes.
    options: Any = {} if generator is None else {"generator": generator}
    return torch.randint(_RANGE, tuple(size), device=device, **options)


def _region_start(means: Tensor, sizes: Sequence[int], spans: Sequence[int]) -> Tensor:
    """Return the first index of the region on each axis: around the rounded mean, inside bounds."""
    half = constant([span // 2 for span in spans], means.dtype, means.device)
    return _clamped(means.round() - half, [n - s for n, s in zip(sizes, spans, strict=True)])


def _clamped(floats: Tensor, last: Sequence[int]) -> Tensor:
    """Convert floats, NaN too, to valid indices 0 … last."""
    upper = constant(last, floats.dtype, floats.device)
    whole = torch.minimum(floats, upper).long()
    # Clamp the integers as well: a long axis has no exact last index in floating point.
    return torch.minimum(whole, constant(last, torch.int64, floats.device)).clamp_(min=0)


def _resolved(means: Tensor) -> Tensor:
    """Return the means without gradient, in a dtype that represents every index."""
    return means.detach().to(working_dtype(means.dtype))


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
