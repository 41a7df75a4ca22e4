"""Which runs belong together, which of a sweep is shown, and the numbers that are drawn."""

import math
from typing import Any

import pytest
from lab.tests.figures.samples import make_attention, make_identity

from sparsewire_lab.figures.series import average, reach
from sparsewire_lab.identity.settings import best, best_rates, details, groups


def rates(chosen: list[Any]) -> list[float]:
    return [group.setting["lr"] for group in chosen]


def test_seeds_of_one_setting_are_one_group() -> None:
    """Lists among the arguments are settings too."""
    runs = [
        make_identity([1.0], seed=seed, size=size, lr=lr, method=method, region=[2, 2])
        for method in ("rewire", "sparse")
        for seed in (0, 1, 2)
        for size in (16, 8)
        for lr in (0.1, 0.2)
    ]
    found = groups([*runs, make_identity([1.0], size=32, region=[4, 4])])
    assert [len(group.runs) for group in found] == [3] * 8 + [1]
    order = [(group.setting["size"], group.setting["method"]) for group in found]
    assert order[:-1:2] == [(8, "sparse"), (8, "rewire"), (16, "sparse"), (16, "rewire")]


def test_mean_and_deviation_by_hand() -> None:
    """Of 1, 2 and 6: mean 3, squares 4 + 1 + 9 = 14, over n − 1 = 2 the root of 7."""
    series = average([make_identity([x, 0.0], seed=i) for i, x in enumerate((1.0, 2.0, 6.0))])
    assert series.steps == [0, 100]
    assert series.mean == [3.0, 0.0]
    assert series.deviation == pytest.approx([math.sqrt(7), 0.0])
    series = average([make_identity([None, 1.0, math.nan, math.inf, 0.5])])
    assert (series.steps, series.mean) == ([100, 400], [1.0, 0.5])


def test_a_run_that_stopped_early_counts_up_to_its_end() -> None:
    series = average([make_identity([2.0, 1.0, 0.5, 0.25]), make_identity([4.0, 0.0], seed=1)])
    assert series.steps == [0, 100, 200, 300]
    assert series.mean == [3.0, 0.5, 0.5, 0.25]
    assert series.deviation[:2] == pytest.approx([math.sqrt(2), math.sqrt(0.5)])
    assert all(math.isnan(value) for value in series.deviation[2:])


def test_the_learning_rate_with_the_lowest_mean_final_error_is_chosen() -> None:
    """The last errors have means 0.5, 0.4 and 0.45; one seed of the first is the lowest of all."""
    finals = {0.001: (0.0, 1.0), 0.01: (0.3, 0.5), 0.1: (0.45, 0.45)}
    runs = [
        make_identity([2.0, x], seed=seed, lr=lr)
        for lr, xs in finals.items()
        for seed, x in enumerate(xs)
    ]
    chosen = best_rates(groups(runs))
    assert rates(chosen) == [0.01]
    assert chosen[0].rates == 3
    assert details(chosen[0], chosen) == ["lr 0.01"]


def test_every_problem_has_a_rate_of_its_own() -> None:
    problems: list[tuple[dict[str, Any], tuple[float, float]]] = [
        ({"size": 8}, (0.1, 0.2)),
        ({"size": 16}, (0.2, 0.1)),
        ({"size": 16, "target": "band"}, (0.1, 0.2)),
        ({"size": 16, "values": "normal"}, (0.1, 0.2)),
        ({"size": 16, "method": "rewire"}, (0.1, 0.2)),
    ]
    runs = [
        make_identity([error], lr=lr, **problem)
        for problem, errors in problems
        for lr, error in zip((1.0, 2.0), errors, strict=True)
    ]
    assert rates(best_rates(groups(runs))) == [1.0, 2.0, 1.0, 1.0, 1.0]


def test_of_equal_ends_the_faster_is_chosen() -> None:
    runs = [make_identity([1.0, 0.5, 0.0], lr=0.1), make_identity([1.0, 0.0, 0.0], lr=0.2)]
    assert rates(best_rates(groups(runs))) == rates(best(groups(runs))) == [0.2]


def test_a_rate_that_diverged_is_never_the_best() -> None:
    """A run without final metrics is judged by its last point."""
    good = make_identity([1.0, 5.0], lr=0.2)
    bad = [make_identity([1.0, last], lr=0.1) for last in (math.nan, None)]
    for run in (*bad, make_identity([1.0, 0.1], lr=0.1, other={"status": "diverged"})):
        assert rates(best_rates(groups([run, good]))) == [0.2]
    unfinished = make_identity([1.0, 0.1, None], lr=0.1, other={"final": None})
    assert rates(best_rates(groups([make_identity([1.0, 0.2], lr=0.2), unfinished]))) == [0.1]


def test_other_differences_are_named() -> None:
    chosen = best_rates(groups([make_identity([1.0], batch=64), make_identity([2.0], batch=128)]))
    assert [details(group, chosen) for group in chosen] == [["batch 64"], ["batch 128"]]
    assert [group.setting["batch"] for group in best(chosen)] == [64]
    chosen = best_rates(groups([make_identity([1.0]), make_identity([1.0], size=9, target="band")]))
    assert [details(group, chosen) for group in chosen] == [["identity"], ["band"]]


def test_the_first_point_below_the_threshold_counts() -> None:
    """Exactly the threshold is not below it, and what comes later does not matter.

    Seeds that do not reach it count with their total.
    """
    runs = [make_identity([1.0, 1e-3, 9e-4, 0.5, 0.0])]
    assert reach(runs) == (2.0, 200.0, True)
    assert reach(runs, 1e-4) == (4.0, 400.0, True)
    runs = [make_identity([1.0, 0.0, 0.0, 0.0]), make_identity([1.0, 1.0, 1.0, 1.0], seed=1)]
    assert reach(runs) == (2.0, 200.0, False)
    assert reach(runs[:1]) == (1.0, 100.0, True)
    assert reach(runs[1:]) == (3.0, 300.0, False)


def test_records_without_errors_or_of_another_experiment_are_refused() -> None:
    others = [make_identity([None]), make_attention([1.0])]
    with pytest.raises(ValueError, match=r"with an error on .* got 2 records, none of these"):
        groups(others)
    assert len(groups([*others, make_identity([1.0])])) == 1
