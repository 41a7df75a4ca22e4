"""The loop: a run that was stopped goes on as if it had not been."""

import dataclasses
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.tests.train.toy import (
    Toy,
    assert_identical,
    finished,
    resumed,
    stop,
    training_of,
    without_times,
)

from sparsewire_lab.identity.experiment import Identity
from sparsewire_lab.train.checkpoints import CheckpointError, packed, read_checkpoint
from sparsewire_lab.train.loop import StoppedError, load_optimizer

# Checks of annotations sample from Python's generator, and no two runs would draw the same.
pytestmark = pytest.mark.usefixtures("unchecked")


@given(
    steps=st.sets(st.integers(1, 12), min_size=1, max_size=3),
    evaluate_every=st.sampled_from([1, 4, 5, 12, 20]),
    checkpoint_every=st.sampled_from([1, 5, 6, 1000]),
    accumulate=st.sampled_from([1, 2]),
    precision=st.sampled_from(["fp32", "bf16"]),
    schedule=st.sampled_from(["none", "halved", "cycle"]),
    number=st.sampled_from([signal.SIGINT, signal.SIGTERM]),
)
@settings(max_examples=30)
def test_a_stopped_run_goes_on_as_if_it_had_not_been_stopped(
    steps: set[int], number: int, **arguments: Any
) -> None:
    """However often it is stopped, and if bookkeeping changes; an ended one stays as it is."""
    experiment = Toy(**arguments)
    changed = dataclasses.replace(experiment, checkpoint_every=7, resume=True, out=Path("other"))
    with tempfile.TemporaryDirectory() as name:
        want = without_times(finished(experiment, Path(name) / "whole"))
        parts = Path(name) / "parts"
        for step in sorted(steps):
            stop(experiment, parts, step, number)
        for _ in range(2):
            assert_identical(without_times(resumed(changed, parts)), want)
        assert_identical(without_times(read_checkpoint(parts / "last.pt")), want)


@pytest.mark.parametrize("step", [13, 20, 33])
@pytest.mark.parametrize(
    "arguments",
    [
        {"method": "rewire", "rewire_every": 10, "tuples": 24, "wirings": 2, "accumulate": 2},
        {"method": "reinforce", "target": "permutation"},
        {"target": "band"},
    ],
    ids=lambda arguments: arguments.get("method", "sparse"),
)
def test_the_identity_goes_on_as_if_it_had_not_been_stopped(
    arguments: dict[str, Any], step: int, folder: Path
) -> None:
    given = {"size": 8, "steps": 40, "batch": 16, "evaluate_every": 10, "checkpoint_every": 15}
    given |= {"device": "cpu", "tensorboard": False, "quiet": True}
    experiment = Identity(**given, **arguments).resolved()
    want = finished(experiment, folder / "whole")
    if experiment.method == "rewire":
        assert want["extras"]["rewire"]["layers"][0]["moves"] > 0
    stop(experiment, folder / "parts", step)
    assert_identical(without_times(resumed(experiment, folder / "parts")), without_times(want))


def test_wall_time_goes_on_too(folder: Path) -> None:
    stop(Toy(), folder, 7)
    spent = read_checkpoint(folder / "last.pt")["seconds"]
    training = training_of(Toy(), folder)
    training.resume()
    assert spent <= training.seconds < spent + 60
    training.run()
    seconds = training.curve["seconds"]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize(
    ("arguments", "seed", "words"),
    [({"lr": 0.06}, 0, "lr 0.05 and not 0.06"), ({}, 1, "seed 0 and not 1")],
)
def test_a_checkpoint_of_another_run_is_refused(
    arguments: dict[str, Any], seed: int, words: str, folder: Path
) -> None:
    stop(Toy(), folder, 3)
    training = training_of(Toy(**arguments), folder, seed)
    with pytest.raises(CheckpointError, match=f"is of another run: {words}"):
        training.resume()


@pytest.mark.parametrize("step", [0, 4, 12])
def test_a_signal_ends_an_evaluation_which_is_made_again(
    step: int, whole: dict[str, Any], folder: Path
) -> None:
    training = training_of(Toy(), folder)
    batches, judged = training.trial.batches, []

    def interrupted(parts: Any) -> Any:
        for part in batches(parts):
            yield part
            judged.append(part)
            if training.step == step:
                signal.raise_signal(signal.SIGTERM)

    training.trial.batches = interrupted
    with pytest.raises(StoppedError, match=f"stopped and saved after step {step}"):
        training.run()
    assert len(judged) == 2 * (step // 4) + 1  # the second part of the last evaluation is left out
    assert step not in read_checkpoint(folder / "last.pt")["curve"].get("step", [])
    assert_identical(without_times(resumed(Toy(), folder)), whole)


def test_a_signal_is_forgotten_after_the_evaluations(folder: Path) -> None:
    """What follows a run is made by the first process alone, and must not ask the others."""
    training = training_of(Toy(), folder)
    training.run()
    training._interrupts.received = signal.SIGTERM
    assert training.trial.evaluate()["error"] > 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model": {}}, "does not fit this run: RuntimeError: Error"),
        ({"optimizer": {"state": 1}}, "does not fit this run: KeyError: 'param_groups'"),
        ({"extras": {}}, "does not fit this run: KeyError: 'cursor'"),
        ({"meter": {}}, "does not fit this run: KeyError"),
        ({"random": {"python": 1}}, "does not fit this run"),
        ({"step": 13}, "must have at most 12 steps; got 13"),
        (None, "is damaged"),
    ],
)
def test_a_state_that_does_not_fit_is_passed_over_for_the_previous(
    change: dict[str, Any] | None, why: str, whole: dict[str, Any], folder: Path
) -> None:
    stop(Toy(), folder, 7)
    last = folder / "last.pt"
    state = packed(read_checkpoint(last) | (change or {}))
    last.write_bytes(state if change else state[:1000])
    training = training_of(Toy(), folder)
    (problem,) = training.resume()
    assert problem.startswith(f"{last} ")
    assert why in problem
    assert training.step == 5
    training.run()
    assert_identical(without_times(training.state()), whole)


def test_an_optimiser_keeps_how_it_computes_here() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    there = torch.optim.Adam([parameter], lr=torch.tensor(0.25), foreach=False)
    here = torch.optim.Adam([parameter], lr=0.5, foreach=True)
    load_optimizer(here, there.state_dict())
    (group,) = here.param_groups
    assert group["lr"] == 0.25
    assert isinstance(group["lr"], float)
    assert group["foreach"] is True
