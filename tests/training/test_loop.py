"""The loop: what goes on after a stop is what would have been, and every end is clean."""

import dataclasses
import math
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import (
    DATA,
    Toy,
    ToyTrial,
    assert_identical,
    finished,
    full_disk,
    resumed,
    training_of,
    without_times,
)

from sparsewire.experiments.identity import Identity
from sparsewire.training.checkpoints import CheckpointError, read_checkpoint
from sparsewire.training.files import DiskError
from sparsewire.training.loop import DivergedError, Meter, StoppedError, Training, load_optimizer
from sparsewire.training.randomness import random_state
from sparsewire.training.trial import Share

CPU = torch.device("cpu")

# Checks of annotations draw from Python's generator, and no two runs would draw the same.
pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def toy_trial(training: Training) -> ToyTrial:
    assert isinstance(training.trial, ToyTrial)
    return training.trial


def stop(experiment: Any, folder: Path, step: int, number: int = signal.SIGTERM) -> None:
    """Run until a signal comes right after a step."""
    training = training_of(experiment, folder)
    after_step = training.trial.after_step

    def raise_signal() -> None:
        after_step()
        if training.step == step:
            signal.raise_signal(number)

    training.trial.after_step = raise_signal
    before = signal.getsignal(number)
    with pytest.raises(StoppedError, match=f"stopped and saved after step {step:,}") as stopped:
        training.run()
    assert stopped.value.number == number
    assert signal.getsignal(number) == before
    assert read_checkpoint(folder / "last.pt")["step"] == step


# --- going on after a stop -----------------------------------------------------------------------


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


@pytest.fixture
def whole(unchecked: None, tmp_path: Path) -> dict[str, Any]:
    return without_times(finished(Toy(), tmp_path / "whole"))


@pytest.mark.parametrize("step", range(1, 13))
def test_every_step_can_be_the_last_before_a_stop(
    step: int, whole: dict[str, Any], folder: Path
) -> None:
    stop(Toy(), folder, step)
    assert_identical(without_times(resumed(Toy(), folder)), whole)


def test_a_run_can_be_stopped_after_every_step(whole: dict[str, Any], folder: Path) -> None:
    for step in range(1, 12):
        training = training_of(Toy(stop_at=step), folder)
        if step > 1:
            assert training.resume() == []
            assert training.step == step - 1
        with pytest.raises(StoppedError):
            training.run()
    assert_identical(without_times(resumed(Toy(), folder)), whole)


def test_the_toy_draws_from_every_generator(whole: dict[str, Any], folder: Path) -> None:
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


def test_nothing_to_resume_is_said(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="there is none in"):
        training_of(Toy(), folder).resume()


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


def test_a_signal_while_the_end_is_saved_is_not_forgotten(folder: Path) -> None:
    training = training_of(Toy(), folder)
    save = training.checkpoints.save

    def raise_signal(state: dict[str, Any]) -> None:
        save(state)
        if state["step"] == 12:
            signal.raise_signal(signal.SIGTERM)

    training.checkpoints.save = raise_signal
    training.run()
    assert training.signal == signal.SIGTERM


# --- steps ---------------------------------------------------------------------------------------


def gradient_of(folder: Path, **arguments: Any) -> tuple[torch.Tensor, float]:
    """The gradient and the loss of a first step, without any randomness."""
    experiment = Toy(drop=0.0, noise=0.0, batch=16, **arguments)
    training = training_of(experiment, folder)
    loss = training.advance()
    gradient = toy_trial(training).linear.weight.grad
    assert gradient is not None
    return gradient, loss.item()


def test_parts_of_a_batch_add_up_to_its_gradient(folder: Path) -> None:
    training = training_of(Toy(), folder)
    linear = toy_trial(training).linear
    x = DATA[:16]
    loss = (linear(x) - x.sum(1, keepdim=True)).square().mean()
    (want,) = torch.autograd.grad(loss, [linear.weight])
    for accumulate in (1, 2, 4):
        gradient, mean = gradient_of(folder, accumulate=accumulate)
        torch.testing.assert_close(gradient, want)
        assert mean == pytest.approx(loss.item())


def test_parts_of_a_batch_end_where_the_whole_one_does(folder: Path) -> None:
    ends = []
    for accumulate in (1, 2):
        experiment = Toy(drop=0.0, noise=0.0, batch=16, accumulate=accumulate)
        ends.append(finished(experiment, folder / str(accumulate)))
    torch.testing.assert_close(ends[1]["model"], ends[0]["model"])
    assert ends[1]["curve"]["loss"][1:] == pytest.approx(ends[0]["curve"]["loss"][1:])


