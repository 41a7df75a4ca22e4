"""What soft sorting promises: continuity, order, stochastic matrices, limits and gradients."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import LargestStorage, pairwise, seeds, sizes_kept
from tests.sorting.soft import FUNCTIONS, functions, gradient, numbers, payload_of
from torch.autograd import gradcheck, gradgradcheck

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

sizes = st.sampled_from([*range(1, 10), 16, 17, 33, 100])
tails = st.sampled_from(["light", "heavy"])
temperatures = st.sampled_from([None, 1e-3, 0.5, 30.0])


def test_two_elements_by_hand():
    """F(1) = 1 − e⁻¹ / 2, and S(b) = 1 in the middle, where F is F(1/2)."""
    x = torch.tensor([2.0, 1.0], dtype=torch.float64)
    far, near = (1 - torch.exp(-torch.tensor(t, dtype=torch.float64)) / 2 for t in (1.0, 0.5))
    torch.testing.assert_close(soft_rank(x, temperature=1.0), torch.stack([far, 1 - far]))
    p = torch.stack([1 - near, near])
    want = torch.stack([p, p.flip(0)])
    torch.testing.assert_close(soft_permutation(x, temperature=1.0), want)
    torch.testing.assert_close(soft_topk_mask(x, 1, temperature=1.0), want[1])


@given(n=sizes, seed=seeds, tails=tails, temperature=temperatures, descending=st.booleans())
def test_all_functions_follow_from_one_matrix(n, seed, tails, temperature, descending):
    how: dict[str, Any] = {"temperature": temperature, "tails": tails}
    x = numbers(2, n, seed=seed)
    p = soft_permutation(x, descending=descending, **how)
    ordered = soft_sort(x, descending=descending, **how)
    torch.testing.assert_close((p @ x.unsqueeze(-1)).squeeze(-1), ordered)
    payload = payload_of(x)
    got = sort_by(x, payload, descending=descending, **how)
    torch.testing.assert_close(got, p @ payload)
    top = soft_topk(x, (n + 1) // 2, largest=descending, **how)
    torch.testing.assert_close(top.values, ordered[:, : (n + 1) // 2])
    assert torch.equal(top.indices[:, 0], (x if descending else -x).argmax(-1))
    if temperature is not None:  # that of a gate has another default
        mask = soft_topk_mask(x, n // 2, largest=descending, **how)
        torch.testing.assert_close(mask, p[:, : n // 2].sum(-2))
    for q in (0, n - 1):
        got = soft_quantile(x, q / max(1, n - 1), **how)
        torch.testing.assert_close(got, soft_sort(x, **how)[:, q])
    torch.testing.assert_close(soft_rank(-x, **how), n - 1 - soft_rank(x, **how))


@given(n=sizes, seed=seeds, tails=tails, temperature=temperatures)
def test_permutations_are_doubly_stochastic_and_results_in_order(n, seed, tails, temperature):
    how: dict[str, Any] = {"temperature": temperature, "tails": tails}
    x = numbers(n, seed=seed) ** 3
    p, ones = soft_permutation(x, **how), torch.ones(n, dtype=torch.float64)
    assert (p >= -1e-15).all()
    torch.testing.assert_close(p.sum(0), ones)
    torch.testing.assert_close(p.sum(1), ones)
    if tails == "light":  # whose density is log-concave
        assert (soft_sort(x, **how).diff() >= -1e-12 * x.abs().max()).all()
    k = n / 3
    mask = soft_topk_mask(x, k, **how)
    assert ((mask >= 0) & (mask <= 1)).all()
    torch.testing.assert_close(mask.sum(), ones[0] * k)
    torch.testing.assert_close(soft_rank(x, **how).sum(), ones[0] * (n * (n - 1) / 2))


@given(n=sizes, seed=seeds, name=st.sampled_from(list(FUNCTIONS)), temperature=temperatures)
def test_results_do_not_depend_on_the_order_of_elements(n, seed, name, temperature):
    x, function = numbers(n, seed=seed).mul(2).round(), FUNCTIONS[name]
    order = torch.randperm(n)
    got, want = function(x[order], temperature=temperature), function(x, temperature=temperature)
    if name == "sort_by":
        got = sort_by(x[order], payload_of(x)[order], temperature=temperature)
    if name in ("rank", "permutation", "topk_mask"):
        want = want[..., order]
    torch.testing.assert_close(got, want)


@functions
@pytest.mark.parametrize("n", [2, 3, 8, 32, 200])
@pytest.mark.parametrize("temperature", [None, 0.3])
def test_results_are_continuous_where_keys_meet(function, n, temperature):
    x = numbers(n)
    x[1] = x[0]  # in n = 2 with the default, the one discontinuity: both keys meet
    if n == 2 and temperature is None:
        return
    before, after = x.clone(), x.clone()
    before[1] -= 1e-9
    after[1] += 1e-9
    change = function(after, temperature=temperature) - function(before, temperature=temperature)
    assert change.abs().max() < 1e-6


def test_equal_keys_are_treated_alike():
    x = torch.tensor([3.0, 1.0, 3.0, 1.0, 1.0, 2.0])
    ranks, p = soft_rank(x), soft_permutation(x)
    for i in (0, 1):
        same = x == x[i]
        assert (ranks[same] == ranks[i]).all()
        torch.testing.assert_close(p[:, same], p[:, i : i + 1].expand(-1, int(same.sum())))
    torch.testing.assert_close(soft_permutation(torch.zeros(4)), torch.full((4, 4), 0.25))


@given(n=sizes, seed=seeds, ties=st.booleans(), descending=st.booleans(), cold=st.booleans())
def test_without_temperature_all_is_torch(n, seed, ties, descending, cold):
    x = numbers(3, n, seed=seed).float()
    x = x.round() if ties else x
    how: dict[str, Any] = {"temperature": 0.0} if cold else {"hard": True}
    values, order = x.sort(dim=-1, descending=descending, stable=True)
    assert torch.equal(soft_sort(x, descending=descending, **how), values)
    below = (x.unsqueeze(-1) > x.unsqueeze(-2)).sum(-1)
    equal = (x.unsqueeze(-1) == x.unsqueeze(-2)).sum(-1)
    ranks = below + (equal - 1) / 2
    got = soft_rank(x, descending=descending, **how)
    assert torch.equal(got, n - 1 - ranks if descending else ranks)
    assert torch.equal(soft_permutation(x, descending=descending, **how), torch.eye(n)[order])
    k, payload = (n + 1) // 2, numbers(3, n, 2).float()
    top = soft_topk(x, k, largest=descending, **how)
    assert torch.equal(top.values, values[:, :k])
    assert torch.equal(x.gather(-1, top.indices), top.values)
    taken = payload.gather(-2, order.unsqueeze(-1).expand(3, n, 2))
    assert torch.equal(sort_by(x, payload, descending=descending, **how), taken)
    mask = soft_topk_mask(x, k, largest=descending, **how)
    assert torch.equal(mask, torch.zeros(3, n).scatter(-1, order[:, :k], 1.0))
    q = torch.tensor([0.0, 0.21, 0.5, 1.0])
    torch.testing.assert_close(soft_quantile(x, q, **how), x.quantile(q, dim=-1))
    torch.testing.assert_close(soft_median(x, **how), x.quantile(0.5, dim=-1))


@given(n=sizes, seed=seeds, name=st.sampled_from(list(FUNCTIONS)))
def test_a_falling_temperature_leads_there(n, seed, name):
    x, function = numbers(n, seed=seed), FUNCTIONS[name]
    hard = function(x, temperature=0.0)
    torch.testing.assert_close(function(x, temperature=1e-9), hard, atol=1e-6, rtol=0)
    rows = torch.tensor([0.0, 0.7], dtype=torch.float64)
    if name not in ("quantile", "median"):
        got = function(x.expand(2, n), temperature=rows)
        assert torch.equal(got[0], hard)
        torch.testing.assert_close(got[1], function(x, temperature=0.7))


@functions
def test_hard_results_have_the_gradient_of_soft_ones(function):
    x = numbers(2, 7)
    torch.testing.assert_close(gradient(function, x, hard=True), gradient(function, x))
    assert gradient(function, x).any()


@given(n=sizes, seed=seeds, power=st.integers(-40, 40), shift=st.floats(-5, 5))
def test_the_default_temperature_follows_the_scale(n, seed, power, shift):
    x = numbers(n, seed=seed)
    other = (x + shift) * 2.0**power
    torch.testing.assert_close(soft_rank(other), soft_rank(x), rtol=1e-6, atol=1e-9)


def test_the_default_temperature_is_a_constant_distance_of_neighbours():
    x = torch.randperm(1000).double() * 7
    torch.testing.assert_close(soft_rank(x), soft_rank(x, temperature=7.0), rtol=1e-5, atol=1e-4)
    heat = 12**0.5 * x.std(correction=0).item() / 1000
    got, want = gradient(soft_sort, x), gradient(soft_sort, x, temperature=heat)
    torch.testing.assert_close(got, want)


ROWS = pairwise(n=[1, 2, 3, 6, 18], function=list(FUNCTIONS), temperature=[0.0, 0.7, 5.0])


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_gradients_and_theirs(row):
    function, temperature = FUNCTIONS[row["function"]], row["temperature"]
    x = numbers(row["n"], seed=row["n"]).requires_grad_()
    assert gradcheck(lambda t: function(t, temperature=temperature), x)
    if row["n"] < 7:
        assert gradgradcheck(lambda t: function(t, temperature=temperature), x)


@functions
@pytest.mark.parametrize("tails", ["light", "heavy"])
def test_gradients_of_temperatures(function, tails):
    x = numbers(2, 5).requires_grad_()
    heat = torch.tensor([0.4, 0.9], dtype=torch.float64, requires_grad=True)
    how = {"tails": tails}
    assert gradcheck(lambda x, t: function(x, temperature=t, **how), (x, heat))
    if tails == "light":
        assert gradgradcheck(lambda x, t: function(x, temperature=t, **how), (x, heat))


@pytest.mark.parametrize("function", [soft_rank, soft_median])
def test_gradients_of_weights(function):
    x, weights = numbers(2, 5).requires_grad_(), numbers(2, 5, seed=1).abs().requires_grad_()
    assert gradcheck(lambda x, w: function(x, temperature=0.5, weights=w), (x, weights))
    assert gradgradcheck(lambda x, w: function(x, temperature=0.5, weights=w), (x, weights))


def test_heavy_tails_have_a_gradient_far_away():
    x = torch.tensor([2000.0, 0.0])
    wanted = torch.tensor([0.0, 1.0])

    def loss(x: torch.Tensor, tails: Any) -> torch.Tensor:
        return (soft_rank(x, temperature=1.0, tails=tails) - wanted).square().sum()

    assert not gradient(loss, x, tails="light").any()
    assert gradient(loss, x, tails="heavy").all()


@pytest.mark.parametrize("tails", ["light", "heavy"])
def test_many_elements_need_memory_in_proportion(tails):
    n = 4096
    x = torch.randn(n, requires_grad=True)
    with LargestStorage() as largest, sizes_kept() as kept:
        (soft_sort(x, tails=tails) * soft_rank(x, tails=tails)).sum().backward()
    assert largest.bytes <= 600 * n  # a square would have 16,384 n
    assert max(kept, default=0) <= 80 * n


def test_row_sums_hold_for_many_hot_elements():
    """In float32 the sums of exponentials would leave errors of several hundredths."""
    x = torch.randn(100_000)
    torch.testing.assert_close(soft_sort(x, temperature=10.0).mean(), x.mean(), atol=1e-5, rtol=0)
    ones = sort_by(x, torch.ones(len(x), 1), temperature=10.0)
    torch.testing.assert_close(ones, torch.ones_like(ones))


def test_a_gate_selects_the_informative_inputs():
    """Regression on 100 inputs, 5 of them informative: the default temperature finds all five."""
    for seed in range(3):
        torch.manual_seed(seed)
        x, informative = torch.randn(512, 100), torch.randperm(100)[:5]
        y = x[:, informative] @ (1 + torch.rand(5))
        scores = (0.01 * torch.randn(100)).requires_grad_()
        weights = (0.1 * torch.randn(100)).requires_grad_()
        optimiser = torch.optim.Adam([scores, weights], lr=0.03)
        for _ in range(600):
            loss = ((x * soft_topk_mask(scores, 5)) @ weights - y).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        assert set(scores.topk(5).indices.tolist()) == set(informative.tolist())
