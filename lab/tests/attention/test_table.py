"""The tables of the attention experiment: numbers by hand, and what goes into which."""

from typing import Any

import pytest
from lab.tests.figures.samples import make_attention, rows

from sparsewire_lab.attention.table import (
    attention_table,
    speed_table,
    validation_table,
)

# Ours, where records made here have others.
PRESET: dict[str, Any] = {"settle": 0.5, "straight": 0.6}


def test_a_row_by_hand() -> None:
    """Of 0.8 and 1.0 %: mean 0.9, deviation 0.1 · √2 = 0.14; 1.5 GiB are 1,610,612,736 bytes."""
    runs = [
        make_attention([0.9, error], seed=seed, steps=32_800, other={
            "final": {"error": error, "expected": 0.01, "sampled": 0.02, "sampled16": error},
            "seconds": seconds, "step_ms": step, "peak_memory": memory,
        })
        for seed, (error, seconds, step, memory) in enumerate(
            [(0.008, 44.0, 1.0, 2**30), (0.01, 46.0, 2.0, 1_610_612_736)]
        )
    ]  # fmt: skip
    assert attention_table(runs).splitlines()[2] == (
        "| 100 | 1 glimpse of 32 × 32 | 1,024 of 10,000 (10.2 %) | conv | 32,800 × 128, 45 s | 2 | "
        "0.90 ± 0.14 | 1.00 ± 0.00 | 2.00 ± 0.00 | 0.90 ± 0.14 | 1.5 | 1.50 | 0.85 % |"
    )


def test_a_step_that_shared_its_device_is_marked() -> None:
    runs = [
        make_attention([0.9], seed=seed, other={"step_ms": 2.0, "at_once": shared}, width=64)
        for seed, shared in enumerate((3, 3, 5))
    ]
    for count, said in ((2, "2, 3 at once"), (3, "2, 3 to 5 at once")):
        (row,) = rows(attention_table(runs[:count]))
        assert (row[3], row[-3]) == ("conv 64", said)


def test_steps_are_timed_beside_the_plain_network() -> None:
    runs = [
        make_attention([0.9], key=f"{model}{preset}", seed=seed, model=model, preset=preset,
                       split="validation", other={"step_ms": ms + seed})
        for model, preset, ms in (
            ("glimpse", "paper", 2.0), ("convnet", "paper", 1.0), ("glimpse", "ours", 9.0)
        )
        for seed in (0, 1)
    ]  # fmt: skip
    assert rows(speed_table(runs)) == [
        ["plain ConvNet, paper's settings", "2", "1.5", "1.00 ×"],
        ["1 glimpse of 32 × 32, paper's settings", "2", "2.5", "1.67 ×"],
    ]
    (searched,) = rows(validation_table(runs))
    assert searched[0] == "1 glimpse of 32 × 32"
    alone = [run for run in runs if run["arguments"]["model"] == "glimpse"]
    assert rows(speed_table(alone))[0][-1] == "–"
    assert speed_table([]) == "No run is recorded yet.\n"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(4.0, "4 s"), (3.21, "3.2 s"), (599.0, "599 s"), (900.0, "15 min"), (9000.0, "2.5 h")],
)
def test_a_row_with_little_known_and_times_are_short(seconds: float, words: str) -> None:
    run = make_attention([0.9, 0.0123], model="convnet", other={"seconds": seconds})
    assert attention_table([run]).splitlines()[2] == (
        f"| 100 | plain ConvNet | all | – | 1,000 × 128, {words} | 1 | "
        "1.23 | – | – | – | – | – | – |"
    )


