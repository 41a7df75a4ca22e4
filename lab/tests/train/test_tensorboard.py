"""TensorBoard's events: each step once, also after a run was continued."""

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest
from lab.tests.train.toy import Toy, resumed, training_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sparsewire_lab.train.runs import run_all, run_folder
from sparsewire_lab.train.tensorboard import Events

PICTURE = np.zeros((1, 1, 3), dtype=np.uint8)


def events_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = EventAccumulator(str(folder)).Reload()
    names = accumulator.Tags()["scalars"]
    return {name: [(e.step, e.value) for e in accumulator.Scalars(name)] for name in names}


def test_numbers_are_written_by_name_and_missing_ones_left_out(tmp_path: Path) -> None:
    with Events(tmp_path, 0) as events:
        events.write(0, {"loss": None, "error": 1.0})
        events.write(4, {"loss": 0.5, "error": 0.25})
    assert events_of(tmp_path) == {"loss": [(4, 0.5)], "error": [(0, 1.0), (4, 0.25)]}


@pytest.mark.parametrize("method", ["add_scalar", "add_image"])
def test_a_full_disk_ends_the_events_and_not_the_run(
    method: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with Events(tmp_path, 0) as events:
        monkeypatch.setattr(events._writer, method, full)
        for step in (1, 2):
            events.write(step, {"loss": 1.0, "error": 2.0})
            events.show(step, {"a": PICTURE, "b": PICTURE})
        assert not events.wanted
    assert capsys.readouterr().err == "TensorBoard events end here: No space left on device\n"


def test_what_was_written_after_the_checkpoint_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved at step 5, evaluated at step 8, killed at 9."""
    training = training_of(Toy(tensorboard=True), tmp_path)
    after_step = training.trial.after_step
    killed = "after_step", lambda: after_step() if training.step < 9 else 1 / 0
    monkeypatch.setattr(training.trial, *killed)
    with pytest.raises(ZeroDivisionError):
        training.run()
    clock = time.time  # files of one second are read in the order of their names
    monkeypatch.setattr(time, "time", lambda: clock() + 2)
    curve = resumed(Toy(tensorboard=True), tmp_path)["curve"]
    events = events_of(tmp_path / "events")
    for name, first in (("loss", 1), ("error", 0)):  # before the first step there is no loss
        assert [step for step, _ in events[name]] == [0, 4, 8, 12][first:]
        assert [value for _, value in events[name]] == pytest.approx(curve[name][first:])


def test_a_run_that_is_repeated_begins_its_events_anew(tmp_path: Path) -> None:
    toy = Toy(tensorboard=True, out=tmp_path).resolved()
    for again in (False, True):
        run_all([dataclasses.replace(toy, again=again)], [])
    events = events_of(run_folder(toy, 0) / "events")
    assert [step for step, _ in events["error"]] == [0, 4, 8, 12]
