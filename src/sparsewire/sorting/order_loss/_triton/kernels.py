"""The kernel of `order_loss`: all cuts of all levels, with their gradient, in one launch.

A program computes some buckets of one level, one in each lane. A forward pass over their elements
computes the logarithms of the sums over all choices of q elements so far, a backward pass those of
the choices that remain. Both together give the probability that each element is chosen, which is
the gradient. The workspace between the two passes grows with n² log n.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

_LANES = 16
_LOG_ZERO = tl.constexpr(-1e37)


def order_cuts(keys: Tensor, groups: Tensor, lengths: Tensor, bend: float) -> tuple[Tensor, Tensor]:
    """Return minus the log-probability that all cuts of each row are right, and its gradient.

    Args:
        keys: (b, n) float32, in the order of their targets.
        groups: (b, n) int32, ascending; equal for elements that may be on either side of a cut.
        lengths: (b,) int32, the numbers of valid elements, which come first.
        bend: As in `order_loss`.

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
    workspace = torch.empty((levels, batch, n, 2, width), **like)
    _cut[(triton.cdiv(rows, _LANES), levels)](
        keys.contiguous(), groups.contiguous(), lengths, losses, slopes, workspace, batch, n, rows,
        1.0 if math.isinf(bend) else bend, BENT=not math.isinf(bend), LANES=_LANES, WIDTH=width,
    )  # fmt: skip
    # The buckets of a level are stored row by row; the rest is zero.
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
    """Shift x by one place up (by 1) or down (by -1), and fill with the logarithm of zero."""
    place = q - by
    inside = (place >= 0) & (place < WIDTH)
    shifted = tl.gather(x, tl.minimum(tl.maximum(place, 0), WIDTH - 1), 1)
    return tl.where(inside, shifted, _LOG_ZERO)


@triton.jit
def _cut(
    keys, groups, lengths, losses, slopes, workspace, batch, n, rows, bend,
    BENT: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    level = tl.program_id(1)
    lower = tl.full((), 1, tl.int32) << level
    size = 2 * lower
    buckets = (n + size - 1) // size
    if tl.program_id(0) * LANES < batch * buckets:
        row = tl.program_id(0) * LANES + tl.arange(0, LANES)
        bucket, which = row % buckets, row // buckets
        valid = tl.load(lengths + which, mask=row < batch * buckets, other=0)
        count = tl.minimum(valid - bucket * size, size)
        live = (row < batch * buckets) & (count > lower)
        start = which * n + bucket * size
        q = tl.broadcast_to(tl.arange(0, WIDTH)[None, :], (LANES, WIDTH))
        cell = (level * batch * n + start)[:, None] * 2 * WIDTH + q

        mean = tl.zeros((LANES,), tl.float32)
        for i in range(size):
            inside = live & (i < count)
            mean += tl.load(keys + start + i, mask=inside, other=0.0)
        mean = mean / tl.maximum(count, 1)
        last = tl.load(groups + start + lower - 1, mask=live, other=0)
        following = tl.load(groups + start + lower, mask=live, other=1)
        tied = last == following

        every = tl.where(q == 0, 0.0, _LOG_ZERO)
        right = every
        for i in range(size):
            inside = live & (i < count)
            odds = mean - tl.load(keys + start + i, mask=inside, other=0.0)
            free = tied & (tl.load(groups + start + i, mask=inside, other=-1) == last)
            here = inside[:, None] & (q >= 0)
            tl.store(workspace + cell + i * 2 * WIDTH, every, mask=here)
            tl.store(workspace + cell + i * 2 * WIDTH + WIDTH, right, mask=here)
            more = _moved(every, q, 1, WIDTH) + odds[:, None]
            every = tl.where(here, _log_add(every, more), every)
            more = _moved(right, q, 1, WIDTH) + odds[:, None]
            take, stay = free | (i < lower), free | (i >= lower)
            more = tl.where(take[:, None], more, _LOG_ZERO)
            unchosen = tl.where(stay[:, None], right, _LOG_ZERO)
            right = tl.where(here, _log_add(unchosen, more), right)
        all_choices = tl.max(tl.where(q == lower, every, 2 * _LOG_ZERO), 1)
        right_choices = tl.max(tl.where(q == lower, right, 2 * _LOG_ZERO), 1)
        loss, share = all_choices - right_choices, 1.0
        if BENT:
            loss = tl.maximum(loss, 0.0) / bend
            share = 1 / (1 + loss)
            # log(1 + loss), also for a loss so small that the sum rounds to 1.
            small = loss * (1 - loss * (0.5 - loss * (1.0 / 3)))
            loss = bend * tl.where(loss < 1e-3, small, tl.log(1 + loss))
        tl.store(losses + level * rows + row, loss, mask=live)

        tl.debug_barrier()
        # Sums over the choices that remain, by the number of elements chosen before.
        every = tl.where(q == lower, 0.0, _LOG_ZERO)
        right = every
        for back in range(size):
            i = size - 1 - back
            inside = live & (i < count)
            odds = mean - tl.load(keys + start + i, mask=inside, other=0.0)
            free = tied & (tl.load(groups + start + i, mask=inside, other=-1) == last)
            take, stay = free | (i < lower), free | (i >= lower)
            here = inside[:, None] & (q >= 0)
            before = tl.load(workspace + cell + i * 2 * WIDTH, mask=here, other=_LOG_ZERO)
            before_right = tl.load(
                workspace + cell + i * 2 * WIDTH + WIDTH, mask=here, other=_LOG_ZERO
            )
            more = _moved(every, q, -1, WIDTH) + odds[:, None]
            chosen = tl.sum(tl.exp(before + more - all_choices[:, None]), 1)
            every = tl.where(here, _log_add(every, more), every)
            more = _moved(right, q, -1, WIDTH) + odds[:, None]
            more = tl.where(take[:, None], more, _LOG_ZERO)
            chosen_right = tl.sum(tl.exp(before_right + more - right_choices[:, None]), 1)
            unchosen = tl.where(stay[:, None], right, _LOG_ZERO)
            right = tl.where(here, _log_add(unchosen, more), right)
            slope = (chosen_right - chosen) * share
            tl.store(slopes + level * batch * n + start + i, slope, mask=inside)
