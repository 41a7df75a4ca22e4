"""Cases that would need too much memory or time are skipped with the reason."""

import pytest
from lab.tests.bench.rows import make_row

from sparsewire_lab.bench.cases import MATRICES, OTT, OURS, TORCHSORT, VALUES, Case
from sparsewire_lab.bench.limits import Limits, reason_to_skip, table_bytes

ROOMY = Limits(memory=2**40, seconds=10.0)


def row(n: int, ms: float | None, **columns: object) -> dict[str, object]:
    return make_row(n=n, pairs=24 * n * n, ms_forward_backward=ms, **columns)


def test_tables_that_do_not_fit_are_not_tried() -> None:
    limits = Limits(memory=2**30, seconds=10.0)
    for engine in ("reference", "plain"):
        assert reason_to_skip(Case("spread", engine, 256), [], limits) is None
        reason = reason_to_skip(Case("spread", engine, 1024), [], limits)
        assert reason == "its tables would need about 1.1 GiB; 1.0 GiB are allowed"
    for engine in ("auto", "chunked", "keops"):
        assert reason_to_skip(Case("spread", engine, 1024), [], limits) is None


def test_time_is_expected_to_grow_with_the_pairs_at_most() -> None:
    rows = [row(64, 1.0), row(128, 3000.0)]
    assert reason_to_skip(Case("spread", "auto", 128), rows[:1], ROOMY) is None
    reason = reason_to_skip(Case("spread", "auto", 256), rows, ROOMY)
    assert reason == "would take up to 12.0 s a call; 10 s are allowed"
    assert reason_to_skip(Case("spread", "chunked", 256), rows, ROOMY) is None
    assert reason_to_skip(Case("step", "auto", 256), rows, ROOMY) is None


def test_what_grew_slowly_is_expected_to_go_on_so() -> None:
    """Linear so far: 16 times the size is 16^1.3 times as long at most, not 16²."""
    case = Case("spread", "auto", 2**20)
    once = [row(2**16, 60.0)]
    assert reason_to_skip(case, once, ROOMY) == "would take up to 15.4 s a call; 10 s are allowed"
    assert reason_to_skip(case, [row(2**12, 60.0 / 16), *once], ROOMY) is None
    strict = Limits(2**40, seconds=1.0)
    reason = reason_to_skip(case, [row(2**12, 60.0 / 16), *once], strict)
    assert reason == "would take up to 2.2 s a call; 1 s are allowed"
    same = reason_to_skip(case, [row(2**12, 60.0), *once], strict)
    assert same is None  # 16 · 60 ms


@pytest.mark.parametrize(
    ("status", "note", "reason"),
    [
        ("skipped", "would take long", "n=64 was given up already"),
        ("failed", "stopped after 180 s", "n=64 was given up already"),
        ("failed", "RuntimeError: odd", None),
        ("wrong", "wrong: …", None),
    ],
)
def test_what_was_given_up_stays_so(status: str, note: str, reason: str | None) -> None:
    rows = [row(64, None, status=status, note=note)]
    assert reason_to_skip(Case("spread", "auto", 256), rows, ROOMY) == reason


def test_graphs_are_captured_of_short_calls_that_work() -> None:
    case = Case("spread", "auto", 64, mode="captured")
    assert reason_to_skip(case, [row(64, 200.0)], ROOMY) is None
    assert "launches" in (reason_to_skip(case, [row(64, 300.0)], ROOMY) or "")
    failed = row(64, None, status="failed")
    assert reason_to_skip(case, [failed], ROOMY) == "eager was failed"


@pytest.mark.parametrize(
    ("case", "engine", "reason"),
    [
        ("spread", "keops", "pykeops is not installed: pip install 'sparsewire-lab[keops]'"),
        ("soft_sort", TORCHSORT, "torchsort is not installed: pip install torchsort"),
        ("soft_sort", OTT, "ott is not installed: pip install ott-jax"),
        ("soft_sort", "bitonic", "this network needs a power of two"),
        ("soft_sort", VALUES, "this network needs a power of two"),
    ],
)
def test_what_cannot_run_is_named(case: str, engine: str, reason: str) -> None:
    limits = Limits(2**40, 10.0, absent=["keops", TORCHSORT, OTT])
    assert reason_to_skip(Case(case, engine, 9, batch=3), [], limits) == reason


def test_tables_of_sorts_that_do_not_fit_are_not_tried() -> None:
    tight = Limits(2**30, 10.0)
    reason = reason_to_skip(Case("soft_sort", "softsort", 1024, batch=64), [], tight)
    assert reason == "its tables would need about 3.0 GiB; 1.0 GiB are allowed"
    assert reason_to_skip(Case("soft_sort", OURS, 4096, batch=64), [], tight) is None
    assert table_bytes(Case("order_loss", OURS, 4096, "", "captured", batch=64)) > 2**34
    assert table_bytes(Case("order_loss", OURS, 4096, batch=64)) == 0
    odd, bitonic = (table_bytes(Case("soft_sort", e, 64, batch=1)) for e in MATRICES[-2:])
    assert odd / bitonic == pytest.approx(3 * 64 / (4 * 21))


def test_the_time_of_sorts_may_grow_with_the_cube() -> None:
    kind = {"case": "soft_sort", "engine": "odd-even"}
    rows = [row(16, 10.0, **kind), row(64, 640.0, **kind)]
    reason = reason_to_skip(Case("soft_sort", "odd-even", 256, batch=1), rows, ROOMY)
    assert reason == "would take up to 41.0 s a call; 10 s are allowed"


def test_ceilings_are_always_measured() -> None:
    assert reason_to_skip(Case("ceilings", "copy"), [], Limits(0, 0.0)) is None
