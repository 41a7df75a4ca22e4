"""Half-permutations: each element goes to the lower or the upper half, and keeps its order there.

A *half* of m elements is told by m binary numbers o, of which a given count is 0 ("lower"): the
elements with 0 come first, then those with 1 ("upper"), each in the order they had. Softly, every
valid o counts by the product of the odds of its ones, where odds tell how much an element is drawn
to the upper half. The matrices below have an output position for each row and an element for each
column; they are doubly stochastic.

Three ways to the same matrix, of which the first two are exact:

    enumerated_half     all valid vectors, one by one: for few elements
    exact_half          all valid vectors by dynamic programming, O(m²)
    sampled_half        some of them, drawn at random, as in the paper
"""

import itertools
import math
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsewire.annotations import Bool, Float, Int
from sparsewire.checks import cached, check_choice, check_count, check_floating
from sparsewire.engines import kernels_run
from sparsewire.precision import without_autocast

Distribution = Literal["student", "logistic", "cauchy"]
DISTRIBUTIONS: tuple[Distribution, ...] = get_args(Distribution)

# Distances from here on are as good as infinite.
FAR = 1e18
_FEW = 20  # valid vectors, up to which they are enumerated
# Elements from which on products of probabilities would leave the range of float32, and float64.
_MANY, _TOO_MANY = 64, 1000


def log_odds(
    distance: Float[Tensor, "*b"], distribution: Distribution = "student"
) -> Float[Tensor, "*b"]:
    """Return how much an element is drawn to the upper half, from how far above the pivot it is.

    The logarithm of F / (1 - F) for a distribution function F: `"logistic"`, the paper's, whose
    gradient vanishes far from the pivot; `"cauchy"`; or `"student"`, Student's t with two degrees
    of freedom, whose tails fall with the square of the distance. The odds of the heavy-tailed ones
    stay within the range of float32. Distances that are not a number count as zero.

    Examples:
        >>> log_odds(torch.tensor([-1.0, 0.0, 1.0])).sigmoid()
        tensor([0.1464, 0.5000, 0.8536])
    """
    check_floating("distance", distance)
    check_choice("distribution", distribution, DISTRIBUTIONS)
    wide = _wide(distance)
    certain = _certain(wide.dtype)
    t = wide.nan_to_num(nan=0.0, posinf=FAR, neginf=-FAR).clamp(-FAR, FAR)
    if distribution == "logistic":
        odds = t.clamp(-certain, certain)
    elif distribution == "student":
        odds = 2 * torch.asinh(t)
    else:
        one = torch.ones_like(t)
        odds = torch.atan2(one, -t).log() - torch.atan2(one, t).log()
    return torch.where(t.abs() >= FAR, certain * t.sign(), odds).to(distance.dtype)


def half(odds: Float[Tensor, "*b m"], lower: int) -> Float[Tensor, "*b m m"]:
    """Return the expected half-permutation, by the cheaper of the two exact ways, or a kernel.

    Args:
        odds: Logarithms of the odds of each element for the upper half.
        lower: How many elements the lower half has.
    """
    m = odds.shape[-1]
    if _has_kernel(odds, lower):
        from sparsewire.sorting.halves._triton.operators import half as by_kernel

        return by_kernel(odds.reshape(-1, m), lower).view(*odds.shape, m)
    if 0 <= lower <= m and math.comb(m, lower) <= _FEW:
        return enumerated_half(odds, lower)
    return exact_half(odds, lower)


def enumerated_half(odds: Float[Tensor, "*b m"], lower: int) -> Float[Tensor, "*b m m"]:
    """Compute `half` from all valid vectors; there are m! / (lower! (m - lower)!) of them.

    Examples:
        >>> enumerated_half(torch.tensor([-1.0, 1.0]), lower=1)
        tensor([[0.8808, 0.1192],
                [0.1192, 0.8808]])
    """
    check_floating("odds", odds)
    m = odds.shape[-1]
    _check_lower(lower, m)
    wide = _wide(odds)
    ones, places = _vectors(m, lower, wide.dtype, wide.device)
    with without_autocast(odds):
        return ((wide @ ones).softmax(-1) @ places).unflatten(-1, (m, m)).to(odds.dtype)


