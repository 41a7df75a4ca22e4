"""Soft ranks and soft sorts by kernels: short rows in one launch, others sorted before.

A tape is what the backward pass needs: the order, the sorted keys and the temperature; of soft
sorts also the number of thresholds below each key, of keys below each threshold, where thresholds
are (a key and a distance), and the mean payload there.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsewire.sorting.soft_sort._triton.recurrence import recurrence
from sparsewire.sorting.soft_sort._triton.scans import (
    INFINITE,
    MASKED,
    MIX,
    MIX_BACK,
    NOT_A_NUMBER,
    PLAN,
    RANK,
    RANK_BACK,
    TABLE,
    scan,
    settle,
    sums,
    to_keys,
    weight,
)

SHORT = 1024  # elements of a row that one program sorts
_BLOCK, _PART = 2048, 512  # elements of a program that scans, and of one that does not
_GIVEN, _NUMBER, _DEFAULT = range(3)  # what is known of the temperature
_LARGEST, _SMALLEST = tl.constexpr(0x7FFFFFFF), tl.constexpr(-0x80000000)
_LAST = tl.constexpr(0x7FFFFFFFFFFFFFFF)


class Tape(NamedTuple):
    """What the backward pass needs of the forward pass, by rows of n."""

    order: Tensor
    points: Tensor
    heat: Tensor
    slots: Tensor
    below: Tensor
    places: Tensor
    offsets: Tensor
    means: Tensor


def new_tape(keys: Tensor, mode: int) -> Tape:
    """Return a tape to be written; of ranks only its first three have elements."""
    (b, n), short = keys.shape, is_short(keys)
    size = 0 if mode == RANK.value else b
    kind = torch.int32 if short else torch.int64
    return Tape(
        keys.new_empty((b, n), dtype=kind),
        keys.new_empty((b, n), dtype=torch.float64 if short else keys.dtype),
        keys.new_empty((b,), dtype=torch.float64),
        keys.new_empty((size, n), dtype=torch.int32),
        keys.new_empty((size, n), dtype=torch.int32),
        keys.new_empty((size, n), dtype=torch.float64 if short else keys.dtype),
        keys.new_empty((size, n), dtype=torch.float64),
        keys.new_empty((size, n), dtype=torch.float64),
    )


def is_short(keys: Tensor) -> bool:
    """Whether one program sorts a row."""
    return keys.dtype == torch.float32 and keys.shape[-1] <= SHORT


def forward(
    mode: int,
    keys: Tensor,
    payload: Tensor | None,
    weights: Tensor | None,
    temperature: Tensor | None,
    number: float,
    descending: bool,
) -> tuple[Tensor, Tape]:
    """Return soft ranks, or the payload, (b, n), in soft order; without a payload, the keys.

    Args:
        mode: `RANK`, `MIX`, or `PLAN` for a tape alone.
        keys: (b, n). Short ones may be infinite or NaN; others are finite.
        payload: (b, n) or None.
        weights: (b, n) or None; without weight is masked.
        temperature: (b,) or None.
        number: The temperature of all rows in the latter case, or 0 for the default one, which
            only short rows have.
        descending: Of short rows, whether the largest come first.
    """
    (b, n), tape = keys.shape, new_tape(keys, mode)
    keys = keys.detach().contiguous()
    dtype = keys.dtype if payload is None else payload.dtype
    out = keys.new_empty((0 if mode == PLAN.value else b, n), dtype=dtype)
    if not keys.numel():
        return out, tape
    weights, payload = (None if t is None else t.contiguous() for t in (weights, payload))
    table = keys.new_empty((0 if mode == RANK.value else b, TABLE, n), dtype=torch.float64)
    given = (weights if weights is not None else keys, payload if payload is not None else keys)
    options = {
        "MODE": mode,
        "WEIGHTED": weights is not None,
        "OWN": payload is None and mode == MIX.value,
    }
    steps = n.bit_length()
    if is_short(keys):
        heat = _GIVEN if temperature is not None else _NUMBER if number else _DEFAULT
        size, warps = _size(n)
        _short[(b,)](
            keys, *given, keys if temperature is None else temperature, number, *tape, table, out,
            n, steps, SIGN=-1 if descending else 1, HEAT=heat, SIZE=size, num_warps=warps,
            **options,
        )  # fmt: skip
        return out, tape
    assert temperature is not None
    assert not descending
    torch.sort(keys, stable=False, out=(tape.points, tape.order))
    tape.heat.copy_(temperature)
    _scanned(mode, keys, *given, keys, tape, table, out, 1, **options)
    if mode != RANK.value:
        _settle[(b, triton.cdiv(n, _PART))](
            *tape, table, out, n, steps, MODE=mode, OWN=options["OWN"], SIZE=_PART, num_warps=4
        )
    return out, tape


def backward(
    mode: int,
    grad: Tensor,
    payload: Tensor | None,
    weights: Tensor | None,
    tape: Tape,
    descending: bool,
    more: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the keys and of the payload; without a payload, their sum.

    With `PLAN_BACK`, `grad` are the sums over features at thresholds, and `more` those at keys.
    """
    (b, n), sign = tape.order.shape, -1 if descending else 1
    grad = grad.contiguous()
    short = tape.order.dtype == torch.int32
    out = grad.new_empty((b, n), dtype=torch.float32 if short else tape.points.dtype)
    to_payload = grad.new_empty((0, n) if payload is None else (b, n))
    if not out.numel():
        return out, to_payload
    weights, payload = (None if t is None else t.contiguous() for t in (weights, payload))
    given = (weights if weights is not None else grad, payload if payload is not None else grad)
    options = {
        "MODE": mode,
        "WEIGHTED": weights is not None,
        "OWN": payload is None and mode == MIX_BACK.value,
    }
    table = grad.new_empty((0 if mode == RANK_BACK.value else b, TABLE, n), dtype=torch.float64)
    more = grad if more is None else more
    if short:
        size, warps = _size(n)
        _short_back[(b,)](
            grad, *given, more, *tape, table, out, to_payload, n,
            SIGN=sign, SIZE=size, num_warps=warps, **options,
        )  # fmt: skip
        return out, to_payload
    _scanned(mode, grad, *given, grad, tape, table, out, sign, **options)
    if mode != RANK_BACK.value:
        _to_keys[(b, triton.cdiv(n, _PART))](
            grad, *given, more, *tape, table, out, to_payload, n,
            SIGN=sign, SIZE=_PART, num_warps=4, **options,
        )  # fmt: skip
    return out, to_payload


