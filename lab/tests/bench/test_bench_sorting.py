"""Soft sorts are checked before they are timed, and peers sort what they are given."""

from itertools import pairwise
from typing import Any

import pytest
import torch

import sparsewire as sw
from sparsewire_lab.bench import sorting_peers
from sparsewire_lab.bench.case import OURS, Case
from sparsewire_lab.bench.found import Setting
from sparsewire_lab.bench.limits import Limits, reason_to_skip
from sparsewire_lab.bench.perform import perform
from sparsewire_lab.bench.sorting_cases import (
    BATCH,
    ENGINES,
    HARD,
    LIST_MLE,
    MATRICES,
    NEIGHBOURS,
    NETWORKS,
    OTT,
    PACKAGES,
    SORTING,
    TORCHSORT,
    VALUES,
    payload_of,
    sorting_plan,
    sorting_table_bytes,
)
from sparsewire_lab.bench.sorting_floors import sorting_work
from sparsewire_lab.bench.sorting_perform import exact_results
from sparsewire_lab.bench.sorting_problems import sorting_problem

FAST = Setting(budget=0.001)
CPU = torch.device("cpu")
ABSENT = sorting_peers.absent()
ROOMY = Limits(memory=2**40, seconds=10.0)


def small(case: str, engine: str, n: int = 8, batch: int = 3) -> Case:
    return Case(case, engine, n, "16" if case == "sort_by" else "", batch=batch)


@pytest.mark.filterwarnings("ignore:JAXopt")  # which OTT imports
@pytest.mark.parametrize(
    "case", [small(case, engine) for case in SORTING for engine in ENGINES[case]], ids=str
)
def test_every_case_is_checked_and_measured(case: Case) -> None:
    if case.engine in ABSENT:
        pytest.skip(f"{PACKAGES[case.engine][1]} is not installed")
    row = perform(case, FAST)
    assert row["status"] == "ok", row["note"]
    assert row["ms_forward"] > 0
    assert row["ms_forward_backward"] > 0
    if case.engine != OTT:
        assert row["error"] < 1e-5
        against = "reference" if case.engine == OURS else "itself"
        assert row["checked_against"] == f"{against}, float64"


@pytest.mark.parametrize("n", [2, 7, 33])
@pytest.mark.parametrize("case", SORTING)
def test_ours_is_float64_at_any_size(case: str, n: int) -> None:
    row = perform(small(case, OURS, n), FAST)
    assert (row["status"], row["note"]) == ("ok", "")
    assert row["error"] < 1e-5


@pytest.mark.parametrize("n", [5, 16])
def test_the_truth_is_that_of_the_permutation(n: int) -> None:
    for case in ("soft_sort", "soft_rank", "sort_by"):
        problem = sorting_problem(small(case, OURS, n), CPU).exact(2)
        matrix = sw.soft_permutation(problem.keys)
        places = torch.arange(n, dtype=torch.float64)
        want = {
            "soft_sort": lambda p=problem, m=matrix: (m @ p.keys.unsqueeze(-1)).squeeze(-1),
            "soft_rank": lambda m=matrix, places=places: places @ m,
            "sort_by": lambda p=problem, m=matrix: m @ p.given,
        }[case]()
        leaves = [*problem.leaves.values()]
        gradients = torch.autograd.grad(want, leaves, problem.weight)
        found = exact_results(small(case, OURS, n), problem)
        assert [*found] == ["output", *problem.leaves]
        for got, true in zip(found.values(), (want, *gradients), strict=True):
            torch.testing.assert_close(got, true)


@pytest.mark.parametrize("engine", [*MATRICES, *NETWORKS])
def test_matrices_put_distant_keys_in_their_order(engine: str) -> None:
    if engine in ABSENT:
        pytest.skip("diffsort is not installed")
    keys = torch.tensor([[300.0, -100.0, 100.0, -300.0]])
    payload = torch.tensor([[[3.0], [1.0], [2.0], [0.0]]])
    run = sorting_peers.sorting_engine
    ranks = run("soft_rank", engine)(keys, payload)
    torch.testing.assert_close(ranks, payload.squeeze(-1), rtol=0.02, atol=0.05)
    inorder = run("soft_sort", engine)(keys, payload)
    torch.testing.assert_close(inorder, keys.sort().values, rtol=0.02, atol=10.0)
    moved = run("sort_by", engine)(keys, payload).squeeze(-1)
    torch.testing.assert_close(moved, torch.arange(4.0).unsqueeze(0), rtol=0.02, atol=0.05)
    right, wrong = (run("order_loss", engine)(keys, t) for t in (keys, -keys))
    assert float(right) < 0.1 < float(wrong)


def test_numbers_alone_are_sorted_as_by_the_matrix_of_the_network() -> None:
    keys = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    by_matrix, alone = (
        sorting_peers.sorting_engine("soft_sort", name)(keys, keys) for name in ("bitonic", VALUES)
    )
    torch.testing.assert_close(alone, by_matrix, rtol=1e-4, atol=1e-5)


def test_hard_sorts_are_those_of_torch() -> None:
    keys, run = torch.tensor([[3.0, 1.0, 2.0]]), sorting_peers.sorting_engine
    payload = torch.arange(6.0).view(1, 3, 2)
    assert run("soft_rank", HARD)(keys, payload).tolist() == [[2.0, 0.0, 1.0]]
    assert run("soft_sort", HARD)(keys, payload).tolist() == [[1.0, 2.0, 3.0]]
    moved = run("sort_by", HARD)(keys, payload).tolist()
    assert moved == [[[2.0, 3.0], [4.0, 5.0], [0.0, 1.0]]]


