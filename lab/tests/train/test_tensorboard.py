"""TensorBoard's events: each step once, also after a run was continued."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from lab.tests.train.toy import Toy, finished, resumed, training_of
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


def test_nothing_is_written_without_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Events(None, 0) as events:
        assert not events.wanted
        events.write(1, {"loss": 1.0})
        events.show(0, {"a": PICTURE})
    assert list(tmp_path.iterdir()) == []


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


def test_a_run_that_is_repeated_begins_its_events_anew(tmp_path: Path) -> None:
    toy = Toy(tensorboard=True, out=tmp_path).resolved()
    for again in (False, True):
        run_all([dataclasses.replace(toy, again=again)], [])
    events = events_of(run_folder(toy, 0) / "events")
    assert [step for step, _ in events["error"]] == [0, 4, 8, 12]
