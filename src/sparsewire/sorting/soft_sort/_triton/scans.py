"""What the kernels of soft sorting share: two-sided sums over sorted points, and thresholds.

The mathematics are those of `sparsewire.sorting.soft_sort._scan`. Points are the sorted keys, or
the thresholds, which are given as the nearest key and a distance from it in temperatures: so that
distances between neighbours are exact where keys are large. With values v at the points,

    L_j = Σ_{i ≤ j} v_i e^{−(x_j − x_i)/T},    R_j = Σ_{i ≥ j} v_i e^{−(x_i − x_j)/T}.

A stage reads what the stage before wrote: in one kernel behind a barrier where a row fits into a
program, in the next kernel where it does not. All is computed in float64.
"""

import triton
import triton.language as tl

# What is summed: at the keys, then at the thresholds.
RANK, RANK_BACK, MIX, PLAN, MIX_BACK, PLAN_BACK = (tl.constexpr(i) for i in range(6))
_FAR = tl.constexpr(300.0)  # temperatures between neighbours; more makes no difference
ABSENT = tl.constexpr(2.0**100)  # the distance of thresholds that are nowhere
_TINY = tl.constexpr(1e-300)
_LARGE = tl.constexpr(2.0**30)  # temperatures to a key of float32 whose neighbours are 64 away
# Where infinite keys are, NaN, and masked ones: no finite key of float32 is near.
INFINITE, NOT_A_NUMBER, MASKED = tl.constexpr(1e200), tl.constexpr(2e200), tl.constexpr(3e200)
TABLE = 6  # rows of a table: L, R and the cumulative sum of one value, then of another


@triton.jit
def decay(x, t, y, u, heat):
    """The exponential of minus the distance from (y, u) up to (x, t)."""
    return tl.exp(-tl.minimum(tl.maximum((x - y) / tl.maximum(heat, _TINY) + (t - u), 0.0), _FAR))


@triton.jit
def position(points, offsets, i, inside, MODE: tl.constexpr):
    x = tl.load(points + i, mask=inside, other=0.0).to(tl.float64)
    t = x * 0.0
    if MODE >= MIX_BACK:
        t = tl.load(offsets + i, mask=inside, other=0.0).to(tl.float64)
    return x, t


@triton.jit
def known(x):
    """Whether a key is finite and not masked."""
    return tl.abs(x) < INFINITE


@triton.jit
def own(x, heat, points, order):
    """What the sums have of a key: nothing where only equal ones are near, see `settle`.

    So that large keys, which are certain of their places, leave all digits to the others.
    """
    if points.dtype.element_ty == tl.float32 or order.dtype.element_ty == tl.int32:
        return tl.where(tl.abs(x) > tl.minimum(heat * _LARGE, INFINITE / 2), 0.0, x)
    else:
        return x


@triton.jit
def gradient(grad, keys, i, inside, OWN: tl.constexpr, SIGN: tl.constexpr):
    """The gradient of what is in place i; keys that are not finite are constants there."""
    g = tl.load(grad + i, mask=inside, other=0.0).to(tl.float64)
    if OWN:
        x = tl.load(keys + i, mask=inside, other=0.0).to(tl.float64)
        g = tl.where(known(x), SIGN * g, 0.0)
    return g


@triton.jit
def weight(weights, place, inside, WEIGHTED: tl.constexpr):
    if WEIGHTED:
        return tl.load(weights + place, mask=inside, other=0.0).to(tl.float64)
    else:
        return tl.where(inside, 1.0, 0.0).to(tl.float64)


@triton.jit
def values(
    x, t, i, inside, n, heat, points, keys, order, weights, other, grad, means, MODE: tl.constexpr,
    WEIGHTED: tl.constexpr, OWN: tl.constexpr, SIGN: tl.constexpr,
):  # fmt: skip
    """The two values at each point that are summed."""
    if MODE == PLAN_BACK:
        density = tl.load(means + i, mask=inside, other=0.0).to(tl.float64)
        first = density * 0
        second = tl.load(grad + i, mask=inside, other=0.0).to(tl.float64)
        second = second / tl.maximum(density, _TINY)
    elif MODE == MIX_BACK:
        inside &= t < ABSENT
        first = gradient(grad, keys, i, inside, OWN, SIGN)
        first -= gradient(grad, keys, i + 1, inside & (i + 1 < n), OWN, SIGN)
        mean = tl.load(means + i, mask=inside, other=0.0).to(tl.float64)
        if OWN:
            mean += own(x, heat, points, order)
        second = first * mean
    else:
        place = tl.load(order + i, mask=inside, other=0)
        first = weight(weights, place, inside, WEIGHTED)
        second = first * 0
        if MODE == RANK_BACK:
            second = tl.load(grad + place, mask=inside, other=0.0).to(tl.float64)
        if MODE == MIX:
            if OWN:
                second = first * own(x, heat, points, order)
            else:
                second = first * tl.load(other + place, mask=inside, other=0.0).to(tl.float64)
    return first, second


@triton.jit
def slope(twice, x, heat):
    """From sums of exponentials to gradients of keys."""
    factor = tl.where(heat > 0, 0.5 / tl.maximum(heat, _TINY), 0.0)
    return tl.where(known(x), twice * factor, 0.0)


