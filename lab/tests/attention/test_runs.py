"""`sparsewire attention` as it is typed: runs of a few steps, and what they leave behind."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lab.tests.attention.trials import of_every_looking_model, of_every_model
from lab.tests.train.toy import (
    assert_identical,
    finished,
    resumed,
    stop,
    training_of,
    without_times,
)

from sparsewire_lab.attention.experiment import Attention, Model
from sparsewire_lab.attention.frames import read_frames
from sparsewire_lab.attention.trial import AttentionTrial
from sparsewire_lab.cli.main import main

# Checks of annotations draw from Python's generator, and no two runs would draw the same.
pytestmark = pytest.mark.usefixtures("unchecked")

WORDS = ["--data", "digits", "--steps", "3", "--batch", "8", "--device", "cpu", "--quiet"]
WORDS += ["--evaluate-every", "2", "--no-tensorboard", "--no-figures"]

SMALL: dict[Model, list[str]] = {
    "glimpse": ["--size", "6", "--glimpses", "2", "--local-samples", "4", "--global-samples", "2"],
    "convnet": [],
    "transformer": ["--size", "6"],
    "reinforce": ["--size", "6", "--glimpses", "2"],
}


def words_of(model: Model, out: Path) -> list[str]:
    return ["attention", "--model", model, *WORDS, *SMALL[model], "--out", str(out)]


def recorded(out: Path) -> dict[str, Any]:
    (line,) = (out / "attention.jsonl").read_text().splitlines()
    return json.loads(line)


def run(model: Model, out: Path, *words: str) -> dict[str, Any]:
    """Run the command; return its record."""
    assert main([*words_of(model, out), *words]) == 0
    return recorded(out)


@pytest.mark.usefixtures("glyphs")
@of_every_model
def test_a_run_of_every_model_leaves_its_record(model, tmp_path):
    record = run(model, tmp_path)
    assert (record["status"], record["steps"]) == ("finished", 3)
    assert record["arguments"]["model"] == model
    curve, final = record["curve"], record["final"]
    assert curve["step"] == [0, 2, 3]
    assert all(0 <= error <= 1 for error in curve["error"])
    assert all(np.isfinite(loss) for loss in curve["loss"][1:])
    ways = {"glimpse": {"expected", "sampled", "sampled16"}, "reinforce": {"sampled", "sampled16"}}
    assert final.keys() == {"error"} | ways.get(model, set())
    assert final["error"] == curve["error"][-1]
    assert record["step_ms"] > 0
    assert record["peak_memory"] is None
    assert (record["wiring"] is None) == (model == "convnet")

    if record["wiring"] is not None:
        check_frames(tmp_path / record["wiring"], model)


def check_frames(path: Path, model: Model) -> None:
    """See that figures can read where a run looked."""
    looks, glimpses = read_frames(path), 1 if model == "transformer" else 2
    assert looks.step.tolist() == [0, 2, 3]
    assert looks.corners.shape == (3, 8, glimpses, 4, 2)
    assert looks.tracked == 8
    m = len(looks.images)
    assert looks.images.shape == (m, 60, 60)
    assert looks.points.shape == (m, glimpses, 6, 6, 2)
    assert looks.glimpses.shape == (m, glimpses, 6, 6)
    assert (looks.sampled is not None) == (model == "glimpse")
    # The last frame and the constants are of one model.
    ends = looks.points[:8][:, :, [0, 0, -1, -1], [0, -1, 0, -1]]
    np.testing.assert_allclose(looks.corners[-1], ends, rtol=1e-6)
    wrong = looks.predicted != looks.labels
    assert wrong[8:].all()
    assert m < 16 or wrong[8:].sum() == 8


VARIANTS = {  # the paper's preset, its source with our settings, half precision, no frames
    "preset paper": (["--preset", "paper"], {"head": "mlp", "source": "convnet"}),
    "source convnet": (["--source", "convnet"], {"head": "conv", "source": "convnet"}),
    "precision bf16": (["--precision", "bf16", "--no-keep-frames"], {"precision": "bf16"}),
}


@pytest.mark.usefixtures("glyphs")
@of_every_looking_model
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_run(model, variant, tmp_path):
    words, arguments = VARIANTS[variant]
    more = ["--region", "6"] if (model, variant) == ("glimpse", "preset paper") else []
    record = run(model, tmp_path, *words, *more, "--steps", "2")
    assert record["status"] == "finished"
    assert record["arguments"] | arguments == record["arguments"]
    assert np.isfinite(record["curve"]["loss"][-1])
    if "--no-keep-frames" in words:
        assert record["wiring"] is None
        assert not list(tmp_path.rglob("*.npz"))


@pytest.mark.usefixtures("glyphs")
@of_every_model
def test_a_diverged_run_of_every_model_is_recorded(model, tmp_path, capsys):
    assert main([*words_of(model, tmp_path), "--steps", "20", "--lr", "1e38"]) == 1
    record = recorded(tmp_path)
    assert record["status"] == "diverged"
    assert record["final"].keys() == {"error"}
    assert record["problem"] in capsys.readouterr().err


def test_the_small_digits_are_those_of_scikit_learn(tmp_path):
    """Nothing is fetched for them; errors are shares of 300."""
    record = run("convnet", tmp_path, "--evaluate-every", "3")
    for error in record["curve"]["error"]:
        assert error * 300 == pytest.approx(round(error * 300))
    assert 0.5 < record["final"]["error"] <= 1


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--model", "convnet", "--size", "5"], "size"),  # when arguments are checked
        (["--squash", "points"], "source finder"),  # when they are resolved
    ],
)
def test_contradictions_end_the_command_before_any_work(words, name, tmp_path, capsys):
    assert main(["attention", *words, "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"sparsewire attention: error: {name} ")
    assert not (tmp_path / "out").exists()


# Going on after a stop.


def setting(model: Model) -> Attention:
    given: dict[str, Any] = {"data": "digits", "device": "cpu", "batch": 8, "steps": 6}
    given |= {"tensorboard": False, "quiet": True, "evaluate_every": 4, "cosine": True}
    given["spread"] = 0.8
    if model != "convnet":
        given |= {"size": 6, "dropout": 0.25}
    if model == "glimpse":
        given |= {"local_samples": 4, "global_samples": 2}
        given |= {"hold": 0.1, "settle": 0.9, "straight": 0.5}
    return Attention(model=model, **given).resolved()


@pytest.mark.usefixtures("glyphs")
@of_every_model
def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(model, tmp_path):
    """Bit by bit: weights, both moments of Adam, random numbers, frames, how far clocks went.

    After 3 of 6 steps: digits are placed from 0.5 to everywhere in 0.8 of them.
    """
    experiment = setting(model)
    want = finished(experiment, tmp_path / "whole")
    stop(experiment, tmp_path / "parts", 3)
    training = training_of(experiment, tmp_path / "parts")
    training.resume()
    trial = training.trial
    assert isinstance(trial, AttentionTrial)
    assert all(clock.step == 3 for clock in trial.clocks.values())
    assert trial.share is not None
    assert trial.share.item() == pytest.approx(0.5 + 0.5 * 0.5 / 0.8)
    if model == "glimpse":
        layer: Any = trial.model.look.layer  # pyright: ignore[reportAttributeAccessIssue]
        assert layer.variance_factor.item() == pytest.approx(0.5**3)
        assert layer.hardness.item() == 1.0
    got = resumed(experiment, tmp_path / "parts")
    assert_identical(without_times(got), without_times(want))
    assert want["extras"].keys() == {"placement", *(["annealing"] if model == "glimpse" else [])}
    assert all(state == {"step": 6} for state in want["extras"].values())


@pytest.mark.usefixtures("glyphs")
@of_every_model
def test_seeds_decide_where_a_run_begins(model, tmp_path):
    states = [training_of(setting(model), tmp_path, seed).state()["model"] for seed in (0, 1, 0)]
    assert all(torch.equal(states[0][name], states[2][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[1][name]) for name in states[0])
