"""Soft ranks and soft sorts of rows by one kernel: short rows in one launch, others by stages.

A stage reads what the stage before wrote: behind a barrier where a row fits into a program, in the
next launch where it does not.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsewire.sorting.soft_sort._triton import scans

SHORT = 1024  # elements of a row that one program has
_BLOCK = 4096  # elements of a program that has a part of a row
_TOTALS, _SCAN, _FINISH, _WHOLE = (tl.constexpr(i) for i in range(4))
_SORTED, _GIVEN, _DEFAULT = (tl.constexpr(i) for i in range(3))  # keys; temperatures
_LARGEST, _SMALLEST = tl.constexpr(0x7FFFFFFF), tl.constexpr(-0x80000000)
_LAST = tl.constexpr(0x7FFFFFFFFFFFFFFF)


class Tape(NamedTuple):
    """What the backward pass needs of the forward pass; planes are described in `scans`."""

    ints: Tensor  # (3, b, n), of ranks (1, b, n)
    floats: Tensor  # (4, b, n), of ranks (1, b, n)
    heats: Tensor  # (b,)


def new_tape(keys: Tensor, ranks: bool) -> Tape:
    """Return a tape to be written."""
    return Tape(
        keys.new_empty((1 if ranks else 3, *keys.shape), dtype=torch.int32),
        keys.new_empty((1 if ranks else 4, *keys.shape), dtype=torch.float64),
        keys.new_empty(len(keys), dtype=torch.float64),
    )


def sorts_itself(keys: Tensor) -> bool:
    """Whether the kernel sorts these rows, which may then be infinite or NaN."""
    return keys.dtype == torch.float32 and keys.shape[-1] <= SHORT


def run(
    kind: tl.constexpr,
    back: bool,
    given: Tensor,
    payload: Tensor | None,
    weights: Tensor | None,
    temperature: Tensor | None,
    tape: Tape,
    descending: bool,
) -> Tensor:
    """Return ranks, or keys or a payload in soft order, (1, b, n); of a `PLAN` the tape counts.

    Back, return the gradients of the keys, and of a `COLUMN` of the payload too, (2, b, n).

    Args:
        kind: What is sorted.
        back: Whether this is the backward pass, which reads the tape that the forward pass wrote.
        given: The keys, (b, n), which are finite unless the kernel sorts them. Back, the gradients;
            of a `PLAN` sums over features at thresholds and at keys, (2, b, n).
        payload: Of a `COLUMN`, (b, n).
        weights: (b, n) or None; without weight is masked.
        temperature: (b,), or None for the default one, which only the kernel has. Back, None.
        tape: What is written, or back, read.
        descending: Whether the largest come first; only where the kernel sorts.
    """
    planes, b, n = tape.ints.shape
    count = 1 if payload is None or not back else 2
    out = (given if payload is None else payload).new_empty((count, b, n))
    if not b * n:
        return out
    heat = _SORTED if back else _DEFAULT if temperature is None else _GIVEN
    if not (back or sorts_itself(given)):
        assert temperature is not None
        assert not descending
        tape.floats[0], tape.ints[0] = torch.sort(given, stable=False)
        tape.heats.copy_(temperature).clamp_(min=1e-300)
        heat = _SORTED
    ranks, short = planes == 1, n <= SHORT
    size = max(32, triton.next_power_of_2(n)) if short else _BLOCK
    blocks = triton.cdiv(n, size)
    table = tape.floats.new_empty((0 if ranks else 6, b, n))
    totals = tape.floats.new_empty((b, 0 if short else 6, blocks))
    tensors = [given if t is None else t.contiguous() for t in (payload, weights, temperature)]
    stages = [_WHOLE] if short else [_TOTALS, _SCAN] if ranks else [_TOTALS, _SCAN, _FINISH]
    for stage in stages:
        _rows[(b, blocks)](
            given.contiguous(), *tensors, *tape, table, totals, out, n, n.bit_length(),
            KIND=kind.value, BACK=back, HEAT=heat.value, STAGE=stage.value,
            WEIGHTED=weights is not None, SIGN=-1 if descending else 1, SIZE=size,
            num_warps=max(1, min(16, size // 128)),
        )  # fmt: skip
    return out


@triton.jit
def _ordered(bits):
    """Between the bits of numbers and integers in their order, both ways."""
    return tl.where(bits < 0, bits ^ _LARGEST, bits)


@triton.jit
def _sorted(keys, weights, i, inside, MASKED_LAST: tl.constexpr, SIGN: tl.constexpr):
    """The place of each key in order, and the key."""
    x = tl.load(keys + i, mask=inside, other=0.0)
    bits = _ordered((SIGN * x + 0.0).to(tl.int32, bitcast=True))  # there is one zero
    bits = tl.where(x != x, _LARGEST - 1 if SIGN > 0 else _SMALLEST, bits)
    if MASKED_LAST:
        bits = tl.where(scans.weight(weights, i, inside, True) > 0, bits, _LARGEST)
    packed = tl.sort(tl.where(inside, (bits.to(tl.int64) << 32) | i, _LAST))
    bits = (packed >> 32).to(tl.int32)
    x = _ordered(bits).to(tl.float32, bitcast=True).to(tl.float64)
    end = tl.where(x < 0, -scans.INFINITE, scans.INFINITE)
    x = tl.where(tl.abs(x) == float("inf"), end, x)
    x = tl.where(bits == _LARGEST - 1, scans.NOT_A_NUMBER, x)
    x = tl.where(bits == _SMALLEST, -scans.NOT_A_NUMBER, x)
    return (packed & 0xFFFFFFFF).to(tl.int32), tl.where(bits == _LARGEST, scans.MASKED, x)


@triton.jit
def _default_heat(keys, weights, i, inside, WEIGHTED: tl.constexpr):
    """√12 standard deviations over n: the distance of neighbours of evenly spaced keys."""
    x = tl.load(keys + i, mask=inside, other=0.0)
    there = inside & (tl.abs(x) < float("inf"))
    w = scans.weight(weights, i, there, WEIGHTED)
    x = tl.where(there & (w > 0), x, 0.0).to(tl.float64)
    count = tl.maximum(tl.sum(w, 0), 1e-38)
    away = x - tl.sum(w * x, 0) / count
    heat = tl.sqrt(12 * tl.sum(w * away * away, 0) / count) / count
    return tl.where(heat > 1e-30, tl.minimum(heat, 8.5e37), 1.0)


@triton.jit
def _rows(
    given, payload, weights, temperature, ints, floats, heats, table, totals, out, n, steps,
    KIND: tl.constexpr, BACK: tl.constexpr, HEAT: tl.constexpr, STAGE: tl.constexpr,
    WEIGHTED: tl.constexpr, SIGN: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """One stage or all of them; given are the keys, or, back, the gradients."""
    row, block, blocks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    at, size = row * n, tl.num_programs(0).to(tl.int64) * n
    i = block * SIZE + tl.arange(0, SIZE)
    inside = i < n
    ints, floats, table, totals = ints + at, floats + at, table + at, totals + row * blocks * 6
    given, payload, weights, out = given + at, payload + at, weights + at, out + at
    if HEAT == _SORTED:
        heat = tl.load(heats + row)
    else:
        heat = _default_heat(given, weights, i, inside, WEIGHTED)
        if HEAT == _GIVEN:
            heat = tl.load(temperature + row).to(tl.float64)
        place, x = _sorted(given, weights, i, inside, WEIGHTED and KIND == scans.KEYS, SIGN)
        tl.store(heats + row, heat)
        tl.store(ints + i, place, mask=inside)
        tl.store(floats + i, x, mask=inside)
        tl.debug_barrier()
    cool = 1 / heat
    thresholds: tl.constexpr = BACK and KIND != scans.RANKS
    if STAGE != _FINISH:
        v, w = scans.values(
            i, inside, n, size, cool, ints, floats, payload, weights, given, KIND, BACK, WEIGHTED,
            SIGN,
        )  # fmt: skip
        below, slopes = -v / 2, v * 0.0
        for s in tl.static_range(2 if BACK else 3):
            first, second = scans.scan(i, inside, n, size, cool, floats, v, w, s, thresholds)
            if STAGE == _TOTALS:
                at_end = i == scans.end(block, n, SIZE, s)
                tl.store(totals + 2 * s * blocks + block + i * 0, first, mask=at_end)
                tl.store(totals + (2 * s + 1) * blocks + block + i * 0, second, mask=at_end)
            else:
                if STAGE == _SCAN:
                    more = scans.carried(
                        i, inside, n, size, cool, floats, totals, block, blocks, SIZE, s,
                        thresholds,
                    )  # fmt: skip
                    first, second = first + more[0], second + more[1]
                if KIND != scans.RANKS:
                    tl.store(table + 2 * s * size + i, first, mask=inside)
                    tl.store(table + (2 * s + 1) * size + i, second, mask=inside)
                below += first if s == scans.TOTAL else first * (s - 0.5)
                slopes += w * first - v * second
        if STAGE != _TOTALS:
            if KIND == scans.RANKS:
                place = tl.load(ints + i, mask=inside, other=0)
                back = SIGN * scans.slope(slopes, scans.load(floats + i, inside), cool)
                tl.store(out + place, back if BACK else below - v / 2, mask=inside)
            elif not BACK:
                # The number of whole levels that are not above the key.
                tl.store(ints + size + i, tl.floor(below).to(tl.int32), mask=inside)
    if KIND != scans.RANKS and STAGE >= _FINISH:
        tl.debug_barrier()
        if BACK:
            scans.to_keys(
                i, inside, n, size, cool, ints, floats, table, payload, weights, given, out, KIND,
                WEIGHTED, SIGN,
            )  # fmt: skip
        else:
            scans.settle(i, inside, n, size, cool, ints, floats, table, steps, out, KIND, SIGN)
