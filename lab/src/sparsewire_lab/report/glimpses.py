"""Looks of the attention experiment → galleries: images, boxes, sampled points, glimpses."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsewire_lab.attention.looks import Looks, read_looks
from sparsewire_lab.report.frames import errors_at, frames_of, read_or_note
from sparsewire_lab.report.images import packed, picture
from sparsewire_lab.report.lines import Line
from sparsewire_lab.train.records import Record

_MOST_RUNS, _MOST_FRAMES, _MOST_WATCHED, _MOST_MISTAKES = 10, 60, 8, 4
# Outside an image nothing is drawn; positions are kept in tenths of a pixel.
_PARTS = 10


def gallery(lines: Sequence[Line], notes: list[str]) -> list[dict[str, Any]]:
    """Return a gallery for each setting that left looks; problems are added to the notes.

    Of many the first are shown: our models with our settings, then with others, then baselines.
    """
    shown = []
    for line in sorted(lines, key=_rank):
        record = min(
            (run for run in line.runs if run["file"] is not None),
            key=lambda run: run["seed"],
            default=None,
        )
        if record is None or len(shown) == _MOST_RUNS:
            continue
        looks = read_or_note(read_looks, record, notes)
        if looks is not None:
            shown.append(_gallery(line, record, looks))
    return shown


def _rank(line: Line) -> tuple[bool, ...]:
    setting = line.group.setting
    return setting["split"] != "test", not line.ours, setting["preset"] != "ours"


def _gallery(line: Line, record: Record, looks: Looks) -> dict[str, Any]:
    chosen = frames_of(len(looks.step), _MOST_FRAMES)
    step = looks.step[chosen].tolist()
    watched = min(looks.watched, _MOST_WATCHED)
    mistakes = range(looks.watched, min(len(looks.images), looks.watched + _MOST_MISTAKES))
    shown = [*range(watched), *mistakes]
    setting = line.group.setting
    where = f"canvas {setting['canvas']} × {setting['canvas']}, seed {record['seed']}"
    name = line.name + ("" if setting["split"] == "test" else f", {setting['split']}")
    return {
        "name": f"{name}, {where}",
        "command": record["command"],
        "size": [int(side) for side in looks.images.shape[1:]],
        "step": step,
        "error": errors_at(record, step),
        "watched": watched,
        "boxes": packed(_places(looks.corners[chosen][:, :watched]), "f4"),
        "last": packed(_places(_corners(looks.points[shown])), "f4"),
        "sampled": packed(_sampled(looks)[shown], "u2"),
        "cards": [_card(looks, number) for number in shown],
    }


def _card(looks: Looks, number: int) -> dict[str, Any]:
    return {
        "image": picture(looks.images[number]),
        "glimpses": [picture(glimpse) for glimpse in looks.glimpses[number]],
        "truth": int(looks.labels[number]),
        "answer": int(looks.predicted[number]),
    }


def _corners(points: np.ndarray) -> np.ndarray:
    """The outer points of the grids, which are the corners of the frames."""
    return points[:, :, [0, 0, -1, -1], [0, -1, 0, -1]]


def _sampled(looks: Looks) -> np.ndarray:
    """Places that were read, in tenths of a pixel; those outside the image at its edge."""
    places = looks.sampled
    if places is None:
        m, g = looks.points.shape[:2]
        places = looks.points.reshape(m, g, -1, 2)
    most = np.array(looks.images.shape[1:]) - 1
    return (np.clip(places, 0, most) * _PARTS).round().astype(np.int64)


def _places(corners: np.ndarray) -> np.ndarray:
    """Positions with one digit behind the point: less is not seen."""
    return corners.astype(np.float64).round(1)