def test_the_schedule_is_followed(folder: Path) -> None:
    training = training_of(Toy(), folder)
    rates = []
    loss = training.trial.loss

    def noted(model: Any, batch: int, share: Share) -> torch.Tensor:
        rates.append(training.trial.optimizer.param_groups[0]["lr"])
        return loss(model, batch, share)

    training.trial.loss = noted
    training.run()
    assert rates == [0.05] * 4 + [0.025] * 4 + [0.0125] * 4


def test_the_curve_has_a_point_for_every_evaluation(folder: Path) -> None:
    experiment = Toy(steps=10)
    training = training_of(experiment, folder)
    losses = []
    advance = training.advance

    def noted() -> torch.Tensor:
        losses.append(float(loss := advance()))
        return loss

    training.advance = noted
    training.run()
    curve = training.curve
    assert curve["step"] == [0, 4, 8, 10]
    means = [sum(losses[a:b]) / (b - a) for a, b in ((0, 4), (4, 8), (8, 10))]
    assert curve["loss"] == [None, *(pytest.approx(mean) for mean in means)]
    assert len(curve["error"]) == len(curve["seconds"]) == 4
    assert training.frames["step"].tolist() == [0, 4, 8, 10]
    assert training.frames["weight"].shape == (4, 1, 4)
    assert torch.equal(training.frames["weight"][-1], toy_trial(training).linear.weight)


def test_the_first_frame_is_of_the_first_evaluation(folder: Path) -> None:
    training = training_of(Toy(), folder)
    weight = toy_trial(training).linear.weight
    first = weight.detach().clone()
    training.trial.snapshot = lambda step: {"weight": weight}
    training.run()
    assert torch.equal(training.frames["weight"][-1], weight)
    assert torch.equal(training.frames["weight"][0], first)


def test_without_snapshots_there_are_no_frames(folder: Path) -> None:
    assert finished(Toy(frames=False), folder)["frames"] == {}


def test_a_run_that_learns_ends_better(folder: Path) -> None:
    errors = finished(Toy(drop=0.0, steps=200, schedule=False), folder)["curve"]["error"]
    assert errors[-1] < 0.1 * errors[0]


def test_evaluations_leave_random_numbers_alone(folder: Path) -> None:
    """Dropout is off in them, and they have generators of their own."""
    rare, often = (finished(Toy(evaluate_every=n), folder / str(n)) for n in (12, 1))
    assert_identical(often["model"], rare["model"])
    assert_identical(often["random"], rare["random"])
    given = {"size": 8, "steps": 5, "batch": 8, "device": "cpu", "tensorboard": False}
    training = training_of(Identity(**given, quiet=True).resolved(), folder)
    before = random_state(CPU)
    training.trial.evaluate()
    training.trial.snapshot(0)
    assert_identical(random_state(CPU), before)


def test_models_train_in_their_training_mode(folder: Path) -> None:
    training = training_of(Toy(), folder)
    modes: dict[str, set[bool]] = {"loss": set(), "evaluate": set()}
    for name in modes:
        method = getattr(training.trial, name)

        def noted(*arguments: Any, name: str = name, method: Any = method) -> Any:
            modes[name].add(training.trial.model.training)
            return method(*arguments)

        setattr(training.trial, name, noted)
    training.run()
    assert modes == {"loss": {True}, "evaluate": {False}}


def test_until_stops_after_the_first_evaluation_below_it(folder: Path) -> None:
    experiment = Toy(drop=0.0, noise=0.0, steps=400, schedule=False, evaluate_every=10)
    errors = finished(experiment, folder / "whole")["curve"]["error"]
    limit = errors[5] * 1.0001
    first = next(i for i, error in enumerate(errors) if error < limit)
    early = finished(dataclasses.replace(experiment, until=limit), folder / "early")
    assert early["step"] == 10 * first < 400
    assert early["curve"]["error"] == errors[: first + 1]
    assert read_checkpoint(folder / "early" / "last.pt")["step"] == early["step"]


def test_until_that_is_never_reached_changes_nothing(whole: dict[str, Any], folder: Path) -> None:
    assert_identical(without_times(finished(Toy(until=1e-30), folder)), whole)


def test_bfloat16_runs_on_the_cpu(folder: Path) -> None:
    experiment = Toy(precision="bf16", drop=0.0, noise=0.0, batch=16)
    gradient, _ = gradient_of(folder / "step", precision="bf16")
    exact, _ = gradient_of(folder / "step")
    assert gradient.dtype == torch.float32
    assert not torch.equal(gradient, exact)
    torch.testing.assert_close(gradient, exact, rtol=0.05, atol=0.05)
    want = finished(experiment, folder / "whole")
    stop(experiment, folder / "parts", 6)
    assert_identical(without_times(resumed(experiment, folder / "parts")), without_times(want))


