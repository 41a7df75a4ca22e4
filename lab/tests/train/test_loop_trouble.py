"""The loop: full disks, damaged files and bad numbers end it cleanly."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.tests.train.toy import (
    Toy,
    assert_identical,
    finished,
    full_disk,
    resumed,
    stop,
    toy_trial,
    training_of,
    without_times,
)

from sparsewire_lab.files import DiskError
from sparsewire_lab.train.checkpoints import read_checkpoint
from sparsewire_lab.train.loop import DivergedError

# Checks of annotations sample from Python's generator, and no two runs would draw the same.
pytestmark = pytest.mark.usefixtures("unchecked")


def test_checkpoints_are_saved_every_so_many_steps_and_at_the_end(folder: Path) -> None:
    training, steps = training_of(Toy(), folder), []
    save = training.checkpoints.save
    training.checkpoints.save = lambda state: steps.append(state["step"]) or save(state)
    training.run()
    assert steps == [5, 10, 12]
    assert sorted(path.name for path in folder.iterdir()) == ["best.pt", "last.pt", "previous.pt"]


def test_the_best_checkpoint_is_of_the_best_evaluation(folder: Path) -> None:
    """With a large learning rate and noise the last one is not the best."""
    experiment = Toy(lr=0.8, schedule="none", steps=50, noise=2.0)
    state = finished(experiment, folder)
    errors, steps = state["curve"]["error"], state["curve"]["step"]
    best = min(range(1, len(errors)), key=lambda i: errors[i])
    assert 0 < best < len(errors) - 1
    saved = read_checkpoint(folder / "best.pt")
    assert saved["step"] == steps[best]
    assert saved["best"] == errors[best] == state["best"]
    training = training_of(experiment, folder)
    training.trial.model.load_state_dict(saved["model"])
    training.trial.model.eval()
    assert training.trial.evaluate()["error"] == errors[best]


def test_a_run_that_only_gets_worse_has_no_best_checkpoint(folder: Path) -> None:
    training = training_of(Toy(), folder)
    errors = iter(range(10))
    training.trial.evaluate = lambda: {"error": float(next(errors))}
    training.run()
    assert training.best == 0.0
    assert not (folder / "best.pt").exists()


def test_a_full_disk_names_the_last_good_checkpoint_which_can_be_resumed(
    whole: dict[str, Any], folder: Path
) -> None:
    training = training_of(Toy(), folder)
    trial, disk = toy_trial(training), full_disk(1000)
    after_step = trial.after_step

    def fill() -> None:
        after_step()
        if training.step == 10:
            disk.__enter__()

    trial.after_step = fill
    try:
        with pytest.raises(DiskError) as error:
            training.run()
    finally:
        disk.__exit__(None, None, None)
    message = str(error.value)
    assert "last.pt could not be written" in message
    assert f"after step 10; the last good checkpoint is {folder / 'last.pt'}" in message
    assert not [path for path in folder.iterdir() if path.suffix == ".tmp"]
    assert read_checkpoint(folder / "last.pt")["step"] == 5
    assert_identical(without_times(resumed(Toy(), folder)), whole)


def test_a_disk_that_was_full_from_the_start_left_nothing(folder: Path) -> None:
    experiment = Toy(evaluate_every=20)
    with full_disk(1000), pytest.raises(DiskError, match="nothing was saved before"):
        finished(experiment, folder)
    assert list(folder.iterdir()) == []


def test_a_disk_that_fills_at_an_evaluation_names_the_last_good_checkpoint(folder: Path) -> None:
    stop(Toy(), folder, 6)
    (folder / "best.pt").unlink()
    training = training_of(Toy(), folder)
    training.resume()
    training.trial.evaluate = lambda: {"error": 0.0}
    with full_disk(1000), pytest.raises(DiskError, match="the last good checkpoint is"):
        training.run()


def finite_weights(path: Path) -> bool:
    return all(bool(w.isfinite().all()) for w in read_checkpoint(path)["model"].values())


@pytest.mark.parametrize("step", [6, 8, 10, 12])
def test_a_loss_that_is_not_a_number_ends_the_run(step: int, folder: Path) -> None:
    """Also at the steps of an evaluation, of a checkpoint, and at the last one."""
    training = training_of(Toy(nan_at=(step, step + 1)), folder, seed=3)
    with pytest.raises(DivergedError) as error:
        training.run()
    good = 10 if step == 12 else 5
    assert f"NaN or infinite in step {step} of seed 3; " in str(error.value)
    assert f"the last good checkpoint is {folder / 'last.pt'}" in str(error.value)
    assert read_checkpoint(folder / "last.pt")["step"] == good
    for path in folder.iterdir():
        assert finite_weights(path)


def test_nothing_is_saved_after_a_bad_loss_that_nobody_looked_at(folder: Path) -> None:
    """On a GPU losses are looked at now and then only, and before every save."""
    training = training_of(Toy(), folder)
    training.meter.note(torch.tensor(math.nan))
    with pytest.raises(DivergedError, match="in step 1 of seed 0; nothing was saved before"):
        training.save()
    with pytest.raises(DivergedError, match="in step 1 of seed 0; nothing was saved before"):
        finished(Toy(nan_at=(1,)), folder)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("step", "seen"), [(6, "7"), (8, "8"), (11, "12"), (10, "1[01]"), (12, "1[23]")]
)
def test_weights_that_are_not_finite_end_the_run_and_are_not_saved(
    step: int, seen: str, folder: Path
) -> None:
    """The loss of the step is fine, and its gradient infinite: told by the next step or look.

    Also at the step of an evaluation, of a checkpoint, and at the last one.
    """
    with pytest.raises(DivergedError, match=rf"in step {seen} of seed 0; the last good") as e:
        finished(Toy(burst_at=step), folder)
    assert str(folder / "last.pt") in str(e.value)
    for path in folder.iterdir():
        assert finite_weights(path)


@pytest.mark.parametrize("burst_at", [6, None])
def test_an_error_that_comes_of_weights_that_are_not_finite_ends_the_run_too(
    burst_at: int | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an operation that refuses them; an error with another cause is left as it is."""
    training = training_of(Toy(burst_at=burst_at), folder)
    loss = training.trial.loss

    def strict(*given: Any) -> torch.Tensor:
        if training.step == 6:
            raise ValueError("weights must be finite")
        return loss(*given)

    monkeypatch.setattr(training.trial, "loss", strict)
    diverged = pytest.raises(DivergedError, match="in step 7 of seed 0")
    with diverged if burst_at else pytest.raises(ValueError, match=r"^weights must") as error:
        training.run()
    assert isinstance(error.value.__cause__ if burst_at else error.value, ValueError)
