"""Peers compute what they should."""

import pytest
import torch
from lab.tests.bench.rows import sort_case

from sparsewire_lab.bench import cases, exactness, peers
from sparsewire_lab.bench.cases import OURS, Case
from sparsewire_lab.bench.perform import exact_results
from sparsewire_lab.bench.problems import spread_problem

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


SORTERS = dict.fromkeys(engine for case in cases.LEAGUE for engine in (OURS, *cases.PEERS[case]))


@pytest.mark.filterwarnings("ignore")  # of packages, when they are imported
@pytest.mark.parametrize("engine", SORTERS)
def test_all_sort_nearly_as_torch_does(engine: str) -> None:
    """By correlation: ranks begin with 0 or 1, and each has a softness of its own."""
    if engine in peers.absent():
        pytest.skip(f"{cases.PACKAGES[engine][1]} is not installed")
    keys = 10 * torch.tensor([[3.0, -1.0, 1.0, -3.0, 5.0, -5.0, 7.0, -7.0]])
    payload = keys.unsqueeze(-1) + torch.arange(2.0)
    for name in cases.LEAGUE:
        if engine not in (OURS, *cases.PEERS[name]):
            continue
        want = run(name, cases.HARD, keys, payload)
        if engine == cases.OTT:
            got = peers.ott_calls(sort_case(name, engine), keys, want)[0]()
        else:
            got = run(name, engine, keys, payload)
        assert got.shape == want.shape
        both = torch.stack([got.flatten(), want.flatten()])
        assert float(both.corrcoef()[0, 1]) > 0.8, name


def test_dftopk_is_a_half_in_the_middle_of_two_places() -> None:
    keys = torch.tensor([[0.0, 4.0, 2.0, 1.0]])
    mask = peers.dftopk(keys, 2)
    torch.testing.assert_close(mask, torch.sigmoid(keys - 1.5))
    assert peers.dftopk(keys, 4).tolist() == [[1.0] * 4]


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
        ("soft_sort", cases.DIFFTOPK),
        ("sort_by", cases.TORCHSORT),
        ("soft_sort", "soup"),
        ("spread", "soup"),
    ],
)
def test_an_engine_that_does_not_compute_a_case_is_named(case: str, engine: str) -> None:
    with pytest.raises(ValueError, match=f"one that computes {case}; got '{engine}'"):
        run(case, engine)