def test_seeds_that_diverged_are_said_and_not_averaged() -> None:
    bad = {"status": "diverged", "final": {"error": 0.9}, "seconds": 900.0}
    runs = [
        make_attention([0.01], seed=0, other={"seconds": 20.0}),
        make_attention([0.03], seed=1, other={"seconds": 40.0}),
        make_attention([0.9], seed=2, other=bad),
    ]
    (row,) = rows(attention_table(runs))
    assert row[4:7] == ["1,000 × 128, 30 s", "1 of 3 diverged", "2.00 ± 1.41"]
    (row,) = rows(attention_table(runs[2:]))
    assert row[4:7] == ["1,000 × 128, –", "1 of 1 diverged", "–"]


@pytest.mark.parametrize(
    ("arguments", "reads", "paper"),
    [
        ({}, "1,024 of 10,000 (10.2 %)", "0.85 %"),
        ({"preset": "paper"}, "1,024 of 10,000 (10.2 %)", "0.85 %"),
        ({"glimpses": 8, "size": 12}, "1,152 of 10,000 (11.5 %)", "1.01 %"),
        ({"glimpses": 2, "size": 12}, "288 of 10,000 (2.88 %)", "–"),
        ({"data": "digits"}, "1,024 of 10,000 (10.2 %)", "–"),
        ({"canvas": 400, "reduce": 4}, "1,024 of 160,000 (0.64 %)", "–"),
        ({"model": "transformer"}, "1,024 of 10,000 (10.2 %)", "–"),
        ({"model": "convnet", "reduce": 4}, "all, reduced 4 ×", "–"),
    ],
)
def test_what_is_read_and_what_the_paper_says(arguments: dict, reads: str, paper: str) -> None:
    (row,) = rows(attention_table([make_attention([0.1], **arguments)]))
    assert (row[2], row[-1]) == (reads, paper)


def test_rows_begin_with_canvas_and_data() -> None:
    runs = [make_attention([0.1], key="a", canvas=400)]
    runs.append(make_attention([0.1], key="b", data="digits", canvas=60))
    assert [row[0] for row in rows(attention_table(runs))] == ["60, digits", "400"]


def test_validation_rows_have_a_table_of_their_own() -> None:
    final = {"error": 0.02, "expected": 0.03, "sampled": 0.04, "sampled16": 0.05}
    floor: dict[str, Any] = {"split": "validation", "floor": 0.05, "other": {"final": final}}
    runs = [
        make_attention([0.5], key="a"),
        make_attention([0.02], key="b", **floor),
        make_attention([0.01], key="c", split="validation", model="convnet", **PRESET),
    ]
    assert validation_table(runs).splitlines()[2:] == [
        "| plain ConvNet | – | 1,000 × 128 | 1 | 1.00 | – | – | – |",
        "| 1 glimpse of 32 × 32 | floor 0.05, settle 0.7, straight 1 | 1,000 × 128 | 1 | "
        "2.00 | 3.00 | 4.00 | 5.00 |",
    ]
    assert [row[6] for row in rows(attention_table(runs))] == ["50.00"]


def test_validation_rows_say_what_was_tried() -> None:
    """The preset first, then in the order of the arguments, whatever the order of the runs."""
    tried = [
        {"settle": 0.0, "straight": 1.0},
        {"zoom": 0.0},
        {"settle": 0.0},
        {"width": 64},
        {},
        {"glimpses": 8, "size": 12, "width": 32},
        {"source": "convnet", "squash": "corners"},
        {"head": "mlp"},
    ]
    usual = PRESET | {"width": 32, "zoom": 1.0, "source": "finder", "squash": "none"}
    runs = [
        make_attention([0.1], key=str(i), split="validation", **(usual | setting))
        for i, setting in enumerate(tried)
    ]
    one, eight = "1 glimpse of 32 × 32", "8 glimpses of 12 × 12"
    assert [row[:2] for row in rows(validation_table(runs))] == [
        [one, "–"],
        [one, "mlp head"],
        [one, "width 64"],
        [one, "settle 0"],
        [one, "settle 0, straight 1"],
        [one, "zoom 0"],
        [one, "source convnet"],
        [eight, "width 32"],
    ]
