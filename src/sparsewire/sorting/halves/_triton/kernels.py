"""The kernels of exact half-permutations: one program for each bucket, forward and backward.

With p_i the probability with the odds of element i, and z_i = 1 - p_i, a program computes for each
element of its bucket

    A_i(q)    the probability of q ones among the elements before element i
    B_i(q)    the probability that, after q ones before i, the rest brings them to the wanted number

The matrix consists of A_i(q) p_i B_i(q + 1), element i as a one after q others, and of
A_i(q) z_i B_i(q), a zero after i - q others, divided by the probability Z of a valid vector. The
backward pass goes through both tables in reverse order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def half(odds: Tensor, lower: int) -> Tensor:
    """Return expected half-permutations, (b, m, m), of odds (b, m) in float32."""
    batch, m = odds.shape
    matrix = torch.zeros((batch, m, m), dtype=torch.float32, device=odds.device)
    options = _options(m, lower)
    workspace = torch.empty((batch, m, options["WIDTH"]), dtype=torch.float32, device=odds.device)
    _half[(batch,)](odds.contiguous(), matrix, workspace, m, lower, num_warps=1, **options)
    return matrix


def half_backward(grad: Tensor, matrix: Tensor, odds: Tensor, lower: int) -> Tensor:
    """Return the gradient of the odds."""
    batch, m = odds.shape
    options = _options(m, lower)
    like = {"dtype": torch.float32, "device": odds.device}
    workspace = torch.empty((batch, 2, m, options["WIDTH"]), **like)
    to_odds = torch.zeros((batch, m), **like)
    tensors = grad.contiguous(), matrix, odds.contiguous(), workspace, to_odds
    _half_back[(batch,)](*tensors, m, lower, num_warps=1, **options)
    return to_odds


def _options(m: int, lower: int) -> dict[str, int]:
    width = max(2, triton.next_power_of_2(m - lower + 1))
    return {"WIDTH": width, "ALL": triton.next_power_of_2(m)}


@triton.jit
def _moved(x, q, by: tl.constexpr, WIDTH: tl.constexpr):
    """Shift x by one place up (by 1) or down (by -1), and fill with zero."""
    place = q - by
    inside = (place >= 0) & (place < WIDTH)
    return tl.where(inside, tl.gather(x, tl.minimum(tl.maximum(place, 0), WIDTH - 1), 0), 0.0)


@triton.jit
def _middle(odds, m, lower, ALL: tl.constexpr):
    """The mean of the largest odds of the likeliest lower half and the smallest of the upper.

    A common factor of all odds cancels; with this one the likeliest vector is not unlikely.
    """
    i = tl.arange(0, ALL)
    x = tl.load(odds + i, mask=i < m, other=float("inf"))
    less = (x[None, :] < x[:, None]) | ((x[None, :] == x[:, None]) & (i[None, :] < i[:, None]))
    rank = tl.sum(less.to(tl.int32), 1)
    return tl.sum(tl.where((rank == lower - 1) | (rank == lower), x, 0.0), 0) / 2


@triton.jit
def _chance(odds, i, middle):
    """The probabilities of a one and of a zero."""
    x = tl.load(odds + i) - middle
    # Neither probability is computed as one minus the other, which would lose digits.
    small = tl.exp(-tl.abs(x))
    near, far = 1 / (1 + small), small / (1 + small)
    return tl.where(x >= 0, near, far), tl.where(x >= 0, far, near)


@triton.jit
def _forward_table(odds, middle, workspace, q, m, WIDTH: tl.constexpr):
    """Fill the table of A, and return its values after the last element."""
    now = tl.where(q == 0, 1.0, 0.0)
    for i in range(m):
        one, zero = _chance(odds, i, middle)
        tl.store(workspace + i * WIDTH + q, now)
        now = now * zero + _moved(now, q, 1, WIDTH) * one
    tl.debug_barrier()
    return now


@triton.jit
def _half(odds, matrix, workspace, m, lower, WIDTH: tl.constexpr, ALL: tl.constexpr):
    which = tl.program_id(0).to(tl.int64)
    odds += which * m
    matrix += which * m * m
    workspace += which * m * WIDTH
    q = tl.arange(0, WIDTH)
    upper = m - lower
    middle = _middle(odds, m, lower, ALL)
    end = _forward_table(odds, middle, workspace, q, m, WIDTH)
    total = tl.sum(tl.where(q == upper, end, 0.0), 0)
    rest = tl.where(q == upper, 1.0, 0.0)
    for back in range(m):
        i = m - 1 - back
        one, zero = _chance(odds, i, middle)
        before = tl.load(workspace + i * WIDTH + q)
        more = _moved(rest, q, -1, WIDTH)
        high, low = before * one * more / total, before * zero * rest / total
        tl.store(matrix + (lower + q) * m + i, high, mask=q < upper)
        tl.store(matrix + (i - q) * m + i, low, mask=(q <= upper) & (q <= i) & (i - q < lower))
        rest = rest * zero + more * one


@triton.jit
def _half_back(
    grad, matrix, odds, workspace, to_odds, m, lower, WIDTH: tl.constexpr, ALL: tl.constexpr
):
    which = tl.program_id(0).to(tl.int64)
    odds += which * m
    to_odds += which * m
    grad += which * m * m
    matrix += which * m * m
    workspace += which * 2 * m * WIDTH
    table = workspace + m * WIDTH
    q = tl.arange(0, WIDTH)
    upper = m - lower
    middle = _middle(odds, m, lower, ALL)
    end = _forward_table(odds, middle, workspace, q, m, WIDTH)
    total = tl.sum(tl.where(q == upper, end, 0.0), 0)
    # The mean of the gradient, weighted by the matrix, whose columns sum to one.
    mean = 0.0
    for i in range(m):
        high = q < upper
        mean += tl.sum(
            tl.load(grad + (lower + q) * m + i, mask=high, other=0.0)
            * tl.load(matrix + (lower + q) * m + i, mask=high, other=0.0), 0,
        )  # fmt: skip
        low = (q <= upper) & (q <= i) & (i - q < lower)
        mean += tl.sum(
            tl.load(grad + (i - q) * m + i, mask=low, other=0.0)
            * tl.load(matrix + (i - q) * m + i, mask=low, other=0.0), 0,
        )  # fmt: skip
    # Reverse pass through A, while B is computed.
    to_after = tl.where(q == upper, -mean / total, 0.0)
    rest = tl.where(q == upper, 1.0, 0.0)
    for back in range(m):
        i = m - 1 - back
        one, zero = _chance(odds, i, middle)
        before = tl.load(workspace + i * WIDTH + q)
        more = _moved(rest, q, -1, WIDTH)
        tl.store(table + i * WIDTH + q, rest)
        to_high = tl.load(grad + (lower + q) * m + i, mask=q < upper, other=0.0) / total
        low = (q <= upper) & (q <= i) & (i - q < lower)
        to_low = tl.load(grad + (i - q) * m + i, mask=low, other=0.0) / total
        up = _moved(to_after, q, -1, WIDTH)
        to_one = tl.sum(before * (to_high * more + up), 0)
        to_zero = tl.sum(before * (to_low * rest + to_after), 0)
        tl.store(to_odds + i, one * zero * (to_one - to_zero))
        to_after = to_high * one * more + to_low * zero * rest + to_after * zero + up * one
        rest = rest * zero + more * one
    tl.debug_barrier()
    # Reverse pass through B, which was computed from the last element to the first.
    to_before = tl.zeros((WIDTH,), tl.float32)
    for i in range(m):
        one, zero = _chance(odds, i, middle)
        before = tl.load(workspace + i * WIDTH + q)
        rest = tl.load(table + i * WIDTH + q)
        more = _moved(rest, q, -1, WIDTH)
        to_one, to_zero = tl.sum(to_before * more, 0), tl.sum(to_before * rest, 0)
        tl.store(to_odds + i, tl.load(to_odds + i) + one * zero * (to_one - to_zero))
        to_high = tl.load(grad + (lower + q) * m + i, mask=q < upper, other=0.0) / total
        low = (q <= upper) & (q <= i) & (i - q < lower)
        to_low = tl.load(grad + (i - q) * m + i, mask=low, other=0.0) / total
        direct = to_low * before * zero + _moved(to_high * before * one, q, 1, WIDTH)
        to_before = direct + to_before * zero + _moved(to_before, q, 1, WIDTH) * one
