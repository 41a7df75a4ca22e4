"""Every peer computes what the reference does."""

import pytest
import torch

from sparsewire import ops
from sparsewire_lab.bench import exactness, peers
from sparsewire_lab.bench.problems import spread_problem


@pytest.mark.parametrize("n", [2, 7, 33])
@pytest.mark.parametrize("name", peers.PEERS)
def test_peer_agrees_with_the_reference_in_every_gradient(name: str, n: int) -> None:
    if name == "keops" and not peers.has_keops():
        pytest.skip("pykeops is not installed")
    problem = spread_problem(n, (2, 18), torch.device("cpu"))
    leaves = problem.leaves
    out = peers.PEERS[name](*leaves, problem.indices, problem.excluded)
    results = [out.detach(), *torch.autograd.grad(out, leaves, problem.weight)]
    exact = exactness.exact_spread(problem, ops.spread_reference)
    error, worst = exactness.relative_error(exactness.name_results(problem, results), exact)
    assert error < 1e-5, worst
    assert bool((results[0][problem.excluded] == 0).all())


def test_problems_have_repeats_to_leave_out_and_are_the_same_each_time() -> None:
    first, second = (spread_problem(16, (2, 18), torch.device("cpu")) for _ in range(2))
    assert first.excluded.any()
    assert torch.equal(first.indices, second.indices)
    assert torch.equal(first.weight, second.weight)
    assert len(first.indices) == 24 * 16
