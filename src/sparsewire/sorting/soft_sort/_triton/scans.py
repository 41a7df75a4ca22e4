"""What the kernels of soft sorting share: two-sided sums over sorted points, and thresholds.

The mathematics are those of `sparsewire.sorting.soft_sort._scan`. Points are the sorted keys, or
the thresholds, which are given as the nearest key and a distance from it in temperatures: so that
distances between neighbours are exact where keys are large. With values v at the points,

    L_j = Σ_{i ≤ j} v_i e^{−(x_j − x_i)/T},    R_j = Σ_{i ≥ j} v_i e^{−(x_i − x_j)/T}.

All is computed in float64. Axes are the planes of a buffer, rows, and places: pointers are moved to
a row, and planes are `size`, rows times places, apart.

- `ints`: the order; the number of thresholds below each key; that of keys below each threshold.
- `floats`: the sorted keys; the thresholds, a key and a distance; the mean payload there, or,
  of a plan, the density.
- `table`: L of one value and of another, then R, then the cumulative sums.
"""

import triton
import triton.language as tl

# What is sorted: nothing, only ranks; the keys; a payload of one feature; one of many, elsewhere.
RANKS, KEYS, COLUMN, PLAN = (tl.constexpr(i) for i in range(4))
LEFT, RIGHT, TOTAL = (tl.constexpr(i) for i in range(3))  # sums: L, R, and cumulative ones
ABSENT = tl.constexpr(2.0**100)  # the distance of thresholds that are nowhere
# Where infinite keys are, NaN, and masked ones: no finite key of float32 is near.
INFINITE, NOT_A_NUMBER, MASKED = tl.constexpr(1e200), tl.constexpr(2e200), tl.constexpr(3e200)
_FAR = tl.constexpr(300.0)  # temperatures between neighbours; more makes no difference
_TINY = tl.constexpr(1e-300)
_LARGE = tl.constexpr(2.0**30)  # temperatures to a key of float32 whose neighbours are 64 away


@triton.jit
def load(pointer, inside):
    """Numbers in float64, and 0 outside."""
    return tl.load(pointer, mask=inside, other=0.0).to(tl.float64)


@triton.jit
def point(floats, size, i, inside, THRESHOLDS: tl.constexpr):
    """A key or a threshold: a place, and a distance from it in temperatures."""
    x = load(floats + size * THRESHOLDS + i, inside)
    return x, load(floats + 2 * size + i, inside) if THRESHOLDS else x * 0.0


@triton.jit
def decay(x, t, y, u, cool):
    """The exponential of minus the distance between (y, u) and (x, t); cool is 1 / T."""
    return tl.exp(-tl.minimum(tl.abs((x - y) * cool + (t - u)), _FAR))


@triton.jit
def known(x):
    """Whether a key is finite and not masked."""
    return tl.abs(x) < INFINITE


@triton.jit
def own(x, cool):
    """What the sums have of a key: nothing where only equal ones are near, see `settle`.

    So that large keys, which are certain of their places, leave all digits to the others.
    """
    return tl.where(known(2 * x) & (tl.abs(x) * cool <= _LARGE), x, 0.0)


@triton.jit
def weight(weights, place, inside, WEIGHTED: tl.constexpr):
    return load(weights + place, inside) if WEIGHTED else tl.where(inside, 1.0, 0.0).to(tl.float64)


@triton.jit
def gradient(grad, keys, i, inside, KIND: tl.constexpr, SIGN: tl.constexpr):
    """The gradient of what is in place i; keys that are not finite are constants there."""
    g = load(grad + i, inside)
    if KIND == KEYS:
        g = tl.where(known(load(keys + i, inside)), SIGN * g, 0.0)
    return g


@triton.jit
def slope(twice, x, cool):
    """From sums of exponentials to gradients of keys."""
    return tl.where(known(x), twice * cool / 2, 0.0)