def exact_half(odds: Float[Tensor, "*b m"], lower: int) -> Float[Tensor, "*b m m"]:
    """Compute `half` by dynamic programming.

    Let p_i be the probability that belongs to the odds of element i, α_i(q) that of q ones among
    the elements before it, and β_i(q) among those after it. With u ones in all,

        P[lower + q, i] ∝ α_i(q) · p_i · β_i(u - 1 - q)             a one, after q others
        P[i - q, i]     ∝ α_i(q) · (1 - p_i) · β_i(u - q)           a zero, after i - q others

    and each column sums to one. More than 64 elements are computed in float64.
    """
    check_floating("odds", odds)
    m = odds.shape[-1]
    upper = m - _check_lower(lower, m)
    if m > _TOO_MANY:
        raise ValueError(f"odds must be of at most {_TOO_MANY} elements; got {m}")
    given, odds = odds.dtype, odds.double() if m > _MANY else _wide(odds)
    if 0 < lower < m:
        # A factor of all odds changes nothing; now the likeliest choice is not unlikely.
        middle = odds.detach().sort(dim=-1).values[..., lower - 1 : lower + 1]
        odds = odds - middle.mean(-1, keepdim=True)
    else:
        odds = odds * 0  # there is but one choice
    one, zero = odds.sigmoid(), (-odds).sigmoid()
    before = _counts(one, zero, upper)
    after = _counts(one.flip(-1), zero.flip(-1), upper).flip(-2)
    rest = after.flip(-1)  # β_i(u - q)
    high = before[..., :-1] * rest[..., 1:] * one.unsqueeze(-1)
    low = before * rest * zero.unsqueeze(-1)
    # Element i is at position i - q: from a table over q to one over positions.
    element = torch.arange(m, device=odds.device).unsqueeze(-1)
    ones_before = element - torch.arange(lower, device=odds.device)
    there = (ones_before >= 0) & (ones_before <= upper)
    index = ones_before.clamp(0, upper).expand(*odds.shape[:-1], m, lower)
    table = torch.cat([torch.where(there, low.gather(-1, index), 0.0), high], dim=-1)
    return (table / table.sum(-1, keepdim=True)).transpose(-1, -2).to(given)


