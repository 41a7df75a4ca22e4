"""Cases that would need too much memory or time are skipped with the reason."""

from typing import Any

import pytest
from lab.tests.bench.rows import make_row

from sparsewire_lab.bench.cases import OTT, OURS, TORCHSORT, Case
from sparsewire_lab.bench.limits import Limits, bytes_of, reason_to_skip

ROOMY = Limits(memory=2**40, seconds=10.0)


def reason(case: Case, *rows: Any, **limits: Any) -> str | None:
    return reason_to_skip(case, rows, ROOMY._replace(**limits))


def row(n: int, ms: float | None, **columns: object) -> dict[str, object]:
    return make_row(n=n, pairs=24 * n * n, ms_forward_backward=ms, **columns)


def test_tables_that_do_not_fit_are_not_tried() -> None:
    for engine in ("reference", "plain"):
        assert reason(Case("spread", engine, 256), memory=2**30) is None
        too_large = "it would need about 1.1 GiB; 1.0 GiB are allowed"
        assert reason(Case("spread", engine, 1024), memory=2**30) == too_large
    for engine in ("auto", "chunked", "keops"):
        assert reason(Case("spread", engine, 1024), memory=2**30) is None


def test_time_is_expected_to_grow_with_the_pairs_at_most() -> None:
    rows = [row(64, 1.0), row(128, 3000.0)]
    assert reason(Case("spread", "auto", 128), rows[0]) is None
    too_slow = "would take up to 12.0 s a call; 10 s are allowed"
    assert reason(Case("spread", "auto", 256), *rows) == too_slow
    assert reason(Case("spread", "chunked", 256), *rows) is None
    assert reason(Case("step", "auto", 256), *rows) is None


def test_what_grew_slowly_is_expected_to_go_on_so() -> None:
    """Linear so far: 16 times the size is 16^1.3 times as long at most, not 16²."""
    case, last = Case("spread", "auto", 2**20), row(2**16, 60.0)
    assert reason(case, last) == "would take up to 15.4 s a call; 10 s are allowed"
    linear = row(2**12, 60.0 / 16)
    assert reason(case, linear, last) is None
    too_slow = "would take up to 2.2 s a call; 1 s are allowed"
    assert reason(case, linear, last, seconds=1.0) == too_slow
    assert reason(case, row(2**12, 60.0), last, seconds=1.0) is None  # 16 · 60 ms


@pytest.mark.parametrize(
    ("status", "note", "want"),
    [
        ("skipped", "would take long", "n=64 was given up already"),
        ("failed", "stopped after 180 s", "n=64 was given up already"),
        ("failed", "RuntimeError: odd", None),
        ("wrong", "wrong: …", None),
    ],
)
def test_what_was_given_up_stays_so(status: str, note: str, want: str | None) -> None:
    assert reason(Case("spread", "auto", 256), row(64, None, status=status, note=note)) == want


def test_graphs_are_captured_of_short_calls_that_work() -> None:
    case = Case("spread", "auto", 64, mode="captured")
    assert reason(case, row(64, 200.0)) is None
    assert "launches" in (reason(case, row(64, 300.0)) or "")
    assert reason(case, row(64, None, status="failed")) == "eager was failed"


@pytest.mark.parametrize(
    ("case", "engine", "want"),
    [
        ("spread", "keops", "pykeops is not installed: pip install 'sparsewire-lab[keops]'"),
        ("soft_sort", TORCHSORT, "torchsort is not installed: pip install torchsort"),
        ("soft_sort", OTT, "ott is not installed: pip install ott-jax"),
        ("soft_sort", "diffsort bitonic", "this network needs a power of two"),
    ],
)
def test_what_cannot_run_is_named(case: str, engine: str, want: str) -> None:
    assert reason(Case(case, engine, 9, batch=3), absent=["keops", TORCHSORT, OTT]) == want


def test_sorts_that_do_not_fit_are_not_tried() -> None:
    too_large = "it would need about 3.0 GiB; 1.0 GiB are allowed"
    assert reason(Case("soft_sort", "softsort", 1024, batch=64), memory=2**30) == too_large
    assert reason(Case("soft_sort", OURS, 4096, batch=64), memory=2**30) is None
    assert reason(Case("soft_sort", OURS, 10**7, batch=64), memory=2**30) is not None
    assert bytes_of(Case("order_loss", OURS, 4096, "", "captured", batch=64)) > 2**34
    assert bytes_of(Case("order_loss", OURS, 4096, batch=64)) < 2**28
    assert bytes_of(Case("soft_permutation", OURS, 10**4, batch=1)) > 4 * 10**8
    wide, narrow = (Case("sort_by", OURS, 10, variant, batch=1) for variant in ("3×784", "16"))
    assert bytes_of(wide) > 100 * bytes_of(narrow)
    odd, bitonic = (
        Case("soft_sort", f"diffsort {e}", 64, batch=1) for e in ("odd-even", "bitonic")
    )
    assert bytes_of(odd) / bytes_of(bitonic) == pytest.approx(4 * 64 / (5 * 21), rel=0.02)


def test_the_time_of_sorts_may_grow_with_the_cube() -> None:
    kind = {"case": "soft_sort", "engine": "diffsort odd-even", "batch": 1}
    rows = [row(16, 10.0, **kind), row(64, 640.0, **kind)]
    too_slow = "would take up to 41.0 s a call; 10 s are allowed"
    assert reason(Case("soft_sort", "diffsort odd-even", 256, batch=1), *rows) == too_slow
    assert (
        reason(Case("soft_sort", "diffsort odd-even", 256, batch=64), *rows, memory=2**50) is None
    )


def test_a_size_that_a_network_cannot_sort_does_not_end_its_series() -> None:
    kind = {"case": "soft_sort", "engine": "diffsort bitonic", "batch": 1, "status": "skipped"}
    before = row(10, None, note=reason(Case("soft_sort", "diffsort bitonic", 10, batch=1)), **kind)
    assert reason(Case("soft_sort", "diffsort bitonic", 64, batch=1), before) is None


def test_ceilings_are_always_measured() -> None:
    assert reason(Case("ceilings", "copy"), memory=0, seconds=0.0) is None
