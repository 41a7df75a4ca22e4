"""The small table of all experiments: numbers by hand, and what is not recorded is not in it."""

from typing import Any

import pytest
from lab.tests.figures.samples import make_attention, make_identity, make_sorting

from sparsewire_lab.figures.tables import marks
from sparsewire_lab.report.summary_table import fill_summary, summary_table


def rows(**records: list[dict[str, Any]]) -> list[list[str]]:
    lines = summary_table(records).splitlines()[2:]
    return [line.strip("| ").split(" | ") for line in lines]


def test_nothing_recorded_makes_no_rows() -> None:
    assert rows() == rows(attention=[], identity=[], sorting=[]) == []


def test_glimpses_are_compared_with_the_best_peer() -> None:
    """Validation runs, other presets, other canvases and what diverged do not count."""
    runs = [
        make_attention([0.0079], key="a"),
        make_attention([0.88], key="b", model="convnet"),
        make_attention([0.6], key="c", model="convnet", reduce=2),
        make_attention([0.001], key="d", model="convnet", canvas=400),
        make_attention([0.002], key="e", split="validation"),
        make_attention([0.003], key="f", preset="paper"),
        make_attention([0.04], key="g", model="transformer", seed=0),
        make_attention([0.06], key="g", model="transformer", seed=1),
        make_attention([0.01], key="h", model="reinforce", other={"status": "diverged"}),
    ]
    task, paper = "digit on 100 × 100 pixels, 1 glimpse of 32 × 32", "0.85 %"
    best = "5.00 ± 1.41 % (spatial transformer)"
    assert rows(attention=runs) == [[task, paper, best, "0.79 %"]]
    (row,) = rows(attention=runs[:3])
    assert row[2] == "60.00 % (plain ConvNet)"
    (row,) = rows(attention=[make_attention([0.05], canvas=400)])
    assert row[1:] == ["–", "–", "5.00 %"]


def test_identities_are_compared_with_reinforce() -> None:
    runs = [
        make_identity([1.0, 0.0], size=64),
        make_identity([2.0, 1.5], size=64, method="reinforce"),
    ]
    runs += [make_identity([2.0, e], seed=s, size=1024, method="rewire", values="ones")
             for s, e in enumerate((1e-4, 2e-4))]  # fmt: skip
    assert rows(identity=runs) == [
        ["identity matrix, n = 64", "converges", "1.5 (REINFORCE)", "0"],
        ["identity matrix, n = 1,024", "–", "–", "0.00015 ± 7.1e-05"],
    ]


def test_sorts_are_compared_in_the_paper_s_error() -> None:
    runs = [
        make_sorting([0.02], key="a", size=4, strict=[0.03]),
        make_sorting([0.06], key="b", size=4, method="odd_even"),
        make_sorting([0.05], key="c", size=4, method="softsort", lr=0.1),
        make_sorting([0.01], key="d", size=4, method="exact"),
        make_sorting([0.01], key="f", size=4, method="bitonic", other={"status": "diverged"}),
        make_sorting([0.3], key="e", size=32),
        make_sorting([0.3], key="g", size=8, other={"status": "diverged"}),
    ]
    assert rows(sorting=runs) == [
        ["order of 4 numbers of 3 digits", "below 10 %", "5.00 % (SoftSort)", "3.00 %"],
        ["order of 32 numbers of 3 digits", "–", "–", "30.00 %"],
    ]


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
    assert row[3] == "2.00 %"


def test_a_page_is_filled_between_its_marks() -> None:
    begin, end = marks("results")
    filled = fill_summary(f"a\n{begin}\nold\n{end}\nb\n", {})
    assert filled == f"a\n{begin}\n\n{summary_table({})}\n{end}\nb\n"
    with pytest.raises(ValueError, match="one of them is missing"):
        fill_summary("no marks", {})
