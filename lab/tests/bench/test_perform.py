"""A case is checked before it is timed, and its row says what fails."""

import gc
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lab.tests.bench.rows import sort_case

import sparsewire as sw
from sparsewire_lab.bench import cases, exactness, peers
from sparsewire_lab.bench.cases import OURS, Case
from sparsewire_lab.bench.measure import CpuMeter, settle_memory
from sparsewire_lab.bench.perform import Setting, perform
from sparsewire_lab.bench.problems import layer_problem, spread_problem

FAST = Setting(budget=0.001)
CPU = torch.device("cpu")
ENGINES = [*(Case("spread", engine, 9) for engine in ("reference", "plain", "chunked", OURS))]
LAYERS = [
    Case("step", OURS, 9, batch=5),
    Case("step", "reference", 9, batch=5),
    Case("step", OURS, 9, "floor variances", batch=5),
    Case("step", OURS, 9, "all pairs", batch=5),
    Case("glimpse", OURS, 1024, "1×32×32", batch=1),
]
SORTS = [
    sort_case(suite.case, engine)
    for suite in cases.SUITES
    for engine in suite.engines
    if suite.group == "sorting" and suite.batch == 64 and "cpu" in suite.devices
]
OTHER_SIZES = [sort_case(case, OURS, n) for case in cases.SORTS for n in (2, 33)]


@pytest.fixture(autouse=True)
def no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip what precedes a measurement, and is slow where many modules are loaded."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


@pytest.mark.filterwarnings("ignore")  # of packages, when they are imported
@pytest.mark.parametrize("case", ENGINES + LAYERS + SORTS + OTHER_SIZES, ids=str)
def test_a_case_is_checked_and_measured(case: Case) -> None:
    if case.engine in peers.absent():
        pytest.skip(f"{cases.PACKAGES[case.engine][1]} is not installed")
    row = perform(case, FAST)
    assert row["status"] == "ok", row["note"]
    columns = ["ms_forward_backward", "repeats"]
    columns += [] if case.case in cases.LEAGUE else ["ms_forward"]
    for column in columns if case.case in cases.SORTS else (*columns, "near_pairs"):
        assert row[column] > 0, column
    if case.engine not in (cases.OTT, cases.DIFFTOPK):
        assert row["error"] < 1e-5
        itself = case.case in cases.SORTS and case.engine != OURS
        assert row["checked_against"] == f"{'itself' if itself else 'reference'}, float64"
        assert row["note"] == ""


@pytest.mark.parametrize("name", ["copy", "exp", "matmul float32", "canvases"])
def test_ceilings_are_rates_and_canvases_have_no_backward_pass(name: str) -> None:
    canvases = name == "canvases"
    row = perform(Case(name, OURS, 60, batch=2) if canvases else Case("ceilings", name), FAST)
    assert row["status"] == "ok", row["note"]
    assert "ms_forward_backward" not in row
    if canvases:
        assert row["ms_forward"] > 0
    else:
        assert 1e6 < row["rate"] < 1e16
        assert row["unit"].endswith("/s")


def rough(x: torch.Tensor) -> torch.Tensor:
    """Numbers that are 1 % too large, in float32."""
    return x * (1.01 if x.dtype == torch.float32 else 1.0)


FORWARD = sw.HyperLayer.forward
PLAIN = Case("spread", "plain", 9)


@pytest.mark.parametrize(
    ("case", "place", "name", "wrong", "error", "where"),
    [
        (PLAIN, peers.SPREAD, "plain", lambda *given: 2 * peers.plain(*given), 1.0, ""),
        (
            PLAIN,
            peers.SPREAD,
            "plain",
            lambda means, *rest: peers.plain(means.detach(), *rest) + 0 * means.sum(),
            1.0,
            "means",
        ),
        (LAYERS[0], sw.HyperLayer, "forward", lambda *a, **k: 1.01 * FORWARD(*a, **k), 0.01, ""),
        (sort_case("soft_sort", OURS), sw, "soft_sort", lambda x: rough(x.sort()[0]), 0.01, ""),
    ],
)
def test_an_engine_with_wrong_numbers_is_called_wrong_and_not_timed(
    case: Case,
    place: Any,
    name: str,
    wrong: Callable[..., torch.Tensor],
    error: float,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patch = monkeypatch.setitem if place is peers.SPREAD else monkeypatch.setattr
    patch(place, name, wrong)
    row = perform(case, FAST)
    assert (row["status"], row["error"]) == ("wrong", pytest.approx(error, rel=1e-3))
    assert row["note"].startswith(f"wrong: relative error {error:.1e} in {where}")
    assert "ms_forward_backward" not in row


def test_an_inexact_peer_of_sorting_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers.MATRIX_OF, "softsort", lambda x: torch.diag_embed(rough(x)))
    row = perform(sort_case("soft_sort", "softsort"), FAST)
    assert row["status"] == "ok"
    assert row["note"].startswith("in float32 its relative error is ")
    assert row["ms_forward_backward"] > 0


def test_nothing_that_breaks_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no luck\nand much more")

    monkeypatch.setitem(peers.SPREAD, "plain", broken)
    row = perform(PLAIN, FAST)
    assert row["status"] == "failed"
    assert row["note"].startswith("RuntimeError: no luck (test_perform.py:")
    for case in ("spread", "step", "soft_sort", "canvases"):
        size = 60 if case == "canvases" else 9
        row = perform(Case(case, OURS, size, mode="captured", batch=3), FAST)
        assert row["status"] == "failed"
        assert "mode must be 'eager' without a GPU" in row["note"]


def test_what_is_too_large_to_check_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "CONTEXT_TUPLES", 128)
    huge = Case("contexts", OURS, 2**17, batch=1)
    setting = Setting(budget=0.001, table_pairs=10, checked_pairs=10)
    for case in (Case("spread", OURS, 10), Case("step", OURS, 10, batch=5), huge):
        row = perform(case, setting)
        assert (row["status"], row["note"]) == ("ok", "too large to check")
        assert "error" not in row
        assert row["near_pairs"] > 0
    setting = Setting(budget=0.001, table_pairs=10)
    assert perform(Case("spread", OURS, 11), setting)["checked_against"] == "chunked, float64"


def test_problems_have_repeats_and_are_the_same_each_time() -> None:
    first, second = (spread_problem(Case("spread", OURS, 16), CPU) for _ in range(2))
    assert first.inputs["excluded"].any()
    for tensors in zip(first.inputs.values(), second.inputs.values(), strict=True):
        assert torch.equal(*tensors)
    assert torch.equal(first.weight, second.weight)
    assert len(first.inputs["indices"]) == 24 * 16


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
        exactness.layer_near_share(layer_problem(Case("step", OURS, 200, v, batch=2), CPU))
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
