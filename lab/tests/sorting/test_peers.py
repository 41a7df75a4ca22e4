"""Other people's soft sorts: by their formulas and by plain loops, and what they promise."""

import itertools
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from scipy import stats
from tests.helpers import seeded
from torch import Tensor
from torch.autograd import gradcheck

from sparsewire_lab.sorting.peers import (
    network_sort,
    neural_sort,
    projected_ranks,
    sinkhorn_sort,
    soft_sort_matrix,
)

Sorter = Callable[..., Tensor]

SORTERS: dict[str, Sorter] = {
    "neuralsort": neural_sort,
    "softsort": soft_sort_matrix,
    "sinkhorn": sinkhorn_sort,
    "odd_even": network_sort,
    "bitonic": partial(network_sort, network="bitonic"),
}
of_every_sorter = pytest.mark.parametrize("name", SORTERS)
of_every_network = pytest.mark.parametrize("network", ["odd_even", "bitonic"])


def some_keys(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=seeded(0))


# What all of them do.


@of_every_sorter
def test_keys_far_apart_are_sorted(name):
    """Every order of four, and some of eight; the smallest comes first."""
    # As far apart as keys can well be: 20 iterations of Sinkhorn do not settle beyond that.
    apart, loose = (20.0, 0.03) if name == "sinkhorn" else (1e4, 1e-3)
    orders = torch.tensor(list(itertools.permutations(range(4))), dtype=torch.float64)
    matrix = SORTERS[name](orders * apart)
    want = torch.nn.functional.one_hot(orders.long(), 4).mT.double()
    torch.testing.assert_close(matrix, want, rtol=0, atol=loose)
    orders = torch.stack([torch.randperm(8, generator=seeded(seed)) for seed in range(30)])
    matrix = SORTERS[name](orders.double() * apart)
    assert torch.equal(matrix.argmax(-1), orders.argsort(-1))


@of_every_sorter
@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_rows_and_columns_sum_to_one_where_it_is_promised(name, n):
    matrix = SORTERS[name](some_keys(5, n))
    assert matrix.shape == (5, n, n)
    assert matrix.min() >= 0
    loose = 1e-3 if name == "sinkhorn" else 1e-12
    ones = torch.ones(5, n, dtype=torch.float64)
    torch.testing.assert_close(matrix.sum(-1), ones, rtol=0, atol=loose)
    if name in ("sinkhorn", "odd_even", "bitonic"):
        torch.testing.assert_close(matrix.sum(-2), ones, rtol=0, atol=1e-12)
    elif n > 2:
        assert (matrix.sum(-2) - ones).abs().max() > 0.01


@pytest.mark.parametrize("name", [*SORTERS, "ranks"])
@pytest.mark.parametrize("batch", [(), (1,), (2, 3), (0,)], ids=str)
def test_every_set_is_sorted_on_its_own(name, batch):
    function = SORTERS.get(name, projected_ranks)
    keys, each = some_keys(*batch, 4), (4,) if name == "ranks" else (4, 4)
    result = function(keys)
    assert result.shape == (*batch, *each)
    for one, found in zip(keys.reshape(-1, 4), result.reshape(-1, *each), strict=True):
        torch.testing.assert_close(function(one), found)


@of_every_sorter
def test_gradients_are_those_of_differences_and_finite_where_keys_are_equal(name):
    keys = some_keys(2, 4).requires_grad_()
    assert gradcheck(SORTERS[name], keys)
    (gradient,) = torch.autograd.grad(SORTERS[name](keys)[:, 0].square().sum(), keys)
    assert gradient.isfinite().all()
    assert gradient.abs().min() > 0
    keys = torch.zeros(4, requires_grad=True)
    (gradient,) = torch.autograd.grad(SORTERS[name](keys)[0].square().sum(), keys)
    assert gradient.isfinite().all()


# Each by its formula.