@triton.jit
def _join(a, v, w, b, y, z):
    return a * b, v * b + y, w * b + z


@triton.jit
def sums(
    i, inside, n, heat, points, offsets, keys, order, weights, other, grad, means, carry, block,
    blocks, MODE: tl.constexpr, WEIGHTED: tl.constexpr, OWN: tl.constexpr, SIGN: tl.constexpr,
    CARRY: tl.constexpr,
):  # fmt: skip
    """The points, their values, L, R and the cumulative sums of both, in this block."""
    x, t = position(points, offsets, i, inside, MODE)
    before, after = inside & (i > 0), inside & (i + 1 < n)
    y, u = position(points, offsets, i - 1, before, MODE)
    z, s = position(points, offsets, i + 1, after, MODE)
    v, w = values(
        x,
        t,
        i,
        inside,
        n,
        heat,
        points,
        keys,
        order,
        weights,
        other,
        grad,
        means,
        MODE,
        WEIGHTED,
        OWN,
        SIGN,
    )
    fall = tl.where(before, decay(x, t, y, u, heat), 0.0)
    rise = tl.where(after, decay(z, s, x, t, heat), 0.0)
    down, l0, l1 = tl.associative_scan((fall, v, w), 0, _join)
    up, r0, r1 = tl.associative_scan((rise, v, w), 0, _join, reverse=True)
    c0, c1 = tl.cumsum(v, 0), tl.cumsum(w, 0)
    if CARRY:
        row = 2 * blocks
        here, back = carry + block - 1, carry + blocks - block - 2
        first, last = block > 0, block + 1 < blocks
        l0 += down * tl.load(here, mask=first, other=0.0)
        l1 += down * tl.load(here + blocks, mask=first, other=0.0)
        r0 += up * tl.load(back + row, mask=last, other=0.0)
        r1 += up * tl.load(back + row + blocks, mask=last, other=0.0)
        c0 += tl.load(here + 2 * row, mask=first, other=0.0)
        c1 += tl.load(here + 2 * row + blocks, mask=first, other=0.0)
    return x, v, w, down, up, l0, r0, c0, l1, r1, c1


@triton.jit
def scan(
    i, inside, n, heat, points, offsets, keys, order, weights, other, grad, means, carry, block,
    blocks,
    table, slots, out, MODE: tl.constexpr, WEIGHTED: tl.constexpr, OWN: tl.constexpr,
    SIGN: tl.constexpr, CARRY: tl.constexpr,
):  # fmt: skip
    """Ranks, their gradients, or a table of sums: at the keys or at the thresholds."""
    x, v, w, _, _, l0, r0, c0, l1, r1, c1 = sums(
        i, inside, n, heat, points, offsets, keys, order, weights, other, grad, means, carry, block,
        blocks, MODE, WEIGHTED, OWN, SIGN, CARRY,
    )  # fmt: skip
    if MODE <= RANK_BACK:
        place = tl.load(order + i, mask=inside, other=0)
        if MODE == RANK:
            result = c0 - v - l0 / 2 + r0 / 2
        else:
            result = SIGN * slope(w * (l0 + r0) - v * (l1 + r1), x, heat)
        tl.store(out + place, result, mask=inside)
    else:
        tl.store(table + i, l0, mask=inside)
        tl.store(table + n + i, r0, mask=inside)
        tl.store(table + 3 * n + i, l1, mask=inside)
        tl.store(table + 4 * n + i, r1, mask=inside)
        if MODE < MIX_BACK:
            tl.store(table + 2 * n + i, c0, mask=inside)
            tl.store(table + 5 * n + i, c1, mask=inside)
            # The number of whole levels that are not above the key.
            tl.store(slots + i, tl.floor(c0 - l0 / 2 + (r0 - v) / 2).to(tl.int32), mask=inside)


