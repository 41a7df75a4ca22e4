"""The kernel of `sparsewire.sorting.order_loss`: all cuts of all levels in one launch, with slopes.

A program has some buckets of one level, one in each lane, and walks through their elements: forth
with the logarithms of the sums over all choices of q elements so far, and back with those that
are still to be chosen. Where both meet is the probability of each element to be chosen, the
gradient. What is kept between the two walks grows with n² log n.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

_LANES = 16
_NOTHING = tl.constexpr(-1e37)


def order_cuts(keys: Tensor, groups: Tensor, bend: float) -> tuple[Tensor, Tensor]:
    """Return minus the log-probability that all cuts of sets are right, and its gradient.

    Args:
        keys: (b, n) float32, in the right order.
        groups: (b, n) int32, the number of the target among different ones: equal for ties.
        bend: Loss of a cut from where on more of it counts less; may be infinite.

    Returns:
        Losses, (b,), and slopes, (b, n).
    """
    batch, n = keys.shape
    levels = max(1, (n - 1).bit_length())
    width = triton.next_power_of_2(2 ** (levels - 1) + 1)
    rows = batch * triton.cdiv(n, 2)
    like = {"dtype": torch.float32, "device": keys.device}
    losses = torch.zeros((levels, rows), **like)
    slopes = torch.zeros((levels, batch, n), **like)
    room = torch.empty((levels, batch, n, 2, width), **like)
    _cut[(triton.cdiv(rows, _LANES), levels)](
        keys.contiguous(), groups.contiguous(), losses, slopes, room, batch, n, rows,
        1.0 if math.isinf(bend) else bend, BENT=not math.isinf(bend), LANES=_LANES, WIDTH=width,
    )  # fmt: skip
    # Buckets of a level come set by set; what is behind them is zero.
    total = keys.new_zeros(batch)
    for level in range(levels):
        buckets = triton.cdiv(n, 2 << level)
        total = total + losses[level, : batch * buckets].view(batch, buckets).sum(1)
    return total, slopes.sum(0)


@triton.jit
def _log_add(x, y):
    top = tl.maximum(x, y)
    return top + tl.log(tl.exp(x - top) + tl.exp(y - top))


@triton.jit
def _moved(x, q, by: tl.constexpr, WIDTH: tl.constexpr):
    """The same numbers, each at the place after (by 1) or before (by -1) its own."""
    place = q - by
    inside = (place >= 0) & (place < WIDTH)
    found = tl.gather(x, tl.minimum(tl.maximum(place, 0), WIDTH - 1), 1)
    return tl.where(inside, found, _NOTHING)


@triton.jit
def _cut(
    keys, groups, losses, slopes, room, batch, n, rows, bend,
    BENT: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    level = tl.program_id(1)
    lower = tl.full((), 1, tl.int32) << level
    size = 2 * lower
    buckets = (n + size - 1) // size
    if tl.program_id(0) * LANES < batch * buckets:
        row = tl.program_id(0) * LANES + tl.arange(0, LANES)
        bucket, which = row % buckets, row // buckets
        count = tl.minimum(n - bucket * size, size)
        live = (row < batch * buckets) & (count > lower)
        start = which * n + bucket * size
        q = tl.broadcast_to(tl.arange(0, WIDTH)[None, :], (LANES, WIDTH))
        cell = (level * batch * n + start)[:, None] * 2 * WIDTH + q

        mean = tl.zeros((LANES,), tl.float32)
        for i in range(size):
            there = live & (i < count)
            mean += tl.load(keys + start + i, mask=there, other=0.0)
        mean = mean / tl.maximum(count, 1)
        last = tl.load(groups + start + lower - 1, mask=live, other=0)
        following = tl.load(groups + start + lower, mask=live, other=1)
        tied = last == following

        every = tl.where(q == 0, 0.0, _NOTHING)
        right = every
        for i in range(size):
            there = live & (i < count)
            odds = mean - tl.load(keys + start + i, mask=there, other=0.0)
            free = tied & (tl.load(groups + start + i, mask=there, other=-1) == last)
            here = there[:, None] & (q >= 0)
            tl.store(room + cell + i * 2 * WIDTH, every, mask=here)
            tl.store(room + cell + i * 2 * WIDTH + WIDTH, right, mask=here)
            more = _moved(every, q, 1, WIDTH) + odds[:, None]
            every = tl.where(here, _log_add(every, more), every)
            more = _moved(right, q, 1, WIDTH) + odds[:, None]
            take, stay = free | (i < lower), free | (i >= lower)
            more = tl.where(take[:, None], more, _NOTHING)
            kept = tl.where(stay[:, None], right, _NOTHING)
            right = tl.where(here, _log_add(kept, more), right)
        all_choices = tl.max(tl.where(q == lower, every, 2 * _NOTHING), 1)
        right_choices = tl.max(tl.where(q == lower, right, 2 * _NOTHING), 1)
        loss, share = all_choices - right_choices, 1.0
        if BENT:
            loss = tl.maximum(loss, 0.0) / bend
            share = 1 / (1 + loss)
            # The logarithm of 1 + loss, also of a loss so small that this is 1.
            small = loss * (1 - loss * (0.5 - loss * (1.0 / 3)))
            loss = bend * tl.where(loss < 1e-3, small, tl.log(1 + loss))
        tl.store(losses + level * rows + row, loss, mask=live)

        tl.debug_barrier()
        # Sums over the choices that are still to be made, by how many were made.
        every = tl.where(q == lower, 0.0, _NOTHING)
        right = every
        for back in range(size):
            i = size - 1 - back
            there = live & (i < count)
            odds = mean - tl.load(keys + start + i, mask=there, other=0.0)
            free = tied & (tl.load(groups + start + i, mask=there, other=-1) == last)
            take, stay = free | (i < lower), free | (i >= lower)
            here = there[:, None] & (q >= 0)
            before = tl.load(room + cell + i * 2 * WIDTH, mask=here, other=_NOTHING)
            before_right = tl.load(room + cell + i * 2 * WIDTH + WIDTH, mask=here, other=_NOTHING)
            more = _moved(every, q, -1, WIDTH) + odds[:, None]
            chosen = tl.sum(tl.exp(before + more - all_choices[:, None]), 1)
            every = tl.where(here, _log_add(every, more), every)
            more = _moved(right, q, -1, WIDTH) + odds[:, None]
            more = tl.where(take[:, None], more, _NOTHING)
            chosen_right = tl.sum(tl.exp(before_right + more - right_choices[:, None]), 1)
            kept = tl.where(stay[:, None], right, _NOTHING)
            right = tl.where(here, _log_add(kept, more), right)
            slope = (chosen_right - chosen) * share
            tl.store(slopes + level * batch * n + start + i, slope, mask=there)
