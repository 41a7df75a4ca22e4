import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import DTYPES, prefixes, seeded, seeds
from torch import Tensor

from sparsewire.ops import bound_means, bound_variances, fractions
from sparsewire.ops.bound import EDGES, Edge

# The longest axis of which every index can be reached has two bits less than its means.
RESOLVED_BITS = [(torch.float32, 22), (torch.float64, 51)]

edges = st.sampled_from(EDGES)
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.floats(-20, 20)
numbers |= st.floats(-1e-3, 0)  # wrapped, these come close to one


def as_finite(number: float, dtype: torch.dtype) -> Tensor:
    """The nearest finite number of the dtype."""
    limits = torch.finfo(dtype)
    return torch.tensor(min(max(number, limits.min), limits.max), dtype=dtype)


def raw_of(fraction: Tensor, edge: Edge) -> Tensor:
    return fraction.logit() if edge == "sigmoid" else fraction


@pytest.mark.parametrize(
    ("edge", "raw", "expected"),
    [
        ("sigmoid", [-math.inf, -math.log(3), 0.0, math.log(3), math.inf], [0, 0.25, 0.5, 0.75, 1]),
        ("clamp", [-math.inf, -0.5, 0.0, 0.25, 1.0, 1.5, math.inf], [0, 0, 0, 0.25, 1, 1, 1]),
        ("wrap", [-1.25, -1.0, -0.25, 0.0, 0.25, 1.0, 7.5], [0.75, 0, 0.75, 0, 0.25, 0, 0.5]),
    ],
)
def test_fractions_by_hand(edge, raw, expected):
    torch.testing.assert_close(fractions(torch.tensor(raw), edge), torch.tensor(expected).float())


@given(numbers, st.integers(1, 2**22), edges, st.sampled_from(DTYPES))
def test_means_never_leave_the_axis(number, size, edge, dtype):
    mean = bound_means(as_finite(number, dtype).view(1), (size,), edge)
    assert mean.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert 0 <= mean.item() <= size - 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_every_index_is_reachable_and_no_other(size, edge, dtype):
    margin = torch.finfo(dtype).eps
    wanted = torch.linspace(0, 1, size, dtype=torch.float64).clamp(margin, 1 - margin)
    raw = raw_of(wanted, edge).to(dtype).unsqueeze(-1)
    assert bound_means(raw, (size,), edge).round().flatten().tolist() == list(range(size))


@pytest.mark.parametrize(("dtype", "bits"), RESOLVED_BITS, ids=str)
@pytest.mark.parametrize("edge", EDGES)
@given(place=st.floats(0, 1), from_end=st.integers(0, 20), near_end=st.booleans())
def test_every_index_of_the_longest_axis_is_reachable(dtype, bits, edge, place, from_end, near_end):
    last = 2**bits - 1
    index = last - from_end if near_end else round(place * last)
    fraction = (index + torch.linspace(-1.5, 1.5, 61, dtype=torch.float64)) / last
    raw = raw_of(fraction.clamp(0, 1), edge).to(dtype).unsqueeze(-1)
    assert index in bound_means(raw, (2**bits,), edge).round().long()


@pytest.mark.parametrize(
    ("dtype", "bits"), [*RESOLVED_BITS, (torch.float16, 22), (torch.bfloat16, 22)], ids=str
)
@pytest.mark.parametrize("edge", EDGES)
def test_longer_axes_are_refused(dtype, bits, edge):
    raw = torch.zeros(2, 2, dtype=dtype)
    assert bound_means(raw, (3, 2**bits), edge).isfinite().all()
    with pytest.raises(ValueError, match=rf"shape\[1\] must be at most 2\*\*{bits}.*{2**bits + 1}"):
        bound_means(raw, (3, 2**bits + 1), edge)


@given(
    prefixes,
    st.lists(st.integers(1, 1000), min_size=1, max_size=6),
    st.floats(0, 10),
    st.floats(0, 10),
    seeds,
)
def test_variances_follow_their_formula(prefix, shape, scale, floor, seed):
    raw = torch.randn(prefix, generator=seeded(seed), dtype=torch.float64) * 10
    got = bound_variances(raw, shape, scale, floor)
    widths = [math.log1p(math.exp(number + 2)) for number in raw.flatten().tolist()]
    rows = [[width * size * scale + floor for size in shape] for width in widths]
    expected = torch.tensor(rows, dtype=torch.float64).view(*prefix, len(shape))
    torch.testing.assert_close(got, expected)


@given(numbers, st.sampled_from(DTYPES))
def test_variances_are_at_least_the_floor(number, dtype):
    raw = as_finite(number, dtype)
    got = bound_variances(raw, (1, 30), floor=0.25)
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert (got >= 0.25).all()
    assert (got.diff() >= 0).all()


def bounded(raw: Tensor) -> tuple[Tensor, ...]:
    means = [bound_means(raw, (5, 1, 9), edge) for edge in EDGES]
    return *means, bound_variances(raw, (5, 1, 9))


def test_gradients_of_bounds():
    raw = torch.tensor([[-0.3, 0.2, 0.9], [1.4, -2.2, 3.1]], dtype=torch.float64)
    assert torch.autograd.gradcheck(bounded, raw.requires_grad_())
    assert torch.autograd.gradgradcheck(bounded, raw)


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize(("dtype", "size"), [(torch.bfloat16, 256), (torch.float16, 1024)], ids=str)
def test_half_precision_reaches_every_index_of_the_documented_axis(edge, dtype, size):
    """All 2^16 numbers of the dtype are tried; an axis 16 times as long is not reached whole."""
    numbers = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    numbers = numbers[numbers.isfinite()].unsqueeze(-1)
    reached = [bound_means(numbers, (n,), edge).round().unique().numel() for n in (size, 16 * size)]
    assert reached[0] == size
    assert reached[1] < 16 * size
