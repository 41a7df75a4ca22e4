"""Kernels for contexts of one continuous tuple: sample, mark repeats, normalise, gather and reduce.

A context reads from one input, z = v Σ_j p_j x[j] over its distinct tuples j. Each thread has one
context and loops over its samples. The backward pass samples the same tuples again from the seed:
nothing of size (contexts × samples) is ever stored.

Two facts make this cheap. The integer tuple nearest to the mean is always among the samples, so the
largest density, which softmax subtracts, is known beforehand. And most samples lie in a small box
around the mean, the region and one more index to each side, in which one bit for each cell marks
what was sampled before; only the samples outside are compared with each other.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from sparsewire.ops._triton_density import RANGE, bounded, constants, log_density, slope
from sparsewire.ops._triton_philox import below, lowest_corner, random_bits, region_start
from sparsewire.ops.fused_gather import box_cells

# Contexts of a program, one for each thread.
_CONTEXTS, _WARPS = 128, 4


def forward(*inputs: Any) -> tuple[Tensor, ...]:
    """Return z (w, c) for inputs (w, n), and for the backward pass z / v and the normaliser."""
    out, averages, normalisers = (inputs[2].new_empty(inputs[2].shape) for _ in range(3))
    _launch(_gather, inputs[3], inputs[:6], (out, averages, normalisers), inputs[6:])
    return out, averages, normalisers


def backward(grad: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    """Return the gradients of means, variances, values and, if the last input asks for it, of x."""
    x, to_input = inputs[3], inputs[-1]
    to_x = inputs[0].new_zeros(x.shape if to_input else (0,))
    grads = (*(t.new_empty(t.shape) for t in inputs[:3]), to_x)
    tensors = grad, *inputs[:8]
    _launch(_gather_backward, x, tensors, grads, inputs[8:-1], TO_INPUT=to_input)
    return grads


def _launch(kernel: Any, x: Tensor, inputs: Any, results: Any, how: Any, **more: bool) -> None:
    strides, sizes, spans, local_samples, global_samples, kind = how
    w, contexts = results[2].shape
    if not w * contexts:
        return
    kernel[(triton.cdiv(w * contexts, _CONTEXTS),)](
        *(t.contiguous() for t in inputs),
        *results,
        tuple(strides),
        tuple(sizes),
        tuple(spans),
        w * contexts,
        contexts,
        x.shape[1],
        R=kind.rank,
        LOCAL=local_samples,
        GLOBAL=global_samples,
        WORDS=triton.cdiv(box_cells(sizes, spans), 32),
        WIDE=triton.next_power_of_2(max(global_samples, 1)),
        CONTEXTS=_CONTEXTS,
        num_warps=_WARPS,
        **constants(kind, results[0].dtype, *RANGE, "SCALE", "STUDENT", "POWER"),
        **more,
    )


@triton.jit
def _prepare(
    means, variances, context, live, sizes, spans,
    R: tl.constexpr, LIMIT: tl.constexpr, STUDENT: tl.constexpr, POWER: tl.constexpr,
    SCALE: tl.constexpr, FARTHEST: tl.constexpr, SHARPEST: tl.constexpr, WIDEST: tl.constexpr,
):  # fmt: skip
    """Return by axis the means, precisions, lowest corners and starts of regions, and the top.

    The top is the logarithm of the largest density, that of the nearest corner.
    """
    centres, precisions, corners, starts = (), (), (), ()
    nearest = tl.zeros_like(context).to(means.dtype.element_ty)
    for axis in tl.static_range(R):
        raw = tl.load(means + context * R + axis, mask=live, other=0)
        variance = tl.load(variances + context * R + axis, mask=live, other=1)
        centre = bounded(raw, -FARTHEST, FARTHEST)
        precision = SCALE / bounded(variance, SHARPEST, WIDEST)
        corner = lowest_corner(raw, sizes[axis]).to(tl.int32)
        upper = tl.minimum(corner + 1, sizes[axis] - 1)
        step = tl.abs(corner.to(centre.dtype) - centre)
        step = tl.minimum(step, tl.abs(upper.to(centre.dtype) - centre))
        nearest += step * (step * precision)
        centres, precisions = centres + (centre,), precisions + (precision,)
        corners = corners + (corner,)
        starts = starts + (region_start(raw, sizes[axis], spans[axis]).to(tl.int32),)
    top = log_density(nearest, LIMIT, STUDENT, POWER)
    return centres, precisions, corners, starts, top


@triton.jit
def _sample_box(seed, draw, starts, bounds, R: tl.constexpr):
    """Return uniform index tuples from boxes with these starts and sizes."""
    other = tl.zeros_like(draw).to(tl.uint64)
    index = ()
    for axis in tl.static_range(R):
        if axis % 2 == 0:
            bits, other = random_bits(seed, draw, axis // 2)
        else:
            bits = other
        index = index + (starts[axis] + below(bits, bounds[axis]).to(tl.int32),)
    return index


@triton.jit
def _look_up(index, starts, sizes, spans, words, R: tl.constexpr, WORDS: tl.constexpr):
    """Return whether tuples are in the box, whether they were seen there, and the updated bits."""
    cell = tl.zeros_like(index[0])
    inside = cell == 0
    for axis in tl.static_range(R):
        length = tl.minimum(spans[axis] + 2, sizes[axis])
        place = index[axis] - tl.maximum(tl.minimum(starts[axis] - 1, sizes[axis] - length), 0)
        inside = inside & (place >= 0) & (place < length)
        cell = cell * length + place
    bit = tl.full([], 1, tl.int32) << (cell & 31)
    before = cell < cell
    added = ()
    for word in tl.static_range(WORDS):
        here = inside & ((cell >> 5) == word)
        before = before | (here & ((words[word] & bit) != 0))
        added = added + (words[word] | tl.where(here, bit, 0),)
    return inside, before, added


@triton.jit
def _add(
    sums, index, fresh, x, to_x, strides, centres, precisions, top, average, factor,
    R: tl.constexpr, LIMIT: tl.constexpr, STUDENT: tl.constexpr, POWER: tl.constexpr,
    SCALE: tl.constexpr, BACKWARD: tl.constexpr, TO_INPUT: tl.constexpr,
):  # fmt: skip
    """Add a sample to the sums of each context: normaliser and product, or the gradients."""
    spot = index[0] * strides[0]
    step = index[0].to(top.dtype) - centres[0]
    steps = (step,)
    distance = step * (step * precisions[0])
    for axis in tl.static_range(1, R):
        spot += index[axis] * strides[axis]
        step = index[axis].to(top.dtype) - centres[axis]
        steps = steps + (step,)
        distance += step * (step * precisions[axis])
    entry = tl.load(x + spot, mask=fresh, other=0).to(top.dtype)
    share = tl.where(fresh, tl.exp2(log_density(distance, LIMIT, STUDENT, POWER) - top), 0)
    if BACKWARD:
        share *= factor
        if TO_INPUT:
            tl.atomic_add(to_x + spot, share, mask=fresh, sem="relaxed")
        weight = share * (entry - average) * slope(distance, SCALE, STUDENT, POWER)
        weight = tl.where(distance < LIMIT, weight, 0)
        added = ()
        for axis in tl.static_range(R):
            moment = weight * steps[axis]
            added = added + (sums[2 * axis] + moment, sums[2 * axis + 1] + moment * steps[axis])
        return added
    else:
        return (sums[0] + share, sums[1] + share * entry)


@triton.jit
def _walk(
    sums, seed, context, live, x, to_x, strides, sizes, spans,
    centres, precisions, corners, starts, top, average, factor,
    R: tl.constexpr, LOCAL: tl.constexpr, GLOBAL: tl.constexpr, WORDS: tl.constexpr,
    WIDE: tl.constexpr, CONTEXTS: tl.constexpr, LIMIT: tl.constexpr, STUDENT: tl.constexpr,
    POWER: tl.constexpr, SCALE: tl.constexpr, BACKWARD: tl.constexpr, TO_INPUT: tl.constexpr,
):  # fmt: skip
    """Loop over the distinct samples of each context, in the order of `sample`."""
    first = context * ((1 << R) + LOCAL + GLOBAL)
    words = ()
    for word in tl.static_range(WORDS):
        words = words + (tl.zeros([CONTEXTS], tl.int32),)
    for sample in range(1 << R):
        index = ()
        for axis in tl.static_range(R):
            up = tl.minimum((sample >> (R - 1 - axis)) & 1, sizes[axis] - 1)
            index = index + (corners[axis] + up,)
        inside, before, words = _look_up(index, starts, sizes, spans, words, R, WORDS)
        sums = _add(
            sums, index, live & (before == 0), x, to_x, strides, centres, precisions, top,
            average, factor, R, LIMIT, STUDENT, POWER, SCALE, BACKWARD, TO_INPUT,
        )  # fmt: skip
    for sample in range(LOCAL):
        index = _sample_box(seed, first + (1 << R) + sample, starts, spans, R)
        inside, before, words = _look_up(index, starts, sizes, spans, words, R, WORDS)
        sums = _add(
            sums, index, live & (before == 0), x, to_x, strides, centres, precisions, top,
            average, factor, R, LIMIT, STUDENT, POWER, SCALE, BACKWARD, TO_INPUT,
        )  # fmt: skip
    nowhere = ()
    for axis in tl.static_range(R):
        nowhere = nowhere + (0,)
    place = tl.arange(0, WIDE)[:, None]
    seen = tl.full([WIDE, CONTEXTS], -1, tl.int32)
    for sample in range(GLOBAL):
        index = _sample_box(seed, first + (1 << R) + LOCAL + sample, nowhere, sizes, R)
        inside, before, words = _look_up(index, starts, sizes, spans, words, R, WORDS)
        number = index[0]
        for axis in tl.static_range(1, R):
            number = number * sizes[axis] + index[axis]
        # Repeats inside the box are found by their cells, the others by their flat indices.
        number = tl.where(inside, -2, number)
        met = tl.max((seen == number[None, :]).to(tl.int32), 0) != 0
        seen = tl.where(place == sample, tl.where(inside, -1, number)[None, :], seen)
        sums = _add(
            sums, index, live & (before == 0) & (met == 0), x, to_x, strides, centres, precisions,
            top, average, factor, R, LIMIT, STUDENT, POWER, SCALE, BACKWARD, TO_INPUT,
        )  # fmt: skip
    return sums


@triton.jit
def _gather(
    means, variances, values, x, base, seed, out, averages, normalisers, strides, sizes, spans,
    count, contexts, n,
    R: tl.constexpr, LOCAL: tl.constexpr, GLOBAL: tl.constexpr, WORDS: tl.constexpr,
    WIDE: tl.constexpr, LIMIT: tl.constexpr, STUDENT: tl.constexpr, POWER: tl.constexpr,
    SCALE: tl.constexpr, FARTHEST: tl.constexpr, SHARPEST: tl.constexpr, WIDEST: tl.constexpr,
    CONTEXTS: tl.constexpr,
):  # fmt: skip
    context = tl.program_id(0).to(tl.int64) * CONTEXTS + tl.arange(0, CONTEXTS)
    live = context < count
    centres, precisions, corners, starts, top = _prepare(
        means, variances, context, live, sizes, spans,
        R, LIMIT, STUDENT, POWER, SCALE, FARTHEST, SHARPEST, WIDEST,
    )  # fmt: skip
    here = context // contexts * n + tl.load(base + context % contexts, mask=live, other=0)
    none = tl.zeros_like(top)
    normaliser, average = _walk(
        (none, none), tl.load(seed), context, live, x + here, x, strides, sizes, spans,
        centres, precisions, corners, starts, top, none, none,
        R, LOCAL, GLOBAL, WORDS, WIDE, CONTEXTS, LIMIT, STUDENT, POWER, SCALE, False, False,
    )  # fmt: skip
    average = average / normaliser
    value = tl.load(values + context, mask=live, other=0)
    tl.store(out + context, average * value, mask=live)
    tl.store(averages + context, average, mask=live)
    tl.store(normalisers + context, normaliser, mask=live)


@triton.jit
def _gather_backward(
    grads, means, variances, values, x, base, seed, averages, normalisers,
    to_means, to_variances, to_values, to_x, strides, sizes, spans, count, contexts, n,
    R: tl.constexpr, LOCAL: tl.constexpr, GLOBAL: tl.constexpr, WORDS: tl.constexpr,
    WIDE: tl.constexpr, LIMIT: tl.constexpr, STUDENT: tl.constexpr, POWER: tl.constexpr,
    SCALE: tl.constexpr, FARTHEST: tl.constexpr, SHARPEST: tl.constexpr, WIDEST: tl.constexpr,
    CONTEXTS: tl.constexpr, TO_INPUT: tl.constexpr,
):  # fmt: skip
    context = tl.program_id(0).to(tl.int64) * CONTEXTS + tl.arange(0, CONTEXTS)
    live = context < count
    centres, precisions, corners, starts, top = _prepare(
        means, variances, context, live, sizes, spans,
        R, LIMIT, STUDENT, POWER, SCALE, FARTHEST, SHARPEST, WIDEST,
    )  # fmt: skip
    here = context // contexts * n + tl.load(base + context % contexts, mask=live, other=0)
    grad = tl.load(grads + context, mask=live, other=0)
    value = tl.load(values + context, mask=live, other=0)
    average = tl.load(averages + context, mask=live, other=0)
    normaliser = tl.load(normalisers + context, mask=live, other=1)
    tl.store(to_values + context, grad * average, mask=live)
    sums = ()
    for moment in tl.static_range(2 * R):
        sums = sums + (tl.zeros_like(top),)
    sums = _walk(
        sums, tl.load(seed), context, live, x + here, to_x + here, strides, sizes, spans,
        centres, precisions, corners, starts, top, average, grad * value / normaliser,
        R, LOCAL, GLOBAL, WORDS, WIDE, CONTEXTS, LIMIT, STUDENT, POWER, SCALE, True, TO_INPUT,
    )  # fmt: skip
    for axis in tl.static_range(R):
        raw = context * R + axis
        mean = tl.load(means + raw, mask=live, other=0)
        variance = tl.load(variances + raw, mask=live, other=1)
        precision = precisions[axis] / SCALE
        # Clamped numbers have no gradient.
        to_mean = tl.where(tl.abs(mean) > FARTHEST, 0, sums[2 * axis] * precision)
        to_variance = sums[2 * axis + 1] * precision * precision * 0.5
        tl.store(to_means + raw, to_mean, mask=live)
        tl.store(to_variances + raw, tl.where(variance < SHARPEST, 0, to_variance), mask=live)
