"""The small table of all experiments: numbers by hand, and what is not recorded is not in it."""

from typing import Any

import pytest
from lab.tests.attention.attention_runs import make_attention
from lab.tests.identity.runs import make_run
from lab.tests.sorting.sorting_runs import make_sorting

from sparsewire_lab.report.summary_table import (
    RESULTS_BEGIN,
    RESULTS_END,
    fill_summary,
    summary_table,
)


def rows(**records: list[dict[str, Any]]) -> list[list[str]]:
    lines = summary_table(records).splitlines()[2:]
    return [line.strip("| ").split(" | ") for line in lines]


def test_nothing_recorded_makes_no_rows() -> None:
    assert rows() == []
    assert rows(attention=[], identity=[], sorting=[]) == []


def test_glimpses_stand_beside_the_best_plain_network() -> None:
    """Of 88 and 60 %, 60; validation runs, other presets and other canvases do not count."""
    runs = [
        make_attention([0.0079], key="a"),
        make_attention([0.88], key="b", model="convnet"),
        make_attention([0.6], key="c", model="convnet", reduce=2),
        make_attention([0.001], key="d", model="convnet", canvas=400),
        make_attention([0.002], key="e", split="validation"),
        make_attention([0.003], key="f", preset="paper"),
    ]
    assert rows(attention=runs) == [
        [
            "digit among clutter, 100 × 100 pixels, 1 glimpse of 32 × 32",
            "0.85 %, perhaps of training digits",
            "0.79 % of test digits",
            "plain ConvNet: 60.00 %",
        ]
    ]


def test_no_other_model_is_left_out() -> None:
    """A weak baseline alone would flatter."""
    runs = [
        make_attention([0.05], key="a"),
        make_attention([0.18], key="b", model="reinforce"),
        make_attention([0.88], key="c", model="convnet"),
        make_attention([0.04], key="d", model="transformer", seed=0),
        make_attention([0.06], key="d", model="transformer", seed=1),
        make_attention([0.01], key="e", model="reinforce", other={"status": "diverged"}),
    ]
    (row,) = rows(attention=runs)
    assert row[3] == (
        "plain ConvNet: 88.00 %; spatial transformer: 5.00 ± 1.41 %; REINFORCE glimpse: 18.00 %"
    )


def test_a_glimpse_without_a_rival_or_a_paper() -> None:
    (row,) = rows(attention=[make_attention([0.05], canvas=400)])
    assert row[1:] == ["–", "5.00 % of test digits", "–"]


def test_identities_tell_when_they_were_below_the_threshold() -> None:
    plain = make_run([1.0, 0.0], size=64, method="sparse", values="fixed", target="identity")
    rival = make_run([2.0, 1.5], size=64, method="reinforce", values="fixed", target="identity")
    (row,) = rows(identity=[plain, rival])
    assert row[0] == "identity matrix of 64, rounded error"
    assert row[1] == "converges"
    assert row[2].startswith("0; below 0.001 after ")
    assert row[3] == "REINFORCE: 1.5"


def test_sorts_stand_beside_the_best_peer() -> None:
    runs = [
        make_sorting([0.02], key="a", size=4, strict=[0.03]),
        make_sorting([0.06], key="b", size=4, method="odd_even"),
        make_sorting([0.05], key="c", size=4, method="softsort", lr=0.1),
        make_sorting([0.01], key="d", size=4, method="exact"),
        make_sorting([0.01], key="f", size=4, method="bitonic", other={"status": "diverged"}),
        make_sorting([0.3], key="e", size=32, other={"final": {"error": 0.3}}),
        make_sorting([0.3], key="g", size=8, other={"status": "diverged"}),
    ]
    first, second = rows(sorting=runs)
    assert first == [
        "order of 4 numbers of 3 digits, wrong sets",
        "below 10 %, with ties as they came",
        "2.00 % of test sets; 3.00 % with ties as they came",
        "SoftSort: 5.00 %",
    ]
    assert second[1:] == ["–", "30.00 % of test sets", "–"]


def test_our_sort_is_the_preset_as_it_is_and_the_longest_run() -> None:
    runs = [
        make_sorting([0.04], key="a", steps=6000),
        make_sorting([0.02], key="b", steps=20_000),
        make_sorting([0.01], key="c", steps=30_000, bend=0.0),
        make_sorting([0.01], key="d", steps=30_000, split="validation"),
        make_sorting([0.01], key="e", steps=30_000, network="wide"),
        make_sorting([0.01], key="f", steps=30_000, preset="paper"),
        make_sorting([0.01], key="g", steps=30_000, places=4, network="wide"),
    ]
    (row,) = rows(sorting=runs)
    assert row[2].startswith("2.00 % of test sets")


def test_a_page_is_filled_between_its_marks() -> None:
    page = f"a\n{RESULTS_BEGIN}\nold\n{RESULTS_END}\nb\n"
    filled = fill_summary(page, {})
    assert filled.startswith("a\n")
    assert filled.endswith("b\n")
    assert "old" not in filled
    with pytest.raises(ValueError, match="one of them is missing"):
        fill_summary("no marks", {})
