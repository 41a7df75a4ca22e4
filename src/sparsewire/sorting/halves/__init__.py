"""Half-permutations: doubly stochastic matrices that move elements to the lower or upper half.

A binary vector o with one number for each of m elements, of which a given count is 0, permutes the
elements: those with 0 come first (the lower half), then those with 1 (the upper half), and inside
each half they keep their order. A half-permutation is the mean of these permutation matrices over
all such vectors o, each weighted by the product of the odds of its ones. Its rows are output
positions, its columns elements.

    enumerated_half     the sum over all vectors, one by one: for few elements
    exact_half          the same sum by dynamic programming, O(m²)
    sampled_half        the sum over some vectors, sampled at random, as in the paper
"""

import itertools
import math
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsewire.annotations import Bool, Float, Int
from sparsewire.checks import cached, check_choice, check_count, check_floating
from sparsewire.engines import Engine, dispatch
from sparsewire.precision import without_autocast

Distribution = Literal["student", "logistic", "cauchy"]
DISTRIBUTIONS: tuple[Distribution, ...] = get_args(Distribution)

# Distances from the pivot from which on the half of an element is certain.
CERTAIN_DISTANCE = 1e18
_FEW = 20  # vectors, up to which enumerating them is the fastest
_LARGEST_TABLE = 2**22  # numbers in the table of enumerated matrices
# Elements above which products of probabilities leave the range of float32, and of float64.
_MANY, _TOO_MANY = 64, 1000


def log_odds(
    distance: Float[Tensor, "*b"], distribution: Distribution = "student"
) -> Float[Tensor, "*b"]:
    """Return the log-odds that elements belong to the upper half, log F(t) / (1 - F(t)).

    Args:
        distance: The distance t of each element above the pivot. NaN counts as zero.
        distribution: The distribution function F: `"logistic"`, the paper's, whose gradient
            vanishes far from the pivot; `"cauchy"`; or `"student"`, Student's t with two degrees of
            freedom, whose tails fall with the square of the distance. The odds of the two
            heavy-tailed ones stay within the range of float32.

    Examples:
        >>> log_odds(torch.tensor([-1.0, 0.0, 1.0])).sigmoid()
        tensor([0.1464, 0.5000, 0.8536])
    """
    check_floating("distance", distance)
    check_choice("distribution", distribution, DISTRIBUTIONS)
    wide = _wide(distance)
    certain = 760.0 if wide.dtype == torch.float64 else 110.0  # its exponential overflows
    far = CERTAIN_DISTANCE
    t = wide.nan_to_num(nan=0.0, posinf=far, neginf=-far).clamp(-far, far)
    if distribution == "logistic":
        odds = t.clamp(-certain, certain)
    elif distribution == "student":
        odds = 2 * torch.asinh(t)
    else:
        one = torch.ones_like(t)
        odds = torch.atan2(one, -t).log() - torch.atan2(one, t).log()
    return torch.where(t.abs() >= far, certain * t.sign(), odds).to(distance.dtype)


def half(odds: Float[Tensor, "*b m"], lower: int) -> Float[Tensor, "*b m m"]:
    """Return the exact half-permutation by the fastest engine.

    Args:
        odds: Log-odds of each element for the upper half.
        lower: Number of elements in the lower half.
    """
    return dispatch(_ENGINES, odds.device, odds, lower)


def enumerated_half(odds: Float[Tensor, "*b m"], lower: int) -> Float[Tensor, "*b m m"]:
    """Compute `half` from all vectors; there are m! / (lower! (m - lower)!) of them.

    Examples:
        >>> enumerated_half(torch.tensor([-1.0, 1.0]), lower=1)
        tensor([[0.8808, 0.1192],
                [0.1192, 0.8808]])
    """
    check_floating("odds", odds)
    m = odds.shape[-1]
    _check_among("lower", lower, m)
    wide = _wide(odds)
    ones, matrices = _vectors(m, lower, wide.dtype, wide.device)
    with without_autocast(odds):
        return ((wide @ ones).softmax(-1) @ matrices).unflatten(-1, (m, m)).to(odds.dtype)


def exact_half(odds: Float[Tensor, "*b m"], lower: int) -> Float[Tensor, "*b m m"]:
    """Compute `half` by dynamic programming.

    Let p_i be the probability with the odds of element i, α_i(q) the probability of q ones among
    the elements before it, and β_i(q) among those after it. With u ones in all,

        P[lower + q, i] ∝ α_i(q) · p_i · β_i(u - 1 - q)             a one, after q others
        P[i - q, i]     ∝ α_i(q) · (1 - p_i) · β_i(u - q)           a zero, after i - q others

    and each column sums to one. More than 64 elements are computed in float64.
    """
    check_floating("odds", odds)
    m = odds.shape[-1]
    upper = m - _check_among("lower", lower, m)
    if m > _TOO_MANY:
        raise ValueError(f"odds must be of at most {_TOO_MANY} elements; got {m}")
    given, odds = odds.dtype, odds.double() if m > _MANY else _wide(odds)
    if 0 < lower < m:
        # A common factor of all odds cancels; with this one the likeliest vector is not unlikely.
        middle = odds.detach().sort(dim=-1).values[..., lower - 1 : lower + 1]
        odds = odds - middle.mean(-1, keepdim=True)
    else:
        odds = odds * 0  # there is only one vector
    one, zero = odds.sigmoid(), (-odds).sigmoid()
    before = _counts(one, zero, upper)
    after = _counts(one.flip(-1), zero.flip(-1), upper).flip(-2)
    rest = after.flip(-1)  # β_i(u - q)
    high = before[..., :-1] * rest[..., 1:] * one.unsqueeze(-1)
    low = before * rest * zero.unsqueeze(-1)
    # The table of zeros is over q; element i is at position i - q.
    element = torch.arange(m, device=odds.device).unsqueeze(-1)
    ones_before = element - torch.arange(lower, device=odds.device)
    valid = (ones_before >= 0) & (ones_before <= upper)
    index = ones_before.clamp(0, upper).expand(*odds.shape[:-1], m, lower)
    table = torch.cat([torch.where(valid, low.gather(-1, index), 0.0), high], dim=-1)
    return (table / table.sum(-1, keepdim=True)).transpose(-1, -2).to(given)


