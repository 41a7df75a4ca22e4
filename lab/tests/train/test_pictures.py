"""Pictures in TensorBoard: drawn at each evaluation, in time, and of no consequence to the run."""

import dataclasses
import io
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lab.tests.train.toy import (
    Toy,
    ToyTrial,
    assert_identical,
    finished,
    resumed,
    stop,
    without_times,
)
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sparsewire_lab.attention.experiment import Attention
from sparsewire_lab.figures.pictures import (
    draw_frames,
    draw_order,
    draw_points,
    draw_tuples,
    side_by_side,
    stacked,
)
from sparsewire_lab.identity.experiment import Identity
from sparsewire_lab.sorting.experiment import Sorting
from sparsewire_lab.train.randomness import random_state
from sparsewire_lab.train.tensorboard import Events

CPU = torch.device("cpu")
BLUE, RED, GREY, WHITE = (0, 90, 181), (213, 94, 0), (221,) * 3, (255,) * 3


def pictures_of(folder: Path) -> dict[str, list[tuple[int, np.ndarray]]]:
    """What the events in a folder show, by name: steps and arrays, in the order of the steps."""
    read = EventAccumulator(str(folder), size_guidance={"images": 0}).Reload()

    def array(event: Any) -> np.ndarray:
        return np.asarray(Image.open(io.BytesIO(event.encoded_image_string)))

    names = read.Tags()["images"]
    # Files of one second are read in the order of their names, not of their making.
    return {
        name: sorted(((e.step, array(e)) for e in read.Images(name)), key=lambda pair: pair[0])
        for name in names
    }


def count(picture: np.ndarray, colour: tuple[int, ...]) -> int:
    return int((picture == colour).all(-1).sum())


def small(kind: str, **more: Any) -> Any:
    """A small experiment of a kind, ready to be built."""
    given: dict[str, Any] = {"device": "cpu", "steps": 4, "evaluate_every": 2, "batch": 4}
    own: dict[str, tuple[Any, dict[str, Any]]] = {
        "identity": (Identity, {"size": 8}),
        "attention": (Attention, {"data": "digits"}),
        "sorting": (Sorting, {"data": "digits", "size": 4, "places": 1, "sets": 80}),
    }
    made = own[kind][0](**given | own[kind][1] | more)
    made.check()
    return made.resolved()


def test_pictures_are_written_by_name_and_step(tmp_path: Path) -> None:
    first, second = np.zeros((2, 3, 3), dtype=np.uint8), np.full((4, 1, 3), 9, dtype=np.uint8)
    with Events(tmp_path, 0) as events:
        assert events.wanted
        events.show(0, {"a": first, "b": second})
        events.show(5, {"a": second})
    shown = pictures_of(tmp_path)
    assert {name: [step for step, _ in some] for name, some in shown.items()} == {
        "a": [0, 5],
        "b": [0],
    }
    assert np.array_equal(shown["a"][0][1], first)
    assert np.array_equal(shown["a"][1][1], second)