# --- checkpoints ---------------------------------------------------------------------------------


def test_checkpoints_are_saved_every_so_many_steps_and_at_the_end(folder: Path) -> None:
    training = training_of(Toy(), folder)
    steps = []
    save = training.checkpoints.save

    def noted(state: dict[str, Any]) -> None:
        steps.append(state["step"])
        save(state)

    training.checkpoints.save = noted
    training.run()
    assert steps == [5, 10, 12]
    assert sorted(path.name for path in folder.iterdir()) == ["best.pt", "last.pt", "previous.pt"]


def test_the_best_checkpoint_is_of_the_best_evaluation(folder: Path) -> None:
    """With a large learning rate and noise the last one is not the best."""
    experiment = Toy(lr=0.8, schedule=False, steps=50, noise=2.0)
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


# --- divergence ----------------------------------------------------------------------------------


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
    with pytest.raises(DivergedError, match="in step 1 of seed 0"):
        training.save()
    assert not folder.exists()


def test_a_first_step_that_diverges_saved_nothing(folder: Path) -> None:
    with pytest.raises(DivergedError, match="in step 1 of seed 0; nothing was saved before"):
        finished(Toy(nan_at=(1,)), folder)
    assert not folder.exists()


@pytest.mark.parametrize("step", [6, 8, 11])
def test_weights_that_are_not_finite_end_the_run(step: int, folder: Path) -> None:
    """The loss of the step is fine, and its gradient infinite: told by the next step or look."""
    seen = step if step == 8 else step + 1
    with pytest.raises(DivergedError, match=rf"in step {seen} of seed 0; the last good") as e:
        finished(Toy(burst_at=step), folder)
    assert str(folder / "last.pt") in str(e.value)
    for path in folder.iterdir():
        assert finite_weights(path)


@pytest.mark.parametrize("step", [10, 12])
def test_weights_that_are_not_finite_are_not_saved(step: int, folder: Path) -> None:
    """At the step of a checkpoint, and at the last one."""
    with pytest.raises(DivergedError):
        finished(Toy(burst_at=step), folder)
    for path in folder.iterdir():
        assert finite_weights(path)


def test_an_operation_that_refuses_weights_that_are_not_finite_ends_the_run_too(
    folder: Path,
) -> None:
    training = training_of(Toy(burst_at=6), folder)
    trial = toy_trial(training)
    loss = trial.loss

    def strict(model: Any, batch: int, share: Share) -> torch.Tensor:
        if not trial.linear.weight.isfinite().all():
            raise ValueError("weights must be finite")
        return loss(model, batch, share)

    trial.loss = strict
    with pytest.raises(DivergedError, match="in step 7 of seed 0") as error:
        training.run()
    assert isinstance(error.value.__cause__, ValueError)


def test_other_errors_are_left_as_they_are(folder: Path) -> None:
    training = training_of(Toy(), folder)

    def fail(model: Any, batch: int, share: Share) -> torch.Tensor:
        raise ValueError("something else")

    training.trial.loss = fail
    with pytest.raises(ValueError, match="something else"):
        training.run()


# --- the meter -----------------------------------------------------------------------------------


def test_the_meter_has_the_mean_since_it_was_asked() -> None:
    meter = Meter(CPU)
    assert meter.mean() is None
    for loss in (1.0, 2.0, 6.0):
        meter.note(torch.tensor(loss))
    assert meter.mean() == 3.0
    assert meter.mean() is None
    meter.note(torch.tensor(5.0))
    assert meter.mean() == 5.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_meter_keeps_the_first_bad_step(bad: float) -> None:
    meter = Meter(CPU)
    for loss in (1.0, 2.0, bad, 1.0, bad):
        meter.note(torch.tensor(loss))
    assert int(meter.first_bad) == 3
    assert int(meter.steps) == 5


def test_the_meter_can_be_saved_in_the_middle() -> None:
    meter, other = Meter(CPU), Meter(CPU)
    meter.note(torch.tensor(1.0))
    state = meter.state_dict()
    meter.note(torch.tensor(2.0))
    other.load_state_dict(state)
    other.note(torch.tensor(2.0))
    assert_identical(other.state_dict(), meter.state_dict())
    assert other.mean() == 1.5


@pytest.fixture(autouse=True)
def _handlers_stay() -> Iterator[None]:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
