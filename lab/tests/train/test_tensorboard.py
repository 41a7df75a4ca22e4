"""TensorBoard's events: each step once, also after a run was continued."""

import dataclasses
from pathlib import Path

import pytest
from lab.tests.train.toy import Toy, finished, resumed, training_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sparsewire_lab.train.loop import StoppedError
from sparsewire_lab.train.runs import run_all, run_folder
from sparsewire_lab.train.tensorboard import Events


def events_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = EventAccumulator(str(folder)).Reload()
    names = accumulator.Tags()["scalars"]
    return {name: [(e.step, e.value) for e in accumulator.Scalars(name)] for name in names}


def test_numbers_are_written_by_name_and_missing_ones_left_out(tmp_path: Path) -> None:
    with Events(tmp_path, 0) as events:
        events.write(0, {"loss": None, "error": 1.0})
        events.write(4, {"loss": 0.5, "error": 0.25})
    assert events_of(tmp_path) == {"loss": [(4, 0.5)], "error": [(0, 1.0), (4, 0.25)]}


def test_nothing_is_written_without_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Events(None, 0) as events:
        events.write(1, {"loss": 1.0})
    assert list(tmp_path.iterdir()) == []


def test_a_run_goes_on_where_events_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with Events(tmp_path, 0) as events:
        monkeypatch.setattr(events._writer, "add_scalar", full)
        events.write(1, {"loss": 1.0, "error": 2.0})
        events.write(2, {"loss": 1.0})
    assert capsys.readouterr().err == "TensorBoard events end here: No space left on device\n"


def test_a_run_writes_its_curve(tmp_path: Path) -> None:
    curve = finished(Toy(tensorboard=True), tmp_path)["curve"]
    events = events_of(tmp_path / "events")
    assert [step for step, _ in events["error"]] == [0, 4, 8, 12]
    assert [value for _, value in events["error"]] == pytest.approx(curve["error"])
    assert [value for _, value in events["loss"]] == pytest.approx(curve["loss"][1:])


def test_what_was_written_after_the_checkpoint_is_forgotten(tmp_path: Path) -> None:
    """Saved at step 5, evaluated at step 8, killed at 9."""

    class KilledError(Exception):
        pass

    training = training_of(Toy(tensorboard=True), tmp_path)
    after_step = training.trial.after_step

    def kill() -> None:
        after_step()
        if training.step == 9:
            raise KilledError

    training.trial.after_step = kill
    with pytest.raises(KilledError):
        training.run()
    state = resumed(Toy(tensorboard=True), tmp_path)
    events = events_of(tmp_path / "events")
    assert [step for step, _ in events["error"]] == [0, 4, 8, 12]
    assert [value for _, value in events["error"]] == pytest.approx(state["curve"]["error"])


def test_a_stopped_run_goes_on_in_its_events(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        training_of(Toy(tensorboard=True, stop_at=8), tmp_path).run()
    resumed(Toy(tensorboard=True), tmp_path)
    assert [step for step, _ in events_of(tmp_path / "events")["error"]] == [0, 4, 8, 12]


def test_a_run_that_is_repeated_begins_its_events_anew(tmp_path: Path) -> None:
    toy = Toy(tensorboard=True, out=tmp_path).resolved()
    for again in (False, True):
        run_all([dataclasses.replace(toy, again=again)], [])
    events = events_of(run_folder(toy, 0) / "events")
    assert [step for step, _ in events["error"]] == [0, 4, 8, 12]