@triton.jit
def values(
    i, inside, n, size, cool, ints, floats, payload, weights, given, KIND: tl.constexpr,
    BACK: tl.constexpr, WEIGHTED: tl.constexpr, SIGN: tl.constexpr,
):  # fmt: skip
    """The two values at each point that are summed: at the keys, or back at the thresholds."""
    if BACK and KIND != RANKS:
        x, t = point(floats, size, i, inside, True)
        mean = load(floats + 3 * size + i, inside)
        inside &= t < ABSENT
        if KIND == PLAN:
            first = x * 0.0
            second = load(given + i, inside) / tl.maximum(mean, _TINY)
        else:
            first = gradient(given, floats, i, inside, KIND, SIGN)
            first -= gradient(given, floats, i + 1, inside & (i + 1 < n), KIND, SIGN)
            if KIND == KEYS:
                mean += own(x, cool)
            second = first * mean
    else:
        place = tl.load(ints + i, mask=inside, other=0)
        first = weight(weights, place, inside, WEIGHTED)
        second = first * 0.0
        if BACK:
            second = load(given + place, inside)
        elif KIND == KEYS:
            second = first * own(load(floats + i, inside), cool)
        elif KIND == COLUMN:
            second = first * load(payload + place, inside)
    return first, second


@triton.jit
def _join(a, v, w, b, y, z):
    return a * b, v * b + y, w * b + z


@triton.jit
def scan(
    i, inside, n, size, cool, floats, v, w, SUM: tl.constexpr, THRESHOLDS: tl.constexpr
):  # fmt: skip
    """L, R or the cumulative sum of two values, as if this block were the whole row."""
    step: tl.constexpr = 1 if SUM == RIGHT else -1
    beside = inside & (i + step >= 0) & (i + step < n)
    x, t = point(floats, size, i, inside, THRESHOLDS)
    y, u = point(floats, size, i + step, beside, THRESHOLDS)
    # What has no decay is the sum at an infinite temperature.
    share = tl.where(beside, decay(x, t, y, u, cool * (SUM != TOTAL)), 0.0)
    _, v, w = tl.associative_scan((share, v, w), 0, _join, reverse=SUM == RIGHT)
    return v, w


@triton.jit
def end(block, n, SIZE: tl.constexpr, SUM: tl.constexpr):
    """The place in a block whose sums are those of the block."""
    return block * SIZE if SUM == RIGHT else tl.minimum(block * SIZE + SIZE, n) - 1


@triton.jit
def carried(
    i, inside, n, size, cool, floats, totals, block, blocks, SIZE: tl.constexpr,
    SUM: tl.constexpr, THRESHOLDS: tl.constexpr,
):  # fmt: skip
    """What the other blocks of a long row add to the results of `scan`, from their ends."""
    cool = cool * (SUM != TOTAL)
    first, second = tl.zeros((SIZE,), tl.float64), tl.zeros((SIZE,), tl.float64)
    beside = block * SIZE + (SIZE if SUM == RIGHT else -1)
    x, t = point(floats, size, beside, (beside >= 0) & (beside < n), THRESHOLDS)
    for start in range(0, blocks, SIZE):
        j = start + tl.arange(0, SIZE)
        there = (j > block) & (j < blocks) if SUM == RIGHT else j < block
        y, u = point(floats, size, end(j, n, SIZE, SUM), there, THRESHOLDS)
        share, to = decay(x, t, y, u, cool), totals + 2 * SUM * blocks + j
        first += share * load(to, there)
        second += share * load(to + blocks, there)
    y, u = point(floats, size, i, inside, THRESHOLDS)
    share = decay(x, t, y, u, cool)
    return share * tl.sum(first, 0), share * tl.sum(second, 0)


