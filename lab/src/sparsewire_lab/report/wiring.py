"""Wirings of the identity experiment → what the viewer shows at each step of training."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sparsewire_lab.figures.arrays import read_or_note
from sparsewire_lab.identity.wiring import read_wiring
from sparsewire_lab.report.viewers import frames_of, moving, packed
from sparsewire_lab.train.records import Record

_MOST_RUNS, _MOST_FRAMES = 4, 160
# Wires of larger matrices are less than a pixel apart.
_LARGEST = 256
# Integer tuples of all frames of a run: more would make the page large.
_MOST_TUPLES = 400_000


def wirings(records: Sequence[Record], notes: list[str]) -> list[dict[str, Any]]:
    """Return the wirings for the viewer, the paper's first; problems are added to the notes.

    Of runs with equally many frames the last one comes first.
    """
    shown = []
    for record in sorted(records, key=_worth, reverse=True):
        view = read_or_note(partial(_view, record), record, notes)
        shown += [view] if view else []
        if len(shown) == _MOST_RUNS:
            break
    return shown


def _view(record: Record, path: Path) -> dict[str, Any] | None:
    """Return the data of a run's wirings; None if they are not of a matrix, or too large."""
    frames = read_wiring(path)
    if len(frames.shape) != 2 or int(frames.shape.max()) > _LARGEST:
        return None
    most = max(2, min(_MOST_FRAMES, _MOST_TUPLES // max(frames.indices.shape[1], 1)))
    chosen = frames_of(len(frames.step), most)
    # Each index once.
    spots = [np.unique(frames.indices[number], axis=0) for number in chosen]
    small = "u1" if frames.indices.max(initial=0) < 256 else "u2"
    return moving(_name(record, len(chosen)), record, frames.step[chosen].tolist()) | {
        "target": record["arguments"]["target"],
        "shape": frames.shape.tolist(),
        "means": packed(frames.means[chosen], "f4"),
        "variances": packed(frames.variances[chosen], "f4"),
        "values": packed(frames.values[chosen], "f4"),
        "spots": packed(np.concatenate(spots), small),
        "counts": [len(places) for places in spots],
    }


def _name(record: Record, count: int) -> str:
    size, method, target = (record["arguments"][name] for name in ("size", "method", "target"))
    what = "" if target == "identity" else f", {target}"
    return f"{size} × {size}{what}, {method}, seed {record['seed']}, {count} frames"


def _worth(record: Record) -> tuple[bool, bool, int, str]:
    """Return what runs are ordered by: those that the paper shows, then the smoothest."""
    arguments = record["arguments"]
    paper = arguments["method"] == "sparse" and arguments["target"] == "identity"
    return paper, arguments["size"] == 32, len(record["curve"]["step"]), record["date"]