@pytest.mark.parametrize("keys", [[0.3, -1.2, 0.9], [1.0, 1.0, 0.0], [2.0, 1.5, -0.5, 0.1]])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_neural_sort_and_soft_sort_are_their_formulas(keys, temperature):
    """NeuralSort's row i of the largest first: ((n + 1 − 2 i) s_j − Σ_k |s_j − s_k|) / τ."""
    n = len(keys)
    apart = [sum(abs(s - other) for other in keys) for s in keys]
    neural = [
        [(n + 1 - 2 * i) * s - far for s, far in zip(keys, apart, strict=True)]
        for i in range(n, 0, -1)
    ]
    soft = [[-abs(t - s) for s in keys] for t in sorted(keys)]
    for sorter, scores in ((neural_sort, neural), (soft_sort_matrix, soft)):
        want = (torch.tensor(scores, dtype=torch.float64) / temperature).exp()
        found = sorter(torch.tensor(keys, dtype=torch.float64), temperature)
        torch.testing.assert_close(found, want / want.sum(-1, keepdim=True))


@pytest.mark.parametrize("iterations", [0, 1, 3, 50])
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_sinkhorn_divides_by_the_sums_of_rows_and_then_of_columns(iterations, temperature):
    keys = [0.3, -1.2, 0.9]
    matrix = [[math.exp(place * s / temperature) for s in keys] for place in (-1, 0, 1)]
    for _ in range(iterations):
        matrix = [[value / sum(row) for value in row] for row in matrix]
        columns = [sum(column) for column in zip(*matrix, strict=True)]
        matrix = [[v / total for v, total in zip(row, columns, strict=True)] for row in matrix]
    found = sinkhorn_sort(
        torch.tensor(keys, dtype=torch.float64), temperature, iterations=iterations
    )
    torch.testing.assert_close(found, torch.tensor(matrix, dtype=torch.float64))


@pytest.mark.parametrize("noise", [1.0, 0.5])
def test_the_noise_of_sinkhorn_is_gumbel_s(noise):
    """Of equal keys, without normalising: what is left are the exponentials of the noise."""
    drawn = sinkhorn_sort(torch.zeros(300, 5), noise=noise, iterations=0).log() / noise
    law = stats.gumbel_r()
    assert stats.kstest(drawn.flatten().numpy(), law.cdf).pvalue > 0.001
    same = sinkhorn_sort(torch.zeros(300, 5), iterations=0)
    assert (same == 1).all()


def test_the_noise_of_sinkhorn_is_heated_with_the_scores():
    keys = some_keys(3, 4)
    torch.manual_seed(1)
    found = sinkhorn_sort(keys, 2.0, noise=1.0)
    torch.manual_seed(1)
    torch.testing.assert_close(sinkhorn_sort(keys / 2, 1.0, noise=0.5), found)


# Networks.


def odd_even(n: int) -> list[tuple[int, int]]:
    """Pairs of an odd-even transposition sort, the place of the smaller first."""
    return [(i, i + 1) for layer in range(n) for i in range(n - 1) if i % 2 == layer % 2]


def bitonic(first: int, n: int, up: bool = True) -> list[tuple[int, int]]:
    """Pairs of Batcher's bitonic sort, by recursion: sort one half up and one down, then merge."""
    if n == 1:
        return []
    half = n // 2
    sort = bitonic(first, half, True) + bitonic(first + half, half, False)
    return sort + merge(first, n, up)


def merge(first: int, n: int, up: bool) -> list[tuple[int, int]]:
    if n == 1:
        return []
    half = n // 2
    pairs = [(first + i, first + half + i) for i in range(half)]
    pairs = pairs if up else [(high, low) for low, high in pairs]
    return pairs + merge(first, half, up) + merge(first + half, half, up)