@triton.jit
def solve(k, n, size, cool, slots, keys, table, steps):
    """The threshold of level k: the keys below, where it is, G, the mean payload, the density."""
    total = tl.load(table + 4 * size + n - 1)
    there = (k > 0) & (k < total)
    low, high = k * 0, k * 0 + n
    for _ in range(steps):
        middle = (low + high) // 2
        open = low < high
        below = tl.load(slots + middle, mask=open, other=0) < k
        low = tl.where(open & below, middle + 1, low)
        high = tl.where(open & ~below, middle, high)
    left, right = there & (low > 0), there & (low < n)
    x, y = load(keys + low - 1, left), load(keys + low, right)
    under, over = table + low - 1, table + 2 * size + low
    a, b = load(under, left), load(over, right)
    ap, bp = load(under + size, left), load(over + size, right)
    c, cp = load(under + 4 * size, left), load(under + 5 * size, left)
    gap = tl.where(left & right, decay(y, 0.0, x, 0.0, cool), 0.0)
    # a u² − 2 more u − b gap = 0 for u = e^{−t}, t from the left key, and v = gap / u.
    more = c - k
    root = tl.sqrt(more * more + a * b * gap) + tl.abs(more)
    large = root / tl.maximum(tl.where(more < 0, b, a), _TINY)
    small = tl.where(more < 0, b, a) * gap / tl.maximum(root, _TINY)
    u = tl.minimum(tl.maximum(tl.where(more < 0, small, large), _TINY), 1.0)
    v = tl.minimum(tl.maximum(tl.where(more < 0, large, small), _TINY), 1.0)
    t, s = tl.where(left, -tl.log(u), 700.0), tl.where(right, -tl.log(v), 700.0)
    near = tl.minimum(t, s)
    eu, ev = tl.exp(near - t), tl.exp(near - s)
    density = tl.maximum(a * eu + b * ev, _TINY)
    mean = (ap * eu + bp * ev) / density
    amount = cp - ap * u / 2 + bp * v / 2
    amount = tl.where(there, amount, tl.where(k > 0, tl.load(table + 5 * size + n - 1), 0.0))
    place = tl.where(there, tl.where(t <= s, x, y), tl.load(keys + n - 1))
    offset = tl.where(there, tl.where(t <= s, t, -s), ABSENT)
    return tl.where(there, low, n), place, offset, amount, mean, density * tl.exp(-near) / 2


@triton.jit
def settle(
    i, inside, n, size, cool, ints, floats, table, steps, out, KIND: tl.constexpr,
    SIGN: tl.constexpr,
):  # fmt: skip
    """Store the thresholds of levels i + 1, and G there less G at level i."""
    j, place, offset, amount, mean, density = solve(
        i + 1, n, size, cool, ints + size, floats, table, steps
    )
    if KIND == PLAN:
        mean = density
    else:
        _, _, _, before, _, _ = solve(i, n, size, cool, ints + size, floats, table, steps)
        result = amount - before
        if KIND == KEYS:
            x = load(floats + i, inside)
            large = tl.where(tl.abs(x) == INFINITE, x * INFINITE, x - own(x, cool))
            large = tl.where(tl.abs(x) == NOT_A_NUMBER, float("nan"), large)
            result = SIGN * tl.where(x == MASKED, result, result + large)
            mean -= own(place, cool)
        tl.store(out + i, result, mask=inside)
    tl.store(ints + 2 * size + i, j, mask=inside)
    tl.store(floats + size + i, place, mask=inside)
    tl.store(floats + 2 * size + i, offset, mask=inside)
    tl.store(floats + 3 * size + i, mean, mask=inside)


@triton.jit
def to_keys(
    i, inside, n, size, cool, ints, floats, table, payload, weights, grad, out, KIND: tl.constexpr,
    WEIGHTED: tl.constexpr, SIGN: tl.constexpr,
):  # fmt: skip
    """From sums at the thresholds to gradients of the keys and of the payload."""
    x = load(floats + i, inside)
    place = tl.load(ints + i, mask=inside, other=0)
    w = weight(weights, place, inside, WEIGHTED)
    k = tl.minimum(tl.load(ints + size + i, mask=inside, other=0), n)
    left, right = inside & (k > 0), inside & (k < n)
    y, u = point(floats, size, k - 1, left, True)
    z, s = point(floats, size, k, right, True)
    fall, rise = decay(x, 0.0, y, u, cool), decay(z, s, x, 0.0, cool)
    under, over = table + k - 1, table + 2 * size + k
    l1, r1 = load(under + size, left) * fall, load(over + size, right) * rise
    if KIND == PLAN:
        result = slope(w * (l1 + r1 - 2 * load(grad + size + i, inside)), x, cool)
    else:
        l0, r0 = load(under, left) * fall, load(over, right) * rise
        to_payload = w * (gradient(grad, floats, k, right, KIND, SIGN) + (l0 - r0) / 2)
        p = own(x, cool) if KIND == KEYS else load(payload + place, inside)
        result = slope(w * (l1 + r1 - p * (l0 + r0)), x, cool)
        if KIND == KEYS:
            result += tl.where(known(x), to_payload, 0.0)
        else:
            tl.store(out + size + place, to_payload, mask=inside)
    tl.store(out + place, SIGN * result, mask=inside)
