"""Exponents from points whose law is known, and which runs a page is made of."""

import pytest
from lab.tests.bench.rows import make_record, make_row

from sparsewire_lab.bench.growth import exponent, newest, series


def test_the_exponent_is_the_least_squares_slope_of_the_largest_sizes() -> None:
    """In logarithms to base ten the last four are (1, 0), (2, 1), (3, 1), (4, 3): slope 0.9."""
    points = [(1, 1e6), (10, 1.0), (100, 10.0), (1000, 10.0), (10_000, 1000.0)]
    assert exponent(points) == pytest.approx(0.9)
    assert exponent([(1, 1.0), (2, 2.0), (2, 3.0)]) is None  # two sizes alone


def test_series_leave_out_what_was_not_measured() -> None:
    result = {line.label: line for line in series(make_record(), "ms_forward_backward")}
    assert result.keys() == {"ours", "reference"}
    assert result["ours"].points == [(10, 1.0), (100, 100.0), (1000, 10_000.0)]
    assert result["ours"].exponent == pytest.approx(2.0)
    memory = {line.label: line.exponent for line in series(make_record(), "extra_mib")}
    assert memory == {"ours": pytest.approx(1.0), "reference": pytest.approx(2.0)}


def test_modes_and_variants_are_series_of_their_own() -> None:
    rows = [
        make_row(n=n, mode=mode, variant=variant)
        for n in (1, 2)
        for mode in ("eager", "captured")
        for variant in ("", "all pairs")
    ]
    labels = [line.label for line in series(rows, "extra_mib")]
    assert labels == ["ours", "ours, all pairs", "ours, captured", "ours, all pairs, captured"]


def test_the_newest_run_counts_for_each_part_and_full_ones_before_quick() -> None:
    old, new, newer = "2030-01-01", "2030-01-02", "2030-01-03"
    rows = [
        make_row(date=old),
        make_row(date=old, case="step"),
        make_row(date=new),
        make_row(date=newer, plan="quick"),
        make_row(date=newer, plan="sizes"),
        make_row(date=newer, plan="quick", case="glimpse"),
        make_row(date=old, device="another"),
    ]
    result = newest(rows)
    dates = {
        device: {case: {row["date"] for row in part} for case, part in cases.items()}
        for device, cases in result.items()
    }
    assert dates == {
        "a machine": {"spread": {new}, "step": {old}, "glimpse": {newer}},
        "another": {"spread": {old}},
    }
