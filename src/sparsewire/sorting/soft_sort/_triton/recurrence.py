"""Linear recurrences in one direction, y_j = v_j + a_j y_{j−1}, of rows of any length."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_CHUNK, _STEPS = 1024, 16  # a program has so many elements at a time, so many times


def recurrence(decays: Tensor, terms: Tensor) -> Tensor:
    """Return y with y_j = terms_j + decays_j · y_{j−1} along the last dimension.

    Args:
        decays: (r, n) float64; the first of each row makes no difference.
        terms: (r, c, n) float64.
    """
    rows, columns, n = terms.shape
    out = torch.empty_like(terms, memory_format=torch.contiguous_format)
    if not terms.numel():
        return out
    decays, terms = decays.contiguous(), terms.contiguous()
    segments = triton.cdiv(n, _CHUNK * _STEPS)
    carry = out
    options = {"CHUNK": _CHUNK, "STEPS": _STEPS, "num_warps": 4}
    if segments > 1:
        whole = decays.new_empty((rows, segments))
        last = decays.new_empty((rows, columns, segments))
        grid = rows * columns, segments
        _recur[grid](decays, terms, last, whole, terms, n, columns, PHASE=0, **options)
        carry = recurrence(whole, last)
    _recur[(rows * columns, segments)](
        decays, terms, out, decays, carry, n, columns, PHASE=2 if segments > 1 else 1, **options
    )
    return out


@triton.jit
def _joined(a, v, b, w):
    return a * b, v * b + w


@triton.jit
def _recur(
    decays, terms, out, whole, carry, n, columns,
    CHUNK: tl.constexpr, STEPS: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    line, segment = tl.program_id(0).to(tl.int64), tl.program_id(1)
    segments = tl.num_programs(1)
    row = line // columns
    lane = tl.arange(0, CHUNK)
    start = segment * CHUNK * STEPS
    product, y = tl.full((), 1.0, tl.float64), tl.full((), 0.0, tl.float64)
    if PHASE == 2:
        y = tl.load(carry + line * segments + segment - 1, mask=segment > 0, other=0.0)
    for step in range(tl.minimum(STEPS, tl.cdiv(n - start, CHUNK))):
        i = start + step * CHUNK + lane
        inside = i < n
        a = tl.load(decays + row * n + i, mask=inside, other=1.0)
        v = tl.load(terms + line * n + i, mask=inside, other=0.0)
        a, v = tl.associative_scan((a, v), 0, _joined)
        v += a * y
        if PHASE > 0:
            tl.store(out + line * n + i, v, mask=inside)
        y = tl.sum(tl.where(lane == CHUNK - 1, v, 0.0), 0)
        product *= tl.sum(tl.where(lane == CHUNK - 1, a, 0.0), 0)
    if PHASE == 0:
        tl.store(out + line * segments + segment, y)
        tl.store(whole + row * segments + segment, product)