def sampled_half(
    odds: Float[Tensor, "*b n"],
    bucket: int,
    samples: int,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*b n n"]:
    """Approximate the half-permutations of all buckets by some valid vectors, as in the paper.

    `samples` vectors are drawn, each by shuffling the valid ones within every bucket; the one that
    follows the odds is added. Each counts by the product of its probabilities, repeats not at all,
    and columns are made to sum to one.

    Args:
        odds: Logarithms of the odds of each element for the upper half of its bucket.
        bucket: Elements of a bucket, an even number that divides n.
        samples: How many vectors are drawn, the paper's a.
        generator: Where random numbers come from.
    """
    check_floating("odds", odds)
    check_count("samples", samples)
    n = odds.shape[-1]
    _check_bucket(bucket, n)
    split = odds.detach().unflatten(-1, (-1, bucket))
    shape = (*split.shape[:-2], samples, *split.shape[-2:])
    noise = torch.rand(shape, device=odds.device, generator=generator)
    scores = torch.cat([noise, split.unsqueeze(-3).to(noise.dtype)], dim=-3)
    order = scores.argsort(dim=-1, stable=True)
    high = torch.arange(bucket, device=odds.device) >= bucket // 2
    ones = torch.zeros_like(order, dtype=torch.bool)
    ones = ones.scatter(-1, order, high.expand_as(order)).flatten(-2)
    chances = torch.where(ones, F.logsigmoid(odds).unsqueeze(-2), F.logsigmoid(-odds).unsqueeze(-2))
    chances = chances.sum(-1).masked_fill(_repeated(ones), -torch.inf)
    weights = chances.softmax(-1)
    rows = half_rows(ones, bucket)
    matrix = odds.new_zeros(*odds.shape[:-1], n, n)
    return matrix.scatter_add(-2, rows, weights.unsqueeze(-1).expand(rows.shape))


def half_rows(ones: Bool[Tensor, "*b n"], bucket: int) -> Int[Tensor, "*b n"]:
    """Return where each element goes: r(o), the rows of the ones of a half-permutation's matrix.

    Args:
        ones: Which elements go to the upper half of their bucket: half of them, in each.
        bucket: Elements of a bucket.

    Examples:
        >>> half_rows(torch.tensor([True, False, False, True]), bucket=4)
        tensor([2, 0, 1, 3])
        >>> half_rows(torch.tensor([True, False, False, True]), bucket=2)
        tensor([1, 0, 2, 3])
    """
    n = ones.shape[-1]
    _check_bucket(bucket, n)
    split = ones.unflatten(-1, (-1, bucket)).long()
    up, down = split.cumsum(-1) - 1 + bucket // 2, (1 - split).cumsum(-1) - 1
    start = torch.arange(0, n, bucket, device=ones.device).unsqueeze(-1)
    return (start + torch.where(split.bool(), up, down)).flatten(-2)


def log_symmetric(
    odds: Float[Tensor, "*b m"],
    count: int,
    stay: Bool[Tensor, "*b m"] | None = None,
    take: Bool[Tensor, "*b m"] | None = None,
) -> Float[Tensor, "*b"]:
    """Return the logarithm of the elementary symmetric polynomial of the odds.

    That is the sum, over all choices of `count` elements, of the product of their odds. Its
    gradient is the probability of each element to be chosen.

    Args:
        odds: Logarithms of the odds.
        count: How many are chosen.
        stay: Which elements may be left out; all, if not given.
        take: Which elements may be chosen; all, if not given.

    Examples:
        >>> log_symmetric(torch.tensor([1.0, 2.0, 3.0]).log(), 2).exp()  # 2 + 3 + 6
        tensor(11.0000)
    """
    check_floating("odds", odds)
    m = odds.shape[-1]
    if not 0 <= check_count("count", count) <= m:
        raise ValueError(f"count must be 0 to {m}, the number of elements; got {count}")
    nothing, given, odds = -1e37, odds.dtype, _wide(odds)
    table = F.pad(odds.new_zeros(*odds.shape[:-1], 1), (0, count), value=nothing)
    for number, each in enumerate(odds.unbind(-1)):
        more = F.pad(table[..., :-1] + each.unsqueeze(-1), (1, 0), value=nothing)
        if take is not None:
            more = more.masked_fill(~take[..., number].unsqueeze(-1), nothing)
        if stay is not None:
            table = table.masked_fill(~stay[..., number].unsqueeze(-1), nothing)
        table = _log_add(table, more)
    found = table[..., -1]
    return torch.where(found < nothing / 2, -torch.inf, found).to(given)


def _has_kernel(odds: Tensor, lower: int) -> bool:
    m = odds.shape[-1]
    if odds.dtype != torch.float32 or not odds.numel() or not 0 < lower < m <= _MANY:
        return False
    return kernels_run(odds.device) and not torch._C._are_functorch_transforms_active()


def _wide(tensor: Tensor) -> Tensor:
    """The same in float32, if it was in half precision."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _log_add(a: Tensor, b: Tensor) -> Tensor:
    """Add in log space; all derivatives are finite, also where one or both are nothing."""
    top = torch.maximum(a, b).detach()
    return top + ((a - top).exp() + (b - top).exp()).log()


def _counts(one: Tensor, zero: Tensor, most: int) -> Tensor:
    """Probability of 0 … most ones among the elements before each: (*b, m, most + 1)."""
    now = F.pad(torch.ones_like(one[..., :1]), (0, most))
    rows = []
    for p, q in zip(one.unbind(-1), zero.unbind(-1), strict=True):
        rows.append(now)
        now = now * q.unsqueeze(-1) + F.pad(now[..., :-1], (1, 0)) * p.unsqueeze(-1)
    return torch.stack(rows, dim=-2) if rows else now.new_zeros(*one.shape, most + 1)


@cached
def _vectors(
    m: int, lower: int, dtype: torch.dtype, device: torch.device
) -> tuple[Float[Tensor, "m s"], Float[Tensor, "s p"]]:
    """All valid vectors, one in each column, and their matrices, flattened, in rows."""
    chosen = list(itertools.combinations(range(m), m - lower))
    ones = torch.zeros(len(chosen), m, dtype=torch.float64)
    places = torch.zeros(len(chosen), m, m, dtype=torch.float64)
    for number, upper in enumerate(chosen):
        ones[number, list(upper)] = 1
        order = [i for i in range(m) if i not in upper] + list(upper)
        places[number, range(m), order] = 1
    return ones.T.contiguous().to(device, dtype), places.flatten(1).to(device, dtype)


def _repeated(vectors: Bool[Tensor, "*b a n"]) -> Bool[Tensor, "*b a"]:
    """Whether a vector stands among those after it: the last, which follows the odds, stays."""
    same = (vectors.unsqueeze(-2) == vectors.unsqueeze(-3)).all(-1)
    return same.triu(1).any(-1)


def _certain(dtype: torch.dtype) -> float:
    """Log-odds whose exponential is zero, or one beside it, in a dtype."""
    return 760.0 if dtype == torch.float64 else 110.0


def _check_lower(lower: int, m: int) -> int:
    if not 0 <= check_count("lower", lower) <= m:
        raise ValueError(f"lower must be 0 to {m}, the number of elements; got {lower}")
    return lower


def _check_bucket(bucket: int, n: int) -> None:
    if check_count("bucket", bucket, least=2) % 2 or n % bucket:
        raise ValueError(f"bucket must be even and divide {n}, the elements; got {bucket}")