@pytest.mark.usefixtures("unchecked")
def test_a_run_draws_a_picture_at_each_evaluation_but_none_without_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after it was stopped."""
    drawn: list[int] = []

    def pictures(_: ToyTrial, step: int, frame: dict[str, Any]) -> dict[str, np.ndarray]:
        assert frame.keys() == {"weight"}
        drawn.append(step)
        return {"weights": np.full((2, step + 1, 3), 7, dtype=np.uint8)}

    monkeypatch.setattr(ToyTrial, "pictures", pictures)
    finished(Toy(), tmp_path / "without")
    assert drawn == []
    assert not list(tmp_path.rglob("events*"))
    stop(Toy(tensorboard=True), tmp_path, 7)
    resumed(Toy(tensorboard=True), tmp_path)
    shown = pictures_of(tmp_path / "events")["weights"]
    sizes = [(step, picture.shape) for step, picture in shown]
    assert sizes == [(step, (2, step + 1, 3)) for step in (0, 4, 8, 12)]
    assert drawn == [0, 4, 8, 12]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", ["identity", "attention", "sorting"])
def test_a_run_ends_the_same_with_pictures_and_without(kind: str, tmp_path: Path) -> None:
    experiment = small(kind)
    with_pictures = finished(experiment, tmp_path / "with")
    plain = finished(dataclasses.replace(experiment, tensorboard=False), tmp_path / "without")
    assert_identical(without_times(with_pictures), without_times(plain))
    names = {"identity": {"tuples"}, "attention": {"glimpses"}, "sorting": {"order", "keys"}}
    found = pictures_of(tmp_path / "with" / "events")
    assert found.keys() == names[kind]
    for shown in found.values():
        assert [step for step, _ in shown] == [0, 2, 4]
        assert len({picture.shape for _, picture in shown}) == 1
        assert all(picture.std() > 0 for _, picture in shown)
    assert not (tmp_path / "without" / "events").exists()


KINDS = [
    ("identity", {"size": 64, "values": "normal"}),
    ("identity", {"size": 1024, "method": "rewire"}),
    ("identity", {"target": "band", "keep_wiring": False}),
    ("identity", {"method": "reinforce"}),
    ("attention", {"glimpses": 8}),
    ("attention", {"canvas": 400}),
    ("attention", {"model": "transformer"}),
    ("attention", {"model": "reinforce"}),
    ("attention", {"keep_frames": False}),
    ("attention", {"model": "convnet"}),  # reads everything: no glimpses to show
    ("sorting", {"size": 16, "method": "neuralsort"}),
    ("sorting", {"size": 70, "batch": 1}),
    ("sorting", {"keep_frames": False}),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("kind", "more"), KINDS)
def test_pictures_are_small_and_leave_all_randomness(kind: str, more: dict[str, Any]) -> None:
    trial = small(kind, **more).build(0, CPU)
    trial.model.eval()
    with torch.no_grad():
        before = random_state(CPU)
        pictures = trial.pictures(2, trial.snapshot(2))
        assert_identical(random_state(CPU), before)
    assert bool(pictures) == (more != {"model": "convnet"})
    for picture in pictures.values():
        assert picture.dtype == np.uint8
        assert picture.ndim == 3
        assert picture.shape[2] == 3
        assert picture.size <= 3 * 1_000_000
        assert picture.std() > 0


@pytest.mark.usefixtures("unchecked")
def test_drawing_takes_milliseconds() -> None:
    """Of many tuples too: 4,096 of them, the best of three."""
    trial = small("identity", size=4096, method="rewire").build(0, CPU)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        with torch.no_grad():
            trial.pictures(0, {})
        times.append(time.perf_counter() - began)
    assert min(times) < 0.05


def test_tuples_lie_where_their_means_are() -> None:
    """And those outside of the matrix are left out."""
    inf = float("inf")
    means = torch.tensor([[0.0, 3.0], [2.0, 1.0], [1e30, 0.0], [-1e30, 0.0], [inf, 0.0]])
    ones = (torch.tensor([0, 1]), torch.tensor([0, 1]))
    drawn = torch.tensor([[3, 0]])
    values = torch.tensor([1.0, -1.0, 1.0, 1.0, 1.0])
    picture = draw_tuples(means, torch.full((5, 2), 1e-6), values, 4, ones, drawn)
    assert picture.shape == (256, 256, 3)
    cells = picture.reshape(4, 64, 4, 64, 3).swapaxes(1, 2)
    assert count(cells[0, 3], BLUE) == count(picture, BLUE) == 26**2
    assert count(cells[2, 1], RED) == count(picture, RED) == 26**2
    assert count(cells[0, 0], GREY) == count(cells[1, 1], GREY) == 64**2
    assert count(cells[3, 0], (198, 219, 239)) == 64**2
    assert count(cells[3, 3], WHITE) == 64**2
    assert tuple(cells[0, 3][32, 32]) == BLUE


def test_a_ring_is_a_standard_deviation_wide() -> None:
    ones = (torch.tensor([0]), torch.tensor([0]))
    picture = draw_tuples(
        torch.full((1, 2), 3.5), torch.tensor([[4.0, 1.0]]), torch.ones(1), 8, ones
    )
    rows, columns = (picture == (158, 188, 218)).all(-1).nonzero()
    assert (rows.min(), rows.max()) == (128 - 64, 128 + 64)
    assert (columns.min(), columns.max()) == (128 - 32, 128 + 32)


def test_frames_lie_around_what_was_read() -> None:
    images = torch.zeros(2, 1, 20, 20, dtype=torch.uint8)
    corners = torch.tensor([[4.0, 6.0], [4.0, 12.0], [9.0, 6.0], [9.0, 12.0]])
    glimpses = torch.full((2, 1, 5, 5), 0.5)
    picture = draw_frames(images, corners.expand(2, 1, 4, 2), glimpses)
    assert picture.shape == (20 + 4 + 20, 20 + 4 + 20, 3)  # glimpses four times as large
    rows, columns = (picture[:20, :20] == RED).all(-1).nonzero()
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (4, 9, 6, 12)
    assert len(rows) == 2 * (6 + 7) - 4
    assert (picture[24:, :20] == 127).all()


def test_numbers_that_are_not_in_their_place_are_marked() -> None:
    images = torch.zeros(1, 3, 2, 28, 28, dtype=torch.uint8)
    values, order = torch.tensor([[7, 3, 5]]), torch.tensor([[1, 0, 2]])
    images[0, 1] = 99
    picture = draw_order(images, order, values)
    assert picture.shape == (3 * 28, 6 + 2 * 28, 3)
    bars = [tuple(picture[28 * row, 0]) for row in range(3)]
    assert bars == [BLUE, RED, RED]
    assert (picture[:28, 6:] == 99).all()  # the smallest is on top
    assert (picture[28:, 6:] == 0).all()
    values[:] = 4  # equal numbers may change places
    assert count(draw_order(images, order, values), RED) == 0


def test_points_rise_to_the_right() -> None:
    picture = draw_points(torch.tensor([0, 5, 10]), torch.tensor([-2.0, 0.0, 2.0]))
    rows, columns = (picture == BLUE).all(-1).nonzero()
    assert len(rows) == 3 * 9
    assert columns[rows == rows.min()].min() == 253
    assert columns[rows == rows.max()].max() == 2
    flat = draw_points(torch.zeros(2), torch.zeros(2))
    assert count(flat, BLUE) == 9


def test_pictures_of_different_sizes_are_put_together() -> None:
    dark, tall = np.zeros((2, 3, 3), dtype=np.uint8), np.zeros((5, 1, 3), dtype=np.uint8)
    assert side_by_side([dark, tall]).shape == (5, 3 + 4 + 1, 3)
    assert stacked([dark, tall]).shape == (2 + 4 + 5, 3, 3)
    assert count(side_by_side([dark, tall]), (0, 0, 0)) == 6 + 5