def _size(n: int) -> tuple[int, int]:
    size = max(32, triton.next_power_of_2(n))
    return size, min(8, size // 32)


def _scanned(
    mode: int, like: Tensor, weights: Tensor, other: Tensor, grad: Tensor, tape: Tape,
    table: Tensor, out: Tensor, sign: int, **options: int | bool,
) -> None:  # fmt: skip
    """Launch a scan of long rows: totals of blocks, sums of these, then all."""
    b, n = tape.order.shape
    blocks = triton.cdiv(n, _BLOCK)
    arguments = (weights, other, grad, *tape, table, out)
    decays = like.new_empty((b, 3, blocks), dtype=torch.float64)
    terms = like.new_empty((b, 3, 2, blocks), dtype=torch.float64)
    options |= {"SIGN": sign, "SIZE": _BLOCK, "num_warps": 8}
    if blocks > 1:
        _scan[(b, blocks)](*arguments, decays, terms, n, PHASE=0, **options)
        terms = recurrence(decays.view(-1, blocks), terms.view(-1, 2, blocks))
    _scan[(b, blocks)](*arguments, decays, terms, n, PHASE=2 if blocks > 1 else 1, **options)


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
        bits = tl.where(weight(weights, i, inside, True) > 0, bits, _LARGEST)
    packed = tl.sort(tl.where(inside, (bits.to(tl.int64) << 32) | i, _LAST))
    bits = (packed >> 32).to(tl.int32)
    x = _ordered(bits).to(tl.float32, bitcast=True).to(tl.float64)
    end = tl.where(x < 0, -INFINITE, INFINITE)
    x = tl.where(tl.abs(x) == float("inf"), end, x)
    x = tl.where(bits == _LARGEST - 1, NOT_A_NUMBER, x)
    x = tl.where(bits == _SMALLEST, -NOT_A_NUMBER, x)
    return (packed & 0xFFFFFFFF).to(tl.int32), tl.where(bits == _LARGEST, MASKED, x)


@triton.jit
def _default_heat(keys, weights, i, inside, WEIGHTED: tl.constexpr):
    """√12 standard deviations over n: the distance of neighbours of evenly spaced keys."""
    x = tl.load(keys + i, mask=inside, other=0.0)
    there = inside & (tl.abs(x) < float("inf"))
    w = weight(weights, i, there, WEIGHTED)
    x = tl.where(there & (w > 0), x, 0.0).to(tl.float64)
    count = tl.maximum(tl.sum(w, 0), 1e-38)
    away = x - tl.sum(w * x, 0) / count
    heat = tl.sqrt(12 * tl.sum(w * away * away, 0) / count) / count
    return tl.where(heat > 1e-30, tl.minimum(heat, 8.5e37), 1.0)


@triton.jit
def _short(
    keys, weights, other, temperature, number, order, points, heats, slots, below, places, offsets,
    means, table, out, n, steps, MODE: tl.constexpr, WEIGHTED: tl.constexpr, OWN: tl.constexpr,
    SIGN: tl.constexpr, HEAT: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at, i = row * n, tl.arange(0, SIZE)
    inside = i < n
    if HEAT == 0:
        heat = tl.load(temperature + row).to(tl.float64)
    elif HEAT == 1:
        heat = tl.full((), number, tl.float64)
    else:
        heat = _default_heat(keys + at, weights + at, i, inside, WEIGHTED)
    tl.store(heats + row, heat)
    place, x = _sorted(keys + at, weights + at, i, inside, WEIGHTED and OWN, SIGN)
    tl.store(order + at + i, place, mask=inside)
    tl.store(points + at + i, x, mask=inside)
    tl.debug_barrier()
    table += at * 6
    scan(
        i, inside, n, heat, points + at, points, points, order + at, weights + at, other + at, out,
        out, table, 0, 1, table, slots + at, out + at, MODE, WEIGHTED, OWN, SIGN, False,
    )  # fmt: skip
    if MODE != RANK:
        tl.debug_barrier()
        settle(
            i, inside, n, heat, points + at, slots + at, table, steps, order, out + at, below + at,
            places + at, offsets + at, means + at, MODE, OWN, SIGN,
        )  # fmt: skip


@triton.jit
def _short_back(
    grad, weights, other, more, order, points, heats, slots, below, places, offsets, means, table,
    out, to_other, n, MODE: tl.constexpr, WEIGHTED: tl.constexpr, OWN: tl.constexpr,
    SIGN: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at, i = row * n, tl.arange(0, SIZE)
    inside, heat = i < n, tl.load(heats + row)
    table += at * 6
    if MODE == RANK_BACK:
        scan(
            i, inside, n, heat, points + at, points, points, order + at, weights + at, other,
            grad + at, means, table, 0, 1, table, slots, out + at, MODE, WEIGHTED, OWN, SIGN, False,
        )  # fmt: skip
    else:
        scan(
            i, inside, n, heat, places + at, offsets + at, points + at, order + at, weights + at,
            other, grad + at, means + at, table, 0, 1, table, slots, out, MODE, WEIGHTED, OWN, SIGN,
            False,
        )  # fmt: skip
        tl.debug_barrier()
        to_keys(
            i, inside, n, heat, points + at, slots + at, table, places + at, offsets + at,
            order + at, weights + at, other + at, grad + at, more + at, out + at, to_other + at,
            MODE, WEIGHTED, OWN, SIGN,
        )  # fmt: skip


@triton.jit
def _scan(
    weights, other, grad, order, points, heats, slots, below, places, offsets, means, table, out,
    decays, terms, n, MODE: tl.constexpr, WEIGHTED: tl.constexpr, OWN: tl.constexpr,
    SIGN: tl.constexpr, SIZE: tl.constexpr, PHASE: tl.constexpr,
):  # fmt: skip
    """Of one block of a long row: totals, or results with or without sums of other blocks."""
    row, block, blocks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    at, i = row * n, block * SIZE + tl.arange(0, SIZE)
    heat = tl.load(heats + row)
    back: tl.constexpr = MODE >= MIX_BACK
    where = places if back else points
    terms += row * 6 * blocks
    if PHASE == 0:
        _, _, _, down, up, l0, r0, c0, l1, r1, c1 = sums(
            i, i < n, n, heat, where + at, offsets + at, points + at, order + at,
            weights + at, other + at, grad + at, means + at, terms, block, blocks, MODE, WEIGHTED,
            OWN, SIGN, False,
        )  # fmt: skip
        decays += row * 3 * blocks
        first, last = i == block * SIZE, i == block * SIZE + SIZE - 1
        ahead = blocks - block - 1
        tl.store(decays + block, tl.sum(tl.where(last, down, 0.0), 0))
        tl.store(decays + blocks + ahead, tl.sum(tl.where(first, up, 0.0), 0))
        tl.store(decays + 2 * blocks + block, tl.sum(tl.where(first, 1.0, 0.0).to(tl.float64), 0))
        tl.store(terms + block, tl.sum(tl.where(last, l0, 0.0), 0))
        tl.store(terms + blocks + block, tl.sum(tl.where(last, l1, 0.0), 0))
        tl.store(terms + 2 * blocks + ahead, tl.sum(tl.where(first, r0, 0.0), 0))
        tl.store(terms + 3 * blocks + ahead, tl.sum(tl.where(first, r1, 0.0), 0))
        tl.store(terms + 4 * blocks + block, tl.sum(tl.where(last, c0, 0.0), 0))
        tl.store(terms + 5 * blocks + block, tl.sum(tl.where(last, c1, 0.0), 0))
    else:
        scan(
            i, i < n, n, heat, where + at, offsets + at, points + at, order + at, weights + at,
            other + at, grad + at, means + at, terms, block, blocks, table + at * 6, slots + at,
            out + at, MODE, WEIGHTED, OWN, SIGN, PHASE == 2,
        )  # fmt: skip


@triton.jit
def _settle(
    order, points, heats, slots, below, places, offsets, means, table, out, n, steps,
    MODE: tl.constexpr, OWN: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at, i = row * n, tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    settle(
        i, i < n, n, tl.load(heats + row), points + at, slots + at, table + at * 6, steps, order,
        out + at, below + at, places + at, offsets + at, means + at, MODE, OWN, 1,
    )  # fmt: skip


@triton.jit
def _to_keys(
    grad, weights, other, more, order, points, heats, slots, below, places, offsets, means, table,
    out, to_other, n, MODE: tl.constexpr, WEIGHTED: tl.constexpr, OWN: tl.constexpr,
    SIGN: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at, i = row * n, tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    to_keys(
        i, i < n, n, tl.load(heats + row), points + at, slots + at, table + at * 6, places + at,
        offsets + at, order + at, weights + at, other + at, grad + at, more + at, out + at,
        to_other + at, MODE, WEIGHTED, OWN, SIGN,
    )  # fmt: skip
