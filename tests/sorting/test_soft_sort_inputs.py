"""What soft sorting accepts: masks, weights, special numbers, shapes, transforms; and refuses."""

import math
import re
import subprocess
import sys
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import seeds
from tests.sorting.soft import FUNCTIONS, functions, gradient, numbers, payload_of
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jvp, vmap

import sparsewire as sw
from sparsewire.sorting import (
    soft_median,
    soft_permutation,
    soft_quantile,
    soft_rank,
    soft_sort,
    soft_topk,
    soft_topk_mask,
    sort_by,
)

INF, NAN = math.inf, math.nan
names = st.sampled_from(list(FUNCTIONS))


@given(name=names, n=st.integers(1, 20), seed=seeds, hard=st.booleans(), tie=st.booleans())
def test_a_mask_equals_removing_the_elements(name, n, seed, hard, tie):
    """Whatever stands there: value and gradient; what is left is zero and has none."""
    x = numbers(n, seed=seed).round() if tie else numbers(n, seed=seed)
    mask = numbers(n, seed=seed + 1) > -0.5
    m, place = int(mask.sum()), cast(dict[str, Any], {"temperature": 0.5, "hard": hard})
    padded = torch.where(mask, x, torch.tensor([NAN, INF, 1e300])[torch.arange(n) % 3])

    def masked(t: Tensor) -> Tensor:
        if name == "sort_by":
            return sort_by(t, payload_of(x), mask=mask, **place)
        if name == "topk":
            return soft_topk(t, n // 2, mask=mask, **place).values[: m // 2]
        if name == "topk_mask":
            return soft_topk_mask(t, 0.4 * m, mask=mask, **place)[mask]
        found = FUNCTIONS[name](t, mask=mask, **place)
        if name in ("quantile", "median"):
            return found
        if name == "permutation":
            assert not found[m:].any()
            assert not found[:, ~mask].any()
            return found[:m, mask]
        assert not (found[~mask] if name == "rank" else found[m:]).any()
        return found[mask] if name == "rank" else found[:m]

    def removed(t: Tensor) -> Tensor:
        if name == "sort_by":
            filled = sort_by(t, payload_of(x)[mask], **place)
            return torch.cat([filled, filled.new_zeros(n - m, 2)])
        if name == "topk" and m:
            return soft_topk(t, m // 2, **place).values
        return FUNCTIONS[name](t, **place) if m else t

    if not m:
        return
    torch.testing.assert_close(masked(padded), removed(x[mask]))
    got = gradient(masked, padded)
    torch.testing.assert_close(got[mask], gradient(removed, x[mask]))
    assert not got[~mask].any()


@functions
@pytest.mark.parametrize("how", [{}, {"temperature": 0.0}, {"hard": True}, {"tails": "heavy"}])
def test_rows_without_a_valid_element(function, how):
    """Give zeros, quantiles NaN; never a gradient of NaN."""
    x = torch.tensor([[1.0, NAN, 2.0, INF], [3.0, 1.0, 2.0, 5.0]])
    mask = torch.tensor([[False], [True]])
    got = function(x, mask=mask, **how)
    alone = function(x[1:], **how)
    if function in (FUNCTIONS["quantile"], FUNCTIONS["median"]):
        assert got[..., 0].isnan().all()
        torch.testing.assert_close(got[..., 1:], alone)
    else:
        assert not got[0].any()
        torch.testing.assert_close(got[1:], alone)
    assert gradient(lambda t: function(t, mask=mask, **how).nan_to_num(), x).isfinite().all()


@given(seed=seeds, n=st.integers(1, 8), temperature=st.sampled_from([None, 0.0, 0.5]))
def test_weights_equal_repetition(seed, n, temperature):
    x = numbers(n, seed=seed)
    weights = torch.randint(0, 4, (n,))
    weights[0] = 2
    many, how = x.repeat_interleave(weights), cast(dict[str, Any], {"temperature": temperature})
    for function in (soft_median, lambda t, **more: soft_quantile(t, [0.0, 0.3, 1.0], **more)):
        got = function(x, weights=weights, **how)
        torch.testing.assert_close(got, function(many, **how))
    ranks = soft_rank(x, weights=weights, **how)
    want = soft_rank(many, **how)
    # What is below an element of weight 2 is below both, of which one is below the other.
    shares = torch.repeat_interleave(ranks + (weights - 1) / 2, weights)
    torch.testing.assert_close(shares, want)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("temperature", [None, 1e-30, 1e-3, 1.0, 1e38, 0.0])
def test_special_numbers_are_where_torch_puts_them(descending, temperature):
    x = torch.tensor([3.0, NAN, -INF, 1.0, INF, 2.0, -INF, NAN, 0.5])
    got = soft_sort(x, descending=descending, temperature=temperature)
    want = x.sort(descending=descending).values
    special = ~want.isfinite()
    torch.testing.assert_close(got[special], want[special], equal_nan=True)
    assert got[~special].isfinite().all()
    ranks = soft_rank(x, descending=descending, temperature=temperature)
    assert ranks[x == -INF].tolist() == ([8 - 0.5] * 2 if descending else [0.5] * 2)
    assert ranks[x.isnan()].tolist() == ([0.5] * 2 if descending else [7.5] * 2)
    for name, function in FUNCTIONS.items():
        if name not in ("quantile", "median"):  # which NaN makes NaN
            slope = gradient(
                lambda t, f=function: f(t, temperature=temperature).nan_to_num(posinf=0, neginf=0),
                x,
            )
            assert slope.isfinite().all(), name


def test_quantiles_of_special_numbers():
    x = torch.tensor([[1.0, INF, 2.0, 3.0], [1.0, NAN, 2.0, 3.0], [-INF, -INF, 0.0, 1.0]])
    got = soft_quantile(x, [0.0, 0.3, 1.0], temperature=0.01)
    assert got.isfinite().tolist() == [[True, False, False]] * 1 + [[True, False, False]] * 1 + [
        [False, False, True]
    ]
    assert torch.equal(got[:, 1].isnan(), torch.ones(3, dtype=torch.bool))
    assert (got[2, 0], got[0, 2]) == (INF, -INF)


@functions
@pytest.mark.parametrize(
    ("temperature", "tails"),
    [(None, "light"), (None, "heavy"), (1e-30, "light"), (1.0, "heavy"), (1e30, "light")],
)
def test_values_and_gradients_are_finite_whatever_comes(function, temperature, tails):
    x = torch.tensor(
        [[3e38, -3e38, 1.0, 0.0], [1e-38, -1e-38, 0.0, 0.0], [5.0] * 4, [1e30, 1.0, 1.0, 2.0]]
    )
    got = function(x, temperature=temperature, tails=tails)
    assert got.isfinite().all()
    assert gradient(function, x, temperature=temperature, tails=tails).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@functions
def test_every_dtype(function, dtype):
    n = 4096 if function is not soft_permutation else 64
    x = numbers(n).to(dtype)
    got = function(x)
    assert got.dtype == dtype
    assert got.isfinite().all()
    assert gradient(function, x).isfinite().all()
    wide = function(x.double())
    exact = dict.fromkeys([torch.float16, torch.bfloat16], 1e-2).get(dtype, 1e-4)
    torch.testing.assert_close(got.double(), wide, rtol=exact, atol=exact)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4), (1,), (2, 1), ()], ids=str)
