"""Peers compute what they should."""

import pytest
import torch
from lab.tests.bench.rows import sort_case

import sparsewire as sw
from sparsewire_lab.bench import cases, exactness, peers
from sparsewire_lab.bench.cases import OURS, Case
from sparsewire_lab.bench.perform import exact_results
from sparsewire_lab.bench.problems import sorting_problem, spread_problem

CPU = torch.device("cpu")


def run(case: str, engine: str, *inputs: torch.Tensor) -> torch.Tensor:
    return peers.engine_of(sort_case(case, engine))(*inputs)


@pytest.mark.parametrize("n", [2, 7, 33])
@pytest.mark.parametrize("name", peers.SPREAD)
def test_peers_of_spread_agree_with_the_reference_in_every_gradient(name: str, n: int) -> None:
    if name in peers.absent():
        pytest.skip("pykeops is not installed")
    case = Case("spread", OURS, n)
    problem = spread_problem(case, CPU)
    results = problem.name(problem.both(peers.SPREAD[name]))
    error, worst = exactness.relative_error(results, exact_results(case, problem.exact()))
    assert error < 1e-5, worst
    assert bool((results["output"][problem.inputs["excluded"]] == 0).all())


@pytest.mark.parametrize("n", [5, 16])
@pytest.mark.parametrize("case", ["soft_sort", "soft_rank", "sort_by"])
def test_the_truth_is_that_of_the_permutation(case: str, n: int) -> None:
    problem = sorting_problem(sort_case(case, OURS, n), CPU).exact(2)
    keys, payload = problem.inputs.values()
    matrix = sw.soft_permutation(keys)
    if case == "soft_rank":
        with sw.engine("reference"):
            want = sw.soft_rank(keys)
    else:
        given = payload if case == "sort_by" else keys.unsqueeze(-1)
        want = (matrix @ given).view_as(problem.weight)
    gradients = torch.autograd.grad(want, [*problem.leaves.values()], problem.weight)
    results = exact_results(sort_case(case, OURS, n), problem)
    assert [*results] == ["output", *problem.leaves]
    for got, true in zip(results.values(), (want, *gradients), strict=True):
        torch.testing.assert_close(got, true)


@pytest.mark.parametrize("engine", [*cases.MATRICES, *cases.NETWORKS])
def test_matrices_put_distant_keys_in_their_order(engine: str) -> None:
    if engine in peers.absent():
        pytest.skip("diffsort is not installed")
    keys = torch.tensor([[300.0, -100.0, 100.0, -300.0]])
    payload = torch.tensor([[[3.0], [1.0], [2.0], [0.0]]])
    ranks = run("soft_rank", engine, keys, payload)
    torch.testing.assert_close(ranks, payload.squeeze(-1), rtol=0.02, atol=0.05)
    inorder = run("soft_sort", engine, keys, payload)
    torch.testing.assert_close(inorder, keys.sort().values, rtol=0.02, atol=10.0)
    moved = run("sort_by", engine, keys, payload).squeeze(-1)
    torch.testing.assert_close(moved, torch.arange(4.0).unsqueeze(0), rtol=0.02, atol=0.05)
    right, wrong = (run("order_loss", engine, keys, t) for t in (keys, -keys))
    assert float(right) < 0.1 < float(wrong)


def test_numbers_alone_are_sorted_as_by_the_matrix_of_the_network() -> None:
    keys = torch.randn(5, 32)
    by_matrix, alone = (run("soft_sort", name, keys, keys) for name in ("bitonic", cases.VALUES))
    torch.testing.assert_close(alone, by_matrix, rtol=1e-4, atol=1e-5)


def test_hard_sorts_are_those_of_torch() -> None:
    keys, payload = torch.tensor([[3.0, 1.0, 2.0]]), torch.arange(6.0).view(1, 3, 2)
    sorts = ("soft_rank", "soft_sort", "sort_by")
    ranks, inorder, moved = (run(case, cases.HARD, keys, payload).tolist() for case in sorts)
    assert (ranks, inorder) == ([[2.0, 0.0, 1.0]], [[1.0, 2.0, 3.0]])
    assert moved == [[[2.0, 3.0], [4.0, 5.0], [0.0, 1.0]]]


def test_the_likelihood_of_a_list_is_that_of_picking_the_largest_first() -> None:
    keys, numbers = torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([[10, 30, 20]])
    e = torch.tensor([1.0, 2.0, 3.0]).exp()
    likelihood = (e[2] / e.sum()) * (e[1] / e[:2].sum())
    loss = run("order_loss", cases.LIST_MLE, keys, numbers)
    torch.testing.assert_close(loss, -likelihood.log().unsqueeze(0))


@pytest.mark.parametrize(
    ("case", "engine"),
    [
        ("order_loss", cases.HARD),
        ("sort_by", cases.TORCHSORT),
        ("soft_sort", "soup"),
        ("spread", "soup"),
    ],
)
def test_an_engine_that_does_not_compute_a_case_is_named(case: str, engine: str) -> None:
    with pytest.raises(ValueError, match=f"one that computes {case}; got '{engine}'"):
        run(case, engine)
