"""A case is checked before it is timed, and its row says what fails."""

import gc
import math
from typing import Any

import pytest
import torch

import sparsewire as sw
from sparsewire_lab.bench import cases, exactness, peers
from sparsewire_lab.bench.cases import Case
from sparsewire_lab.bench.measure import CpuMeter, settle_memory
from sparsewire_lab.bench.perform import Setting, exact_results, perform
from sparsewire_lab.bench.problems import layer_problem, spread_problem

FAST = Setting(budget=0.001)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip what precedes a measurement, and is slow where many modules are loaded."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


@pytest.mark.parametrize(
    "case",
    [
        *(Case("spread", engine, 9) for engine in ("reference", "plain", "chunked", "auto")),
        Case("step", "auto", 9, batch=5),
        Case("step", "reference", 9, batch=5),
        Case("step", "auto", 9, "floor variances", batch=5),
        Case("step", "auto", 9, "all pairs", batch=5),
        Case("glimpse", "auto", 1024, "1×32×32", batch=1),
    ],
    ids=str,
)
def test_a_case_is_checked_and_measured(case: Case) -> None:
    row = perform(case, FAST)
    assert row["status"] == "ok", row["note"]
    assert row["error"] < 1e-5
    assert row["checked_against"] == "reference, float64"
    for column in ("ms_forward", "ms_forward_backward", "repeats", "near_pairs"):
        assert row[column] > 0, column


@pytest.mark.parametrize("name", ["copy", "exp", "matmul float32", "canvases"])
def test_ceilings_are_rates_and_canvases_have_no_backward_pass(name: str) -> None:
    canvases = name == "canvases"
    row = perform(Case(name, "auto", 60, batch=2) if canvases else Case("ceilings", name), FAST)
    assert row["status"] == "ok", row["note"]
    assert "ms_forward_backward" not in row
    if canvases:
        assert row["ms_forward"] > 0
    else:
        assert 1e6 < row["rate"] < 1e16
        assert row["unit"].endswith("/s")


def test_a_huge_matrix_is_trained_in_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "CONTEXT_TUPLES", 128)
    setting = Setting(budget=0.001, table_pairs=1, checked_pairs=1)
    row = perform(Case("contexts", "auto", 2**17, batch=1), setting)
    assert (row["status"], row["note"]) == ("ok", "too large to check")
    assert row["near_pairs"] > 0


@pytest.mark.parametrize("n", [2, 7, 33])
@pytest.mark.parametrize("name", peers.SPREAD)
def test_peers_agree_with_the_reference_in_every_gradient(name: str, n: int) -> None:
    if name in peers.absent():
        pytest.skip("pykeops is not installed")
    problem = spread_problem(Case("spread", "auto", n), CPU)
    results = problem.name(problem.both(peers.SPREAD[name]))
    exact = exact_results(Case("spread", "auto", n), problem.exact())
    error, worst = exactness.relative_error(results, exact)
    assert error < 1e-5, worst
    assert bool((results["output"][problem.inputs["excluded"]] == 0).all())


def test_problems_have_repeats_and_are_the_same_each_time() -> None:
    first, second = (spread_problem(Case("spread", "auto", 16), CPU) for _ in range(2))
    assert first.inputs["excluded"].any()
    for tensors in zip(first.inputs.values(), second.inputs.values(), strict=True):
        assert torch.equal(*tensors)
    assert torch.equal(first.weight, second.weight)
    assert len(first.inputs["indices"]) == 24 * 16


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        (lambda *tensors: 2 * peers.plain(*tensors), ""),
        (lambda means, *rest: peers.plain(means.detach(), *rest) + 0 * means.sum(), "means"),
    ],
)
def test_a_peer_with_wrong_numbers_is_called_wrong_and_not_timed(
    wrong: Any, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(peers.SPREAD, "plain", wrong)
    row = perform(Case("spread", "plain", 9), FAST)
    assert (row["status"], row["error"]) == ("wrong", pytest.approx(1.0))
    assert row["note"].startswith(f"wrong: relative error 1.0e+00 in {where}")
    assert "ms_forward_backward" not in row


def test_a_layer_that_contracts_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = sw.HyperLayer.forward
    monkeypatch.setattr(sw.HyperLayer, "forward", lambda *a, **k: 1.01 * forward(*a, **k))
    row = perform(Case("step", "auto", 9, batch=5), FAST)
    assert (row["status"], row["error"]) == ("wrong", pytest.approx(0.01, rel=1e-3))


def test_nothing_that_breaks_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no luck\nand much more")

    monkeypatch.setitem(peers.SPREAD, "plain", broken)
    row = perform(Case("spread", "plain", 9), FAST)
    assert row["status"] == "failed"
    assert row["note"].startswith("RuntimeError: no luck (test_perform.py:")
    for case in ("spread", "step", "soft_sort", "canvases"):
        size = 60 if case == "canvases" else 9
        row = perform(Case(case, "auto", size, mode="captured", batch=3), FAST)
        assert row["status"] == "failed"
        assert "mode must be 'eager' without a GPU" in row["note"]


def test_what_is_too_large_to_check_says_so() -> None:
    setting = Setting(budget=0.001, table_pairs=10, checked_pairs=10)
    for case in (Case("spread", "auto", 10), Case("step", "auto", 10, batch=5)):
        row = perform(case, setting)
        assert (row["status"], row["note"]) == ("ok", "too large to check")
        assert "error" not in row
    setting = Setting(budget=0.001, table_pairs=10)
    assert perform(Case("spread", "auto", 11), setting)["checked_against"] == "chunked, float64"


def test_errors_that_are_not_numbers_are_infinite() -> None:
    bad = {"output": torch.tensor([math.nan, 1.0])}
    assert exactness.relative_error(bad, {"output": torch.ones(2)}) == (math.inf, "output")


def test_near_pairs_are_those_that_float32_can_see() -> None:
    """At variance 1/2 a share is exp(−d²): 2⁻²⁴ is passed between d = 4 and d = 5."""
    means, variances = torch.tensor([[[50.0]]]), torch.tensor([[[0.5]]])
    indices, excluded = torch.arange(100).view(1, 100, 1), torch.zeros(1, 100, dtype=torch.bool)
    assert exactness.near_share(means, variances, indices, excluded) == pytest.approx(9 / 100)
    excluded[0, 50] = True  # the largest share is now at distance one: exp(−1)
    assert exactness.near_share(means, variances, indices, excluded) == pytest.approx(8 / 100)


def test_variances_at_their_floor_leave_few_near_pairs() -> None:
    wide, narrow = (
        exactness.layer_near_share(layer_problem(Case("step", "auto", 200, v, batch=2), CPU))
        for v in ("", "floor variances")
    )
    assert narrow < 0.01 < wide


@pytest.mark.skipif(settle_memory() is None, reason="only Linux can set the peak back")
def test_memory_is_that_of_the_call_and_not_of_an_earlier_one() -> None:
    meter = CpuMeter(CPU, budget=0.001)
    for mebibytes in (200, 50):
        measured = meter.measure(lambda size=mebibytes: torch.ones(size * 2**18).add_(1).sum())
        assert measured.extra_mib == pytest.approx(mebibytes, abs=10)
        assert measured.repeats >= 1