def sampled_half(
    odds: Float[Tensor, "*b n"], bucket: int, samples: int, generator: torch.Generator | None = None
) -> Float[Tensor, "*b n n"]:
    """Approximate the half-permutations of all buckets from sampled vectors, as in the paper.

    `samples` vectors are sampled uniformly, and the most likely vector is added. Each vector is
    weighted by the product of its probabilities, repeated ones only once, and the weights are
    normalised so that each column sums to one.

    Args:
        odds: Log-odds of each element for the upper half of its bucket.
        bucket: Size of a bucket, an even number that divides n.
        samples: Number of sampled vectors, the paper's a.
        generator: Source of the random numbers.
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
    """Return the position of each element after a hard half-permutation, the paper's r(o).

    Args:
        ones: Which elements go to the upper half of their bucket, half of each bucket.
        bucket: Size of a bucket.

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

    The polynomial is the sum, over all choices of `count` elements, of the product of their odds.
    The gradient of its logarithm is the probability that each element is chosen.

    Args:
        odds: Log-odds.
        count: Number of chosen elements.
        stay: Which elements may be left out; None for all.
        take: Which elements may be chosen; None for all.

    Examples:
        >>> log_symmetric(torch.tensor([1.0, 2.0, 3.0]).log(), 2).exp()  # 2 + 3 + 6
        tensor(11.0000)
    """
    check_floating("odds", odds)
    m = odds.shape[-1]
    _check_among("count", count, m)
    zero, given, odds = -1e37, odds.dtype, _wide(odds)  # a finite logarithm of zero
    table = F.pad(odds.new_zeros(*odds.shape[:-1], 1), (0, count), value=zero)
    for number, each in enumerate(odds.unbind(-1)):
        more = F.pad(table[..., :-1] + each.unsqueeze(-1), (1, 0), value=zero)
        if take is not None:
            more = more.masked_fill(~take[..., number].unsqueeze(-1), zero)
        if stay is not None:
            table = table.masked_fill(~stay[..., number].unsqueeze(-1), zero)
        table = _log_add(table, more)
    result = table[..., -1]
    return torch.where(result < zero / 2, -torch.inf, result).to(given)


def _wide(tensor: Tensor) -> Tensor:
    """Convert half precision to float32."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _log_add(a: Tensor, b: Tensor) -> Tensor:
    """Add in log space, with finite derivatives also where one or both terms are zero."""
    top = torch.maximum(a, b).detach()
    return top + ((a - top).exp() + (b - top).exp()).log()


def _counts(one: Tensor, zero: Tensor, most: int) -> Tensor:
    """Probabilities of 0 … most ones among the elements before each: (*b, m, most + 1)."""
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
    """All vectors, one in each column, and their permutation matrices, flattened, in rows."""
    chosen = list(itertools.combinations(range(m), m - lower))
    ones = torch.zeros(len(chosen), m, dtype=torch.float64)
    matrices = torch.zeros(len(chosen), m, m, dtype=torch.float64)
    for number, upper in enumerate(chosen):
        ones[number, list(upper)] = 1
        order = [i for i in range(m) if i not in upper] + list(upper)
        matrices[number, range(m), order] = 1
    return ones.T.contiguous().to(device, dtype), matrices.flatten(1).to(device, dtype)


def _repeated(vectors: Bool[Tensor, "*b a n"]) -> Bool[Tensor, "*b a"]:
    """Mark vectors that occur again later; the last, the most likely one, is never marked."""
    same = (vectors.unsqueeze(-2) == vectors.unsqueeze(-3)).all(-1)
    return same.triu(1).any(-1)


def _check_among(name: str, count: int, m: int) -> int:
    if not 0 <= check_count(name, count) <= m:
        raise ValueError(f"{name} must be 0 to {m}, the number of elements; got {count}")
    return count


def _check_bucket(bucket: int, n: int) -> None:
    if check_count("bucket", bucket, least=2) % 2 or n % bucket:
        raise ValueError(f"bucket must be even and divide {n}, the elements; got {bucket}")


def _by_kernel(odds: Tensor, lower: int) -> Tensor:
    from sparsewire.sorting.halves._triton.operators import half as run

    return run(odds.reshape(-1, odds.shape[-1]), lower).view(*odds.shape, odds.shape[-1])


def _kernel_takes(odds: Tensor, lower: int) -> bool:
    if odds.dtype != torch.float32 or not odds.numel() or not 0 < lower < odds.shape[-1] <= _MANY:
        return False
    return not torch._C._are_functorch_transforms_active()


def _number_of_vectors(odds: Tensor, lower: int) -> int:
    m = odds.shape[-1]
    return math.comb(m, lower) if 0 <= lower <= m else 0  # which is refused


def _can_enumerate(odds: Tensor, lower: int) -> bool:
    number = _number_of_vectors(odds, lower)
    return number <= _FEW or number * odds.shape[-1] ** 2 <= _LARGEST_TABLE


_ENGINES = (
    Engine("triton", _by_kernel, _kernel_takes),
    Engine("chunked", exact_half, pays=lambda *call: _number_of_vectors(*call) > _FEW),
    Engine("reference", enumerated_half, _can_enumerate),
    Engine("reference", exact_half),
)