def exchanged(keys: list[float], pairs: list[tuple[int, int]], steepness: float) -> Tensor:
    """The matrix of soft exchanges, one pair after the other."""
    n, keys = len(keys), list(keys)
    rows = [[float(i == j) for j in range(n)] for i in range(n)]
    for low, high in pairs:
        a, b = keys[low], keys[high]
        swap = 0.5 - math.atan(steepness * (b - a)) / math.pi
        keys[low], keys[high] = (1 - swap) * a + swap * b, swap * a + (1 - swap) * b
        first, second = rows[low], rows[high]
        rows[low] = [(1 - swap) * x + swap * y for x, y in zip(first, second, strict=True)]
        rows[high] = [swap * x + (1 - swap) * y for x, y in zip(first, second, strict=True)]
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize(
    ("network", "n"),
    [*(("odd_even", n) for n in range(1, 9)), *(("bitonic", n) for n in (1, 2, 4, 8, 16))],
)
@pytest.mark.parametrize("steepness", [0.5, 10.0])
def test_networks_are_exchanges_one_after_the_other(network, n, steepness):
    keys = some_keys(3, n)
    found = network_sort(keys, steepness, network)
    pairs = odd_even(n) if network == "odd_even" else bitonic(0, n)
    for one, matrix in zip(keys.tolist(), found, strict=True):
        torch.testing.assert_close(matrix, exchanged(one, pairs, steepness))


@of_every_network
@pytest.mark.parametrize("n", [2, 4, 8])
def test_hard_exchanges_sort_everything(network, n):
    """By the principle of zeros and ones, for all of them."""
    for bits in itertools.product((0.0, 1.0), repeat=n):
        keys = torch.tensor(bits, dtype=torch.float64)
        inorder = network_sort(keys, 1e9, network) @ keys
        torch.testing.assert_close(inorder, keys.sort().values, rtol=0, atol=1e-6)


@pytest.mark.parametrize("n", [3, 5, 6, 12])
def test_a_bitonic_network_takes_powers_of_two_only(n):
    message = f"^keys must be a power of two for a bitonic network; got {n}$"
    with pytest.raises(ValueError, match=message):
        network_sort(torch.zeros(n), network="bitonic")


@of_every_network
def test_a_network_can_be_used_after_inference(network):
    """Its pairs are kept; those made without gradients must serve with them too.

    No other test has 32 keys.
    """
    with torch.inference_mode():
        network_sort(some_keys(32), network=network)
    keys = some_keys(32).requires_grad_()
    network_sort(keys, network=network)[0, 0].backward()
    assert keys.grad is not None
    assert keys.grad.any()


# Ranks by projection.


@pytest.mark.parametrize("temperature", [0.05, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 6])
def test_projected_ranks_are_the_nearest_mixture_of_permutations(n, temperature):
    """What is nearest in a convex set: it is of the set, and no corner lies on the side of the
    point that is projected."""
    points = some_keys(20, n)
    ranks = projected_ranks(points, temperature)
    corners = torch.tensor(list(itertools.permutations(range(n))), dtype=torch.float64)
    assert is_mixture(ranks)
    toward = (points / temperature - ranks) @ corners.T
    best = ((points / temperature - ranks) * ranks).sum(-1, keepdim=True)
    assert (toward <= best + 1e-9).all()


def is_mixture(ranks: Tensor) -> bool:
    """Rado: any k of the numbers sum to no less than the k smallest ranks, all to all of them."""
    n = ranks.shape[-1]
    sums = ranks.sort(dim=-1).values.cumsum(-1)
    least = torch.arange(n, dtype=ranks.dtype).cumsum(-1)
    whole = torch.allclose(sums[..., -1], least[-1].expand(sums.shape[:-1]))
    return whole and bool((sums >= least - 1e-9).all())


def test_projected_ranks_of_none_and_two_keys_are_known():
    """½ ± half the difference, up to a difference of 1."""
    keys = torch.tensor([[0.0, 0.6], [0.6, 0.0], [0.0, 7.0], [2.0, 2.0]])
    want = torch.tensor([[0.2, 0.8], [0.8, 0.2], [0.0, 1.0], [0.5, 0.5]])
    torch.testing.assert_close(projected_ranks(keys), want)
    torch.testing.assert_close(projected_ranks(4 * keys, 4.0), want)
    assert projected_ranks(torch.zeros(3, 0)).shape == (3, 0)


def test_projected_ranks_have_the_gradients_of_differences():
    for temperature in (0.2, 1.0, 3.0):
        keys = some_keys(4, 6).requires_grad_()
        assert gradcheck(partial(projected_ranks, temperature=temperature), keys)
