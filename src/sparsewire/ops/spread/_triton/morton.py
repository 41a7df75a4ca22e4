"""Morton codes: tuples that are near in space are near in the order of their codes."""

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256


def morton_codes(columns: Tensor, excluded: Tensor | None, largest: Tensor) -> Tensor:
    """Return the bits of all columns, interleaved; excluded tuples come last.

    Args:
        columns: Tuples (c, q, r), integers or floats that are rounded down.
        excluded: Mask (c, q), or None.
        largest: The largest integer among all columns that will be compared, on the device. If the
            bits of all columns do not fit, the lowest are left out.
    """
    *prefix, rank = columns.shape
    codes = columns.new_empty(prefix, dtype=largest.dtype)
    count = codes.numel()
    _codes[(triton.cdiv(count, _BLOCK),)](
        columns.contiguous(),
        columns if excluded is None else excluded,
        largest,
        codes,
        count,
        R=rank,
        BITS=min(62 // rank, 31),
        MASKED=excluded is not None,
        BLOCK=_BLOCK,
    )
    return codes


@triton.jit
def _codes(
    columns,
    excluded,
    largest,
    codes,
    count,
    R: tl.constexpr,
    BITS: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    most = tl.load(largest)
    shift = tl.zeros([], tl.int64)
    for bit in tl.static_range(BITS, 63):
        shift += ((most >> bit) > 0).to(tl.int64)
    code = tl.zeros([BLOCK], tl.int64)
    for axis in tl.static_range(R):
        column = tl.load(columns + place * R + axis, mask=inside, other=0)
        if column.dtype.is_floating():
            # NaN becomes 0, so that every code is valid.
            column = tl.where((column >= 0) & (column < 9e18), tl.floor(column), 0)
        spot = tl.maximum(column.to(tl.int64), 0) >> shift
        for bit in tl.static_range(BITS):
            code |= ((spot >> bit) & 1) << (bit * R + axis)
    if MASKED:
        hidden = tl.load(excluded + place, mask=inside, other=0) != 0
        code = tl.where(hidden, 0x7FFFFFFFFFFFFFFF, code)
    tl.store(codes + place, code, mask=inside)
