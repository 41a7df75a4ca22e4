"""The mixing of `sparsewire.sorting.soft_sort._mixing` in NumPy, without matrices.

Place 4 k + r of a row is at [r, k, row] of every array. So everything at a residue r is contiguous,
whether for buckets of four (0 1 2 3, cut between 1 and 2) or for the windows of larger ones, two
places further (2 3 0' 1', cut between 3 and 0'). An outcome moves few of the four, and differences
between them say what changes. Outcomes are named by the two of a b c d that go up.
"""

from typing import NamedTuple

import numpy as np


class Weights(NamedTuple):
    """How likely the outcomes of cuts are."""

    roots: np.ndarray  # of the odds of `_mixing`: near, middle and far of cuts, and pairs
    odds: np.ndarray
    total: np.ndarray  # of the odds of all outcomes: (cuts, rows)
    shares: np.ndarray  # of the outcomes that move something: (5, cuts, rows)
    swaps: np.ndarray  # probability that a pair changes places: (2, K, rows)


def weigh(gaps: np.ndarray) -> Weights:
    """How likely outcomes are for these distances; what is infinitely far has no part in them."""
    fours, rows = gaps.shape[1:]
    distances = np.empty((8 * fours - 3, rows), gaps.dtype)
    near, middle, far, pairs = _split(distances)
    for cuts, (before, inner, behind, _) in _levels(gaps):
        np.multiply(inner, 0.5, out=middle[cuts])
        np.add(before, middle[cuts], out=near[cuts])
        np.add(behind, middle[cuts], out=far[cuts])
    np.multiply(gaps[::2], 0.5, out=pairs.reshape(2, fours, rows))
    roots = distances * distances
    roots += 1
    np.sqrt(roots, out=roots)
    roots += distances
    np.reciprocal(roots, out=roots)
    odds = np.multiply(roots, roots, out=distances)
    swaps = pairs * pairs
    swaps /= 1 + swaps
    shares = _several(5, near)
    bd, ad, bc, ac, ab = shares
    np.multiply(middle, middle, out=bd)
    np.multiply(near, middle, out=ad)
    np.multiply(middle, far, out=bc)
    np.multiply(near, far, out=ac)
    np.multiply(ac, bd, out=ab)
    total = 1 + bd
    for odd in (ad, bc, ac, ab):
        total += odd
    shares /= total
    return Weights(roots, odds, total, shares, swaps.reshape(2, fours, rows))


def mix(values: np.ndarray, weights: Weights, back: bool) -> tuple[np.ndarray, np.ndarray]:
    """Mix in place, or by the transposes; return what stood at cuts, and how pairs were apart."""
    bd, ad, bc, ac, ab = weights.shares
    windows = _several(4, ab)
    b_first, c_second, b_third, c_last = ad + ac, bd + ad, bd + bc, bc + ac
    a_third, d_second = b_first + ab, c_last + ab
    apart = _swap(values, weights.swaps) if back else None
    levels = _levels(values)
    for cuts, (first, second, third, last) in levels if back else levels[::-1]:
        a, b, c, d = window = windows[:, cuts]
        for was, now in zip(window, (first, second, third, last), strict=True):
            was[:] = now
        to_c, to_d = c - a, d - b
        if back:
            first += to_c * a_third[cuts]
            second += (c - b) * b_third[cuts] - (b - a) * b_first[cuts] + to_d * ab[cuts]
            third += (d - c) * c_last[cuts] - (c - b) * c_second[cuts] - to_c * ab[cuts]
            last -= to_d * d_second[cuts]
        else:
            first += (b - a) * b_first[cuts] + to_c * ab[cuts]
            second += (c - b) * c_second[cuts] + to_d * d_second[cuts]
            third -= (c - b) * b_third[cuts] + to_c * a_third[cuts]
            last -= (d - c) * c_last[cuts] + to_d * ab[cuts]
    return windows, _swap(values, weights.swaps) if apart is None else apart


def _swap(values: np.ndarray, swaps: np.ndarray) -> np.ndarray:
    """Mix pairs in place; return how far apart they were."""
    low, high = values[::2], values[1::2]
    apart = high - low
    moved = apart * swaps
    low += moved
    high -= moved
    return apart


def to_shares(places: np.ndarray, elements: np.ndarray) -> np.ndarray:
    """From the gradients at places, and elements, to those of the outcomes' shares."""
    first, second, third, last = places
    a, b, c, d = elements
    between, to_c, to_d = c - b, c - a, d - b
    low = first * (b - a) - third * to_c
    high = second * to_d - last * (d - c)
    slopes = _several(5, between)
    bd, ad, bc, ac, ab = slopes
    np.multiply(second - third, between, out=bd)
    np.add(low, second * between, out=ad)
    np.subtract(high, third * between, out=bc)
    np.add(low, high, out=ac)
    np.multiply(first - third, to_c, out=ab)
    ab += (second - last) * to_d
    return slopes


def to_gaps(slopes: np.ndarray, to_swaps: np.ndarray, weights: Weights) -> np.ndarray:
    """From the gradients of shares and swaps to those of the gaps."""
    slopes -= (slopes * weights.shares).sum(0)
    slopes /= weights.total
    bd, ad, bc, ac, ab = slopes
    near, middle, far, pairs = _split(weights.odds)
    to_odds = np.empty_like(weights.odds)
    to_near, to_middle, to_far, to_pairs = _split(to_odds)
    both = ab * middle
    ends = ac + both * middle
    np.add(ad * middle, ends * far, out=to_near)
    np.add(bc * middle, ends * near, out=to_far)
    np.add(ad * near, bc * far, out=to_middle)
    to_middle += 2 * (bd * middle + both * (near * far))
    # A pair changes places by odds² / (1 + odds²).
    both_ways = pairs * pairs + 1
    both_ways *= both_ways
    np.divide(2 * to_swaps.reshape(pairs.shape) * pairs, both_ways, out=to_pairs)
    # The slope of the odds; 2 √(1 + distance²) is root + 1 / root.
    to_odds *= weights.odds
    to_odds *= weights.roots
    to_odds /= weights.odds + 1
    to_odds *= -4
    to_middle += to_near
    to_middle += to_far
    to_middle *= 0.5
    to_pairs *= 0.5
    fours, rows = weights.swaps.shape[1:]
    found = np.zeros((4, fours, rows), slopes.dtype)
    found[::2] = to_pairs.reshape(2, fours, rows)
    for cuts, (before, inner, behind, _) in _levels(found):
        before += to_near[cuts]
        inner += to_middle[cuts]
        behind += to_far[cuts]
    return found


def _levels(places: np.ndarray) -> list[tuple[slice, tuple[np.ndarray, ...]]]:
    """The four of each window, in place, for buckets of four and larger ones, and whose cuts."""
    zero, one, two, three = places
    number = len(zero)
    return [
        (slice(number), (zero, one, two, three)),
        (slice(number, None), (two[:-1], three[:-1], zero[1:], one[1:])),
    ]


def _split(parts: np.ndarray) -> tuple[np.ndarray, ...]:
    """What belongs to the first, the middle and the last of the four at a cut, and to pairs."""
    cuts = len(parts) // 4
    return parts[:cuts], parts[cuts : 2 * cuts], parts[2 * cuts : 3 * cuts], parts[3 * cuts :]


def _several(number: int, like: np.ndarray) -> np.ndarray:
    return np.empty((number, *like.shape), like.dtype)