def test_no_and_single_elements(shape):
    x = torch.ones(shape).requires_grad_()
    every: list[dict[str, Any]] = [{}, {"temperature": 0.0}, {"hard": True}]
    for how in every:
        assert torch.equal(soft_sort(x, **how), x)
        assert torch.equal(soft_rank(x, **how), torch.zeros_like(x) * 0)
        n = shape[-1] if shape else 1
        assert soft_permutation(x, **how).shape == (*shape[:-1], n, n)
        assert soft_topk(x, n, **how).values.shape == shape
        assert torch.equal(soft_topk_mask(x, n, **how), torch.ones_like(x))
        if n:
            assert soft_median(x, **how).shape == shape[:-1]
        if shape:
            assert sort_by(x, torch.ones(*shape, 2, 0), **how).shape == (*shape, 2, 0)


@functions
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_dimensions_and_temperatures_by_row(function, dim):
    x = numbers(3, 4, 5)
    kept = [1 if d == dim % 3 else size for d, size in enumerate(x.shape)]
    heat = numbers(*kept, seed=2).abs()
    if function not in (FUNCTIONS["sort_by"], FUNCTIONS["topk"], FUNCTIONS["topk_mask"]):
        got = function(x, dim=dim, temperature=heat)
        moved, last = x.movedim(dim, -1), heat.movedim(dim, -1)
        want = function(moved, temperature=last)
        if function in (soft_sort, soft_rank):
            want = want.movedim(-1, dim)
        torch.testing.assert_close(got, want)
        want = want.movedim(dim, -1) if function in (soft_sort, soft_rank) else want
        torch.testing.assert_close(got, function(x, dim=dim, temperature=heat.squeeze(dim)))
        one = function(moved[1, 2], temperature=last[1, 2, 0].item())
        found = got[:, 1, 2] if function is FUNCTIONS["quantile"] else want[1, 2]
        torch.testing.assert_close(found, one)


