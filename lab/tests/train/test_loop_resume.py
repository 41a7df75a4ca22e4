"""The loop: a run that was stopped goes on as if it had not been."""

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
from sparsewire_lab.train.loop import StoppedError, Training, load_optimizer

# Checks of annotations sample from Python's generator, and no two runs would draw the same.
pytestmark = pytest.mark.usefixtures("unchecked")


@given(
    step=st.integers(1, 12),
    evaluate_every=st.sampled_from([1, 4, 5, 12, 20]),
    checkpoint_every=st.sampled_from([1, 5, 6, 1000]),
    accumulate=st.sampled_from([1, 2]),
    schedule=st.booleans(),
    number=st.sampled_from([signal.SIGINT, signal.SIGTERM]),
)
@settings(max_examples=30)
def test_a_stopped_run_goes_on_as_if_it_had_not_been_stopped(
    step: int, number: int, **arguments: Any
) -> None:
    experiment = Toy(**arguments)
    with tempfile.TemporaryDirectory() as name:
        want = finished(experiment, Path(name) / "whole")
        stop(experiment, Path(name) / "parts", step, number)
        got = resumed(experiment, Path(name) / "parts")
        assert_identical(without_times(got), without_times(want))
        saved = read_checkpoint(Path(name) / "parts" / "last.pt")
        assert_identical(without_times(saved), without_times(want))


def test_a_run_can_be_stopped_after_every_step(whole: dict[str, Any], folder: Path) -> None:
    for step in range(1, 12):
        training = training_of(Toy(stop_at=step), folder)
        if step > 1:
            assert training.resume() == []
            assert training.step == step - 1
        with pytest.raises(StoppedError):
            training.run()
    assert_identical(without_times(resumed(Toy(), folder)), whole)


def test_the_toy_samples_from_every_generator(whole: dict[str, Any], folder: Path) -> None:
    begun = training_of(Toy(), folder).state()["random"]
    assert begun.keys() == {"python", "numpy", "torch"}
    assert begun["python"] != whole["random"]["python"]
    assert not torch.equal(begun["torch"], whole["random"]["torch"])
    assert begun["numpy"][2:] != whole["random"]["numpy"][2:]
    other = finished(Toy(), folder, seed=1)
    assert not torch.equal(other["model"]["0.weight"], whole["model"]["0.weight"])


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
        assert want["extras"]["rewire"]["moves"] > 0
    stop(experiment, folder / "parts", step)
    assert_identical(without_times(resumed(experiment, folder / "parts")), without_times(want))


def test_from_the_previous_checkpoint_it_ends_the_same(whole: dict[str, Any], folder: Path) -> None:
    stop(Toy(), folder, 7)
    last = folder / "last.pt"
    last.write_bytes(last.read_bytes()[:1000])
    training = training_of(Toy(), folder)
    (problem,) = training.resume()
    assert str(last) in problem
    assert training.step == 5
    training.run()
    assert_identical(without_times(training.state()), whole)


def test_a_finished_run_stays_as_it_is_when_it_is_resumed(folder: Path) -> None:
    want = finished(Toy(), folder)
    assert_identical(without_times(resumed(Toy(), folder)), without_times(want))


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


def test_bookkeeping_may_change_on_the_way(whole: dict[str, Any], folder: Path) -> None:
    stop(Toy(checkpoint_every=1), folder, 7)
    state = resumed(Toy(checkpoint_every=100, resume=True, out=Path("other")), folder)
    assert_identical(without_times(state), whole)


def test_a_second_ctrl_c_ends_at_once(folder: Path) -> None:
    training = training_of(Toy(), folder)

    def press_twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    training.trial.after_step = press_twice
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        training.run()
    assert not training.checkpoints.exist()
    assert signal.getsignal(signal.SIGINT) == before


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
    ],
)
def test_a_state_that_does_not_fit_is_passed_over_for_the_previous(
    change: dict[str, Any], why: str, whole: dict[str, Any], folder: Path
) -> None:
    stop(Toy(), folder, 7)
    last = folder / "last.pt"
    last.write_bytes(packed(read_checkpoint(last) | change))
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


def test_a_schedule_of_more_than_the_rate_goes_on_too(folder: Path) -> None:
    """One cycle moves Adam's first beta too."""

    def make(name: str, step: int | None = None) -> Training:
        training = training_of(Toy(schedule=False, stop_at=step), folder / name)
        training.trial.schedule = torch.optim.lr_scheduler.OneCycleLR(
            training.trial.optimizer, max_lr=0.1, total_steps=13
        )
        return training

    whole = make("whole")
    whole.run()
    with pytest.raises(StoppedError):
        make("parts", 7).run()
    rest = make("parts")
    rest.resume()
    rest.run()
    assert_identical(rest.state()["model"], whole.state()["model"])
