"""`sparsewire sorting` as it is typed: runs of a few steps, and what they leave behind."""

from typing import Any

import numpy as np
import pytest
from lab.tests.sorting.sorts import checked, of_every_method, run, small
from lab.tests.train.toy import (
    assert_identical,
    finished,
    resumed,
    stop,
    without_times,
)

from sparsewire_lab.cli.main import main

# Checks of annotations draw from Python's generator, and no two runs would draw the same.
pytestmark = pytest.mark.usefixtures("unchecked")

FAST = ["--network", "wide", "--no-figures"]


@pytest.mark.usefixtures("shapes")
@of_every_method
def test_a_run_of_every_method_leaves_its_record(method, tmp_path):
    record = run(tmp_path, "--method", method, *FAST)
    assert (record["status"], record["steps"]) == ("finished", 4)
    assert record["experiment"] == "sorting"
    assert record["arguments"]["method"] == method
    curve, final = record["curve"], record["final"]
    assert curve["step"] == [0, 3, 4]
    for name in ("error", "strict", "elements"):
        assert all(0 <= error <= 1 for error in curve[name])
        assert final[name] == curve[name][-1]
    assert all(e <= s for e, s in zip(curve["error"], curve["strict"], strict=True))
    assert all(e <= s for e, s in zip(curve["elements"], curve["strict"], strict=True))
    assert all(np.isfinite(loss) for loss in curve["loss"][1:])
    assert (tmp_path / record["wiring"]).stat().st_size < 300_000


def test_the_small_digits_are_those_of_scikit_learn(tmp_path):
    """Nothing is fetched for them; errors are shares of 20 sets, and 80 numbers."""
    record = run(tmp_path)
    assert record["arguments"]["network"] == "wide"
    for error in record["curve"]["error"] + record["curve"]["strict"]:
        assert error * 20 == pytest.approx(round(error * 20), abs=1e-4)
    for error in record["curve"]["elements"]:
        assert error * 80 == pytest.approx(round(error * 80), abs=1e-4)
    assert record["final"]["error"] > 0.3


@pytest.mark.usefixtures("shapes")
@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        *(
            (f"--precision bf16 --network {network} --method {method} --no-figures --steps 2", {})
            for network in ("paper", "wide")
            for method in ("likelihood", "sampled")
        ),
        (
            "--preset paper",
            {"method": "sampled", "loss": "steps", "samples": 4, "jitter": 0.0},
        ),
        ("--network wide --no-figures --accumulate 2", {}),
    ],
)
def test_variants_run(words, arguments, tmp_path):
    """Half precision, the paper's preset, a batch in parts."""
    record = run(tmp_path, *words.split())
    assert record["status"] == "finished"
    assert record["arguments"] | arguments == record["arguments"]
    assert np.isfinite(record["curve"]["loss"][-1])


@pytest.mark.parametrize(("words", "name"), [("--places 7", "places"), ("--loss pixels", "loss")])
def test_contradictions_end_the_command_before_any_work(words, name, tmp_path, capsys):
    assert main(["sorting", *words.split(), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"sparsewire sorting: error: {name} ")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("shapes")
def test_shapes_are_learned(tmp_path):
    """Three numbers of ten shapes: most sets are in order after 150 steps, and hardly before."""
    words = ["--size", "3", "--steps", "150", "--batch", "16", "--evaluate-every", "150", *FAST]
    record = run(tmp_path, *words, "--sets", "200", "--jitter", "0")
    before, after = record["curve"]["error"]
    assert before > 0.5
    assert after < 0.2


# Going on after a stop.


@pytest.mark.usefixtures("shapes")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"network": "paper", "dropout": 0.25, "decay": 0.125},
        {"preset": "paper", "places": 2},
        {"method": "sinkhorn"},
    ],
    ids=str,
)
def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(options, tmp_path):
    """Bit by bit: weights, statistics, both moments of Adam, random numbers, learning rates."""
    how: dict[str, Any] = {"tensorboard": False, "quiet": True, "evaluate_every": 4, "steps": 6}
    experiment = checked(small(**how, **options))
    want = finished(experiment, tmp_path / "whole")
    stop(experiment, tmp_path / "parts", 3)
    got = resumed(experiment, tmp_path / "parts")
    assert_identical(without_times(got), without_times(want))
    assert want["step"] == 6
    assert (want["schedule"] is None) == (options.get("preset") == "paper")