def test_sizes_of_gates_by_row_and_their_gradient():
    x = numbers(2, 6)
    k = torch.tensor([1.5, 4.0], dtype=torch.float64, requires_grad=True)
    got = soft_topk_mask(x, k)
    torch.testing.assert_close(got.sum(-1), k)
    assert torch.autograd.gradcheck(lambda k: soft_topk_mask(x, k), k)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@functions
def test_transforms_agree_with_batches_and_autograd(function):
    def call(t: Tensor) -> Tensor:
        return function(t, temperature=0.7)

    x, v = numbers(3, 7), numbers(3, 7, seed=1)
    batch = call(x).mT if function is FUNCTIONS["quantile"] else call(x)
    torch.testing.assert_close(vmap(call)(x), batch)
    leaf = x.clone().requires_grad_()
    (want,) = torch.autograd.grad(call(leaf).square().sum(), leaf)
    torch.testing.assert_close(vmap(grad(lambda t: call(t).square().sum()))(x), want)
    jacobian = cast(Tensor, torch.autograd.functional.jacobian(call, x))
    want = torch.tensordot(jacobian, v, 2)
    torch.testing.assert_close(jvp(call, (x,), (v,))[1], want)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(call(forward_ad.make_dual(x, v))).tangent
    torch.testing.assert_close(tangent, want)
    want = torch.autograd.functional.hessian(lambda t: call(t).square().sum(), x[0])
    torch.testing.assert_close(hessian(lambda t: call(t).square().sum())(x[0]), want)


# In a process of its own: the checks of annotations that tests run with cannot be compiled.
COMPILED = """
import torch
import sparsewire as sw

torch.manual_seed(0)
x = torch.randn(2, 40, dtype=torch.float64, requires_grad=True)
mask = x.detach() > -1
for backend, function in (
    ("aot_eager", sw.soft_sort),
    ("aot_eager", sw.soft_rank),
    ("eager", lambda x: sw.soft_permutation(x, tails="heavy")),
    ("aot_eager", lambda x: sw.sort_by(x, x.detach().cos().unsqueeze(-1), mask=mask)),
    ("eager", lambda x: sw.soft_topk(x, 2, hard=True).values),
    ("aot_eager", lambda x: sw.soft_topk_mask(x, 2.5)),
    ("aot_eager", lambda x: sw.soft_quantile(x, [0.2, 0.7], dim=0)),
    ("aot_eager", lambda x: sw.order_loss(x, x.detach().cos().round())),
):
    results = []
    for each in (torch.compile(function, backend=backend, fullgraph=True), function):
        y = each(x)
        weights = torch.arange(y.numel()).view(y.shape).double().cos()
        results.append((y, torch.autograd.grad(y, x, weights)[0]))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)
"""


def test_compiled_functions_do_the_same_without_a_warning():
    """But for what torch warns of itself."""
    ours = [sys.executable, "-W", "error::UserWarning", "-c", COMPILED]
    result = subprocess.run(ours, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]


def test_shapes_are_known_without_numbers():
    x = torch.empty(2, 7, device="meta")
    assert [f(x).shape for f in (soft_sort, soft_rank, soft_permutation)] == [
        (2, 7),
        (2, 7),
        (2, 7, 7),
    ]


