"""What kernels of soft sorts share: how the four values around a cut are mixed, and pairs.

The mathematics are those of `sparsewire.sorting.soft_sort._mixing`. Weights have the shape of the
values, or one that broadcasts to it.
"""

import triton
import triton.language as tl

_CERTAIN = tl.constexpr(110.0)  # a distance whose exponential is nothing beside one


@triton.jit
def against(distance, LAW: tl.constexpr):
    """The odds for the side where an element does not belong, and their slope.

    An infinite distance has neither.
    """
    if LAW == 0:
        root = tl.sqrt(1 + distance * distance)
        odds = 1 / (distance + root)
        odds = odds * odds
        slope = -2 * odds / root
    else:
        odds = tl.exp(-tl.minimum(distance, _CERTAIN))
        slope = tl.where(distance < _CERTAIN, -odds, 0.0)
    return odds, slope


@triton.jit
def cut_sums(first, middle, last):
    """What the four values around cuts are mixed by."""
    square, ends = middle * middle, first * last
    share = 1 / (1 + square + first * middle + middle * last + ends + ends * square)
    bd, ad, bc = square * share, first * middle * share, middle * last * share
    ac, ab = ends * share, ends * square * share
    low, high = ad + ac, bc + ac
    return low, bd + ad, high + ab, bd + bc, ab, low + ab, high


@triton.jit
def forth(a, b, c, d, low, second, fourth, third, ab, first, high):
    """Mix elements into places."""
    middle = c - b
    return (
        a + (b - a) * low + (c - a) * ab,
        b + middle * second + (d - b) * fourth,
        c - middle * third + (a - c) * first,
        d + (c - d) * high + (b - d) * ab,
    )


@triton.jit
def back(a, b, c, d, low, second, fourth, third, ab, first, high):
    """Mix places into elements: the transpose."""
    outer, middle = c - a, c - b
    return (
        a + outer * first,
        b + (a - b) * low + middle * third + (d - b) * ab,
        c - outer * ab - middle * second + (d - c) * high,
        d + (b - d) * fourth,
    )


@triton.jit
def pair_share(odds):
    """The chance that pairs change places."""
    return odds * odds / (1 + odds * odds)


@triton.jit
def pair_slope(odds, slope):
    """How it changes with the gap, whose half is the distance."""
    below = 1 + odds * odds
    return odds * slope / (below * below)


@triton.jit
def swap(a, b, weight):
    """Mix pairs."""
    moved = (b - a) * weight
    return a + moved, b - moved


@triton.jit
def slopes(a, b, c, d, to_a, to_b, to_c, to_d):
    """Gradients of the sums, of elements before a cut and of what is wanted in places after it."""
    middle = c - b
    return (
        (b - a) * to_a,
        middle * to_b,
        (d - b) * to_b,
        -middle * to_c,
        (c - a) * to_a + (b - d) * to_d,
        (a - c) * to_c,
        (c - d) * to_d,
    )


@triton.jit
def odds_back(first, middle, last, low, second, fourth, third, ab, one, high):
    """From the gradients of the sums to those of the three odds."""
    down, up = low + one, fourth + high
    to_bd, to_ad, to_bc = second + third, down + second, up + third
    to_ac, to_ab = down + up, ab + fourth + one
    square, ends = middle * middle, first * last
    near, far = first * middle, middle * last
    all_of = ends * square
    share = 1 / (1 + square + near + far + ends + all_of)
    mean = (to_bd * square + to_ad * near + to_bc * far + to_ac * ends + to_ab * all_of) * share
    to_bd, to_ad, to_bc = (to_bd - mean) * share, (to_ad - mean) * share, (to_bc - mean) * share
    to_ac, to_ab = (to_ac - mean) * share, (to_ab - mean) * share
    return (
        to_ad * middle + to_ac * last + to_ab * last * square,
        2 * middle * (to_bd + to_ab * ends) + to_ad * first + to_bc * last,
        to_bc * middle + to_ac * first + to_ab * first * square,
    )
