"""Checkpoints come back as they were saved, and nothing else is taken for one, or run."""

import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.tests.train.toy import assert_identical

from sparsewire_lab.train.checkpoints import CheckpointError, Checkpoints, packed, read_checkpoint


def state_after(step: Any) -> dict[str, Any]:
    """A state with all parts, of a model without parameters."""
    parts = ("arguments", "model", "optimizer", "extras", "meter", "random", "frames")
    state = {"experiment": "toy", "seed": 0, "run": "abc", "step": step, "seconds": 1.5}
    state |= {"best": float("inf"), "schedule": None, "curve": {"step": [0], "error": [1.0]}}
    return state | {name: {} for name in parts}


STATE = state_after(7) | {
    "none": None,
    "yes": True,
    "tensors": {
        "floats": torch.tensor([[1.5, float("nan")], [float("-inf"), 0.0]]),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "long": torch.arange(5),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(2.0, dtype=torch.float64),
    },
    "nested": [1, 2.5, ("a", None, [torch.tensor([True])]), {0: "zero"}],
}


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def steps_of(checkpoints: Checkpoints) -> dict[str, int]:
    paths = (checkpoints.last, checkpoints.previous, checkpoints.best)
    return {path.stem: read_checkpoint(path)["step"] for path in paths if path.exists()}


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "run")
    checkpoints.save(STATE)
    state, problems = checkpoints.load()
    assert problems == []
    assert_identical({k: v for k, v in state.items() if k != "format"}, STATE)


def test_the_last_becomes_the_previous_and_the_best_stays(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save_best(state_after(1))  # nothing to continue from
    assert not checkpoints.exist()
    with pytest.raises(CheckpointError, match="no checkpoint can be used: there is none in"):
        checkpoints.load()
    checkpoints.save(state_after(1))
    assert checkpoints.exist()
    assert steps_of(checkpoints) == {"last": 1, "best": 1}
    checkpoints.save(state_after(2))
    assert steps_of(checkpoints) == {"last": 2, "previous": 1, "best": 1}
    checkpoints.save(state_after(3))
    assert steps_of(checkpoints) == {"last": 3, "previous": 2, "best": 1}
    checkpoints.clear()
    assert not checkpoints.exist()
    assert list(tmp_path.iterdir()) == []


def assert_refused(path: Path) -> None:
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(path)
    assert str(path) in str(error.value)


def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    path, whole = tmp_path / "cut.pt", packed(STATE)
    lengths = {0, 1, 2, 4, 30, 100, len(whole) // 2, len(whole) - 100, len(whole) - 1}
    for length in sorted(lengths | set(range(0, len(whole), 97))):
        path.write_bytes(whole[:length])
        assert_refused(path)


def test_noise_is_refused(tmp_path: Path) -> None:
    """Also noise that begins as a pickle does."""
    path, source = tmp_path / "noise.pt", random.Random(0)
    # 255 is none of pickle's words.
    noise = [b"\xff" + source.randbytes(length) for length in (1, 10, 1000, 10_000)]
    for data in (*noise, b".", b"G", b"(abcdefgh"):
        path.write_bytes(data)
        assert_refused(path)


def test_flipped_bits_in_a_tensor_are_found(tmp_path: Path) -> None:
    path, numbers = tmp_path / "last.pt", torch.arange(1000.0)
    data = bytearray(packed({"weights": numbers}))
    at = data.index(numbers[500:].numpy().tobytes()[:64])
    data[at] ^= 1
    path.write_bytes(data)
    assert_refused(path)


def test_code_is_refused_and_not_run(tmp_path: Path) -> None:
    path, made = tmp_path / "code.pt", tmp_path / "made"
    path.write_bytes(pickle.dumps(Trap(made), protocol=2))
    assert_refused(path)
    path.write_bytes(packed({"step": 1, "model": Trap(made)}))
    assert_refused(path)
    assert not made.exists()
    pickle.loads(pickle.dumps(Trap(made)))
    assert made.exists()


def test_what_others_saved_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "foreign.pt"
    for foreign in ({"weight": torch.ones(2)}, [1, 2], torch.ones(2), {"format": "sparsewire 0"}):
        torch.save(foreign, path)
        assert_refused(path)
    assert_refused(tmp_path / "missing.pt")
    assert_refused(tmp_path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model": ...}, "lacks model"),
        ({"random": ..., "curve": ...}, "lacks random, curve"),
        ({"step": -5}, "must have a step from 0; got -5"),
        ({"step": 2**60}, "must have a step from 0"),
        ({"step": 1.0}, "must have int as step; got float"),
        ({"step": True}, "must have int as step; got bool"),
        ({"model": [1]}, "must have dict as model; got list"),
        ({"schedule": 1}, "must have dict or NoneType as schedule; got int"),
        ({"curve": {"step": [0], "error": []}}, "a curve of lists of one length"),
        ({"curve": {"step": 3}}, "a curve of lists of one length"),
    ],
)
def test_after_one_with_wrong_parts_the_previous_is_used(
    change: dict[str, Any], why: str, tmp_path: Path
) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state_after(1))
    wrong = {name: part for name, part in (state_after(2) | change).items() if part is not ...}
    checkpoints.save(wrong)
    state, (problem,) = checkpoints.load()
    assert state["step"] == 1
    assert str(checkpoints.last) in problem
    assert why in problem
    checkpoints.save(wrong)
    with pytest.raises(CheckpointError, match=r"no checkpoint can be used: .*last.*previous") as no:
        checkpoints.load()
    assert str(no.value).count(why) == 2


def test_a_process_that_dies_between_the_two_names_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints, renamed = Checkpoints(tmp_path), os.replace
    checkpoints.save(state_after(1))

    def die_second(source: Path, goal: Path) -> None:
        if goal == checkpoints.last:
            raise SystemExit
        renamed(source, goal)

    monkeypatch.setattr(os, "replace", die_second)
    with pytest.raises(SystemExit):
        checkpoints.save(state_after(2))
    monkeypatch.undo()
    assert not checkpoints.last.exists()
    assert checkpoints.exist()
    assert checkpoints.load()[0]["step"] == 1
    checkpoints.save(state_after(2))
    assert steps_of(checkpoints) == {"last": 2, "previous": 1}