@triton.jit
def solve(k, n, heat, points, slots, table, steps):
    """The threshold of level k: the keys below, where it is, G and the mean payload there."""
    total = tl.load(table + 3 * n - 1)
    there = (k > 0) & (k < total)
    low, high = k * 0, k * 0 + n
    for _ in range(steps):
        middle = (low + high) // 2
        open = low < high
        below = tl.load(slots + middle, mask=open, other=0) < k
        low = tl.where(open & below, middle + 1, low)
        high = tl.where(open & ~below, middle, high)
    left, right = there & (low > 0), there & (low < n)
    i = low - 1
    x = tl.load(points + i, mask=left, other=0.0).to(tl.float64)
    y = tl.load(points + low, mask=right, other=0.0).to(tl.float64)
    a = tl.load(table + i, mask=left, other=0.0)
    b = tl.load(table + n + low, mask=right, other=0.0)
    c = tl.load(table + 2 * n + i, mask=left, other=0.0)
    ap = tl.load(table + 3 * n + i, mask=left, other=0.0)
    bp = tl.load(table + 4 * n + low, mask=right, other=0.0)
    cp = tl.load(table + 5 * n + i, mask=left, other=0.0)
    gap = tl.where(left & right, decay(y, y * 0, x, x * 0, heat), 0.0)
    # a u² − 2 more u − b gap = 0 for u = e^{−t}, t from the left key, and v = gap / u.
    more = c - k
    root = tl.sqrt(more * more + a * b * gap) + tl.abs(more)
    large = root / tl.maximum(tl.where(more < 0, b, a), _TINY)
    small = tl.where(more < 0, b, a) * gap / tl.maximum(root, _TINY)
    u = tl.minimum(tl.maximum(tl.where(more < 0, small, large), _TINY), 1.0)
    v = tl.minimum(tl.maximum(tl.where(more < 0, large, small), _TINY), 1.0)
    t, s = -tl.log(u), -tl.log(v)
    t, s = tl.where(left, t, 700.0), tl.where(right, s, 700.0)
    near = tl.minimum(t, s)
    eu, ev = tl.exp(near - t), tl.exp(near - s)
    density = tl.maximum(a * eu + b * ev, _TINY)
    mean = (ap * eu + bp * ev) / density
    amount = cp - ap * u / 2 + bp * v / 2
    amount = tl.where(there, amount, tl.where(k > 0, tl.load(table + 6 * n - 1), 0.0))
    end = tl.load(points + n - 1).to(tl.float64)
    place = tl.where(there, tl.where(t <= s, x, y), end)
    offset = tl.where(there, tl.where(t <= s, t, -s), ABSENT)
    return tl.where(there, low, n), place, offset, amount, mean, density * tl.exp(-near) / 2


@triton.jit
def settle(
    i, inside, n, heat, points, slots, table, steps, order, out, below, places, offsets, means,
    MODE: tl.constexpr, OWN: tl.constexpr, SIGN: tl.constexpr,
):  # fmt: skip
    """Store the thresholds of levels i + 1, and G there less G at level i."""
    j, place, offset, amount, mean, density = solve(i + 1, n, heat, points, slots, table, steps)
    if MODE == MIX:
        _, _, _, before, _, _ = solve(i, n, heat, points, slots, table, steps)
        result = amount - before
        if OWN:
            x = tl.load(points + i, mask=inside, other=0.0).to(tl.float64)
            large = tl.where(tl.abs(x) == INFINITE, x * INFINITE, x - own(x, heat, points, order))
            large = tl.where(tl.abs(x) == NOT_A_NUMBER, float("nan"), large)
            result = SIGN * tl.where(x == MASKED, result, result + large)
            mean -= own(place, heat, points, order)
        tl.store(out + i, result, mask=inside)
    else:
        mean = density
    tl.store(below + i, j, mask=inside)
    tl.store(places + i, place, mask=inside)
    tl.store(offsets + i, offset, mask=inside)
    tl.store(means + i, mean, mask=inside)


@triton.jit
def to_keys(
    i, inside, n, heat, points, slots, table, places, offsets, order, weights, other, grad, more,
    out, to_other, MODE: tl.constexpr, WEIGHTED: tl.constexpr, OWN: tl.constexpr,
    SIGN: tl.constexpr,
):  # fmt: skip
    """From sums at the thresholds to gradients of the keys and of the payload."""
    x = tl.load(points + i, mask=inside, other=0.0).to(tl.float64)
    place = tl.load(order + i, mask=inside, other=0)
    w = weight(weights, place, inside, WEIGHTED)
    k = tl.minimum(tl.load(slots + i, mask=inside, other=0), n)
    left, right = inside & (k > 0), inside & (k < n)
    y = tl.load(places + k - 1, mask=left, other=0.0).to(tl.float64)
    u = tl.load(offsets + k - 1, mask=left, other=0.0).to(tl.float64)
    left &= u < ABSENT
    y, u = tl.where(left, y, x), tl.where(left, u, 0.0)
    z = tl.load(places + k, mask=right, other=0.0).to(tl.float64)
    s = tl.load(offsets + k, mask=right, other=0.0).to(tl.float64)
    fall, rise = decay(x, x * 0, y, u, heat), decay(z, s, x, x * 0, heat)
    l1 = tl.load(table + 3 * n + k - 1, mask=left, other=0.0) * fall
    r1 = tl.load(table + 4 * n + k, mask=right, other=0.0) * rise
    if MODE == PLAN_BACK:
        summed = tl.load(more + i, mask=inside, other=0.0).to(tl.float64)
        result = slope(w * (l1 + r1 - 2 * summed), x, heat)
    else:
        l0 = tl.load(table + k - 1, mask=left, other=0.0) * fall
        r0 = tl.load(table + n + k, mask=right, other=0.0) * rise
        g = gradient(grad, points, k, right, OWN, SIGN)
        to_payload = w * (g + (l0 - r0) / 2)
        if OWN:
            p = own(x, heat, points, order)
        else:
            p = tl.load(other + place, mask=inside, other=0.0).to(tl.float64)
        result = slope(w * (l1 + r1 - p * (l0 + r0)), x, heat)
        if OWN:
            result += tl.where(known(x), to_payload, 0.0)
        else:
            tl.store(to_other + place, to_payload, mask=inside)
    tl.store(out + place, SIGN * result, mask=inside)
