"""Cases that would not fit, or not end, are left out with the reason."""

import pytest
from lab.tests.bench.rows import make_row

from sparsewire_lab.bench.cases import Case
from sparsewire_lab.bench.limits import Limits, reason_to_skip

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
    assert "launching" in (reason_to_skip(case, [row(64, 300.0)], ROOMY) or "")
    failed = row(64, None, status="failed")
    assert reason_to_skip(case, [failed], ROOMY) == "eager was failed"


def test_keops_is_named_where_it_is_missing() -> None:
    limits = Limits(2**40, 10.0, keops=False)
    reason = reason_to_skip(Case("spread", "keops", 64), [], limits)
    assert reason == "pykeops is not installed: pip install 'sparsewire[keops]'"


def test_ceilings_are_always_measured() -> None:
    assert reason_to_skip(Case("ceilings", "copy"), [], Limits(0, 0.0, False)) is None