X = torch.zeros(2, 4)
ERRORS: list[tuple[Any, str]] = [
    (lambda: soft_sort(X.long()), "TypeError: x must have a floating-point dtype; got torch"),
    (lambda: soft_topk(X.long(), 2), "TypeError: x must have a floating-point dtype"),
    (lambda: sort_by(X.long(), X), "TypeError: keys must have a floating-point dtype"),
    (lambda: sort_by(X, X.long()), "TypeError: payload must have a floating-point dtype"),
    (lambda: soft_sort(cast(Any, [1.0])), "TypeError: x must be a tensor; got list"),
    (lambda: soft_sort(X, 2), r"IndexError: dim must be a dimension of x, \(2, 4\); got 2"),
    (lambda: sort_by(X, X, -3), r"IndexError: dim must be a dimension of keys, \(2, 4\); got -3"),
    (lambda: sort_by(X, X[0]), r"ValueError: payload must begin with the shape of keys, \(2, 4\)"),
    (lambda: sort_by(X, X.to("meta")), "ValueError: keys, payload must be on one device"),
    (lambda: soft_topk(X, 5), "ValueError: k must be 0 to 4, the elements of the dimension"),
    (lambda: soft_topk(X, -1), "ValueError: k must be at least 0; got -1"),
    (lambda: soft_topk_mask(X, 4.5), "ValueError: k must be between 0 and 4; got 4.5"),
    (lambda: soft_topk_mask(X, X[:, 0] - 1), "ValueError: k must be between 0 and 4; got -1"),
    (lambda: soft_quantile(X, 1.5), "ValueError: q must be between 0 and 1; got 1.5"),
    (lambda: soft_quantile(X, [0.5, -1.0]), "ValueError: q must be between 0 and 1; got -1.0"),
    (lambda: soft_quantile(X, X), r"ValueError: q must have at most one dimension; got \(2, 4\)"),
    (lambda: soft_quantile(X, X[0] + 2), r"ValueError: q must be between 0 and 1; got \[2.0, "),
    (lambda: soft_median(X[:, :0]), "ValueError: x must have an element in the dimension"),
    (lambda: soft_sort(X, temperature=-1.0), "ValueError: temperature must be between 0 and"),
    (lambda: soft_sort(X, temperature=NAN), "ValueError: temperature must be between 0 and"),
    (lambda: soft_sort(X, temperature=X[:, 0] + NAN), "ValueError: temperature .* got nan"),
    (lambda: soft_rank(X, temperature=X[:, 0] - 1), "ValueError: temperature .* got -1"),
    (lambda: soft_rank(X, temperature=X[:, 0] + INF), "ValueError: temperature .* got inf"),
    (
        lambda: soft_sort(X, temperature=X[0]),
        r"ValueError: temperature must be a number, or .* size 1 there, \(2, 1\); got \(4,\)",
    ),
    (lambda: soft_sort(X, temperature=X), "ValueError: temperature must be a number, or"),
    (
        lambda: soft_sort(X, tails=cast(Any, "long")),
        "ValueError: tails must be one of 'light', 'heavy'; got 'long'",
    ),
    (lambda: soft_sort(X, mask=X), "TypeError: mask must be a tensor of torch.bool"),
    (
        lambda: soft_sort(X, mask=X[:, :3] > 0),
        r"ValueError: mask must have a shape that broadcasts to that of x, \(2, 4\); got \(2, 3\)",
    ),
    (lambda: soft_rank(X, weights=cast(Any, 2)), "TypeError: weights must be a tensor; got int"),
    (lambda: soft_rank(X, weights=X - 1), "ValueError: weights must be finite and at least 0"),
    (lambda: soft_rank(X, weights=X + NAN), "ValueError: weights .* got nan"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises((ValueError, TypeError, IndexError)) as info:
        call()
    assert re.match(message, f"{info.typename}: {info.value}")


def test_engines_are_chosen_by_name():
    x = numbers(3, 50)
    results = []
    for name in ("reference", "chunked", "numpy", "auto"):
        with sw.engine(cast(Any, name)):
            results.append(soft_sort(x))
    for got in results[1:]:
        torch.testing.assert_close(got, results[0])