def test_the_likelihood_of_a_list_is_that_of_picking_the_largest_first() -> None:
    keys, numbers = torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([[10, 30, 20]])
    e = torch.tensor([1.0, 2.0, 3.0]).exp()
    likelihood = (e[2] / e.sum()) * (e[1] / e[:2].sum())
    loss = sorting_peers.sorting_engine("order_loss", LIST_MLE)(keys, numbers)
    torch.testing.assert_close(loss, -likelihood.log().unsqueeze(0))


def test_an_engine_that_does_not_do_a_case_is_named() -> None:
    for case, engine in (("order_loss", HARD), ("sort_by", TORCHSORT), ("soft_sort", "soup")):
        with pytest.raises(ValueError, match=f"one that does {case}; got '{engine}'"):
            sorting_peers.sorting_engine(case, engine)


def test_ours_with_wrong_numbers_is_not_timed_and_a_peer_with_bad_ones_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rough(x: torch.Tensor) -> torch.Tensor:
        return x.sort().values * (1.01 if x.dtype == torch.float32 else 1.0)

    monkeypatch.setattr(sw, "soft_sort", rough)
    row = perform(small("soft_sort", OURS), FAST)
    assert (row["status"], row["error"]) == ("wrong", pytest.approx(0.01, rel=1e-3))
    assert "ms_forward_backward" not in row

    def rough_matrix(x: torch.Tensor) -> torch.Tensor:
        return torch.diag_embed(rough(x))

    monkeypatch.setitem(sorting_peers.MATRIX_OF, "softsort", rough_matrix)
    row = perform(small("soft_sort", "softsort"), FAST)
    assert row["status"] == "ok"
    assert row["note"].startswith("in float32 its relative error is ")
    assert row["ms_forward_backward"] > 0


def test_graphs_need_a_gpu() -> None:
    row = perform(Case("soft_sort", OURS, 8, mode="captured", batch=3), FAST)
    assert row["status"] == "failed"
    assert "mode must be 'eager' without a GPU" in row["note"]


def test_a_quick_run_is_small_and_only_a_gpu_captures() -> None:
    quick = list(sorting_plan("cpu", quick=True))
    assert {case.n for case in quick} == {16, 64}
    assert OTT not in {case.engine for case in quick}
    cpu, cuda = (list(sorting_plan(device, quick=False)) for device in ("cpu", "cuda"))
    assert {case.n for case in cpu} == {16, 64, 256, 1024, 4096}
    assert {case.batch for case in cpu} == {BATCH}
    assert {case.mode for case in cpu} == {"eager"}
    assert {payload_of(case) for case in cpu} == {(), (16,)}
    by = [case for case in cuda if case.case == "sort_by"]
    assert {payload_of(case) for case in by} == {(3, 784)}
    assert {case.n for case in by} == {16, 64, 1024}
    captured = {case.engine for case in cuda if case.mode == "captured"}
    assert captured == {OURS, HARD, VALUES, NEIGHBOURS, LIST_MLE, *MATRICES}
    for before, after in pairwise(cpu):
        if (before.case, before.n) != (after.case, after.n):
            assert after.engine == OURS
    chosen = list(sorting_plan("cpu", quick=True, sizes=[5]))
    assert {case.n for case in chosen} == {5}


def test_what_is_missing_or_does_not_fit_is_not_tried() -> None:
    limits = Limits(2**40, 10.0, absent=["torchsort", "ott"])
    reason = reason_to_skip(small("soft_sort", TORCHSORT), [], limits)
    assert reason == "torchsort is not installed: pip install torchsort"
    reason = reason_to_skip(small("soft_sort", OTT), [], limits)
    assert reason == "ott is not installed: pip install ott-jax"
    for engine in ("bitonic", VALUES):
        reason = reason_to_skip(small("soft_sort", engine, 9), [], ROOMY)
        assert reason == "this network needs a power of two"
    tight = Limits(2**30, 10.0)
    reason = reason_to_skip(Case("soft_sort", "softsort", 1024, batch=64), [], tight)
    assert reason == "its tables would need about 3.0 GiB; 1.0 GiB are allowed"
    assert reason_to_skip(Case("soft_sort", OURS, 4096, batch=64), [], tight) is None
    graph = Case("order_loss", OURS, 4096, "", "captured", batch=64)
    assert sorting_table_bytes(graph) > 2**34
    assert sorting_table_bytes(Case("order_loss", OURS, 4096, batch=64)) == 0
    odd, bitonic = (sorting_table_bytes(Case("soft_sort", e, 64, batch=1)) for e in MATRICES[-2:])
    assert odd / bitonic == pytest.approx(3 * 64 / (4 * 21))


def test_time_may_grow_with_the_cube() -> None:
    def row(n: int, ms: float) -> dict[str, Any]:
        kind = {"case": "soft_sort", "engine": "odd-even", "variant": "", "mode": "eager"}
        return {**kind, "n": n, "ms_forward_backward": ms, "status": "ok", "note": ""}

    case = Case("soft_sort", "odd-even", 256, batch=1)
    reason = reason_to_skip(case, [row(16, 10.0), row(64, 640.0)], ROOMY)
    assert reason == "would take up to 41.0 s a call; 10 s are allowed"


def test_the_floor_is_what_has_to_be_moved() -> None:
    forward, both = sorting_work(Case("soft_sort", OURS, 10, batch=2))
    assert (forward.bytes, both.bytes) == (2 * 80, 5 * 80)
    forward, both = sorting_work(Case("sort_by", OURS, 10, "16", batch=2))
    assert (forward.bytes, both.bytes) == (80 * (1 + 2 * 16), 80 * (3 + 5 * 16))
    forward, both = sorting_work(Case("order_loss", OURS, 10, batch=2))
    assert (forward.bytes, both.bytes) == (80 + 160 + 8, 3 * 80 + 2 * 160 + 2 * 8)
