"""Wirings of the identity experiment → what the viewer shows at each step of training."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsewire_lab.identity.wiring import Frames, read_wiring
from sparsewire_lab.report.frames import errors_at, frames_of, read_or_note
from sparsewire_lab.report.images import packed
from sparsewire_lab.train.records import Record

_MOST_RUNS, _MOST_FRAMES = 4, 160
# Wires of larger matrices are less than a pixel apart.
_LARGEST = 256
# Integer tuples of all frames of a run: more would make a large page.
_MOST_TUPLES = 400_000


def viewer(records: Sequence[Record], notes: list[str]) -> list[dict[str, Any]]:
    """Return the wirings that can be watched, the paper's first; problems are added to the notes.

    Of runs with equally many frames the last one stands first.
    """
    shown = []
    for record in sorted(records, key=_worth, reverse=True):
        frames = read_or_note(read_wiring, record, notes)
        if frames is None or not _fits(frames):
            continue
        shown.append(_view(record, frames))
        if len(shown) == _MOST_RUNS:
            break
    return shown


def _fits(frames: Frames) -> bool:
    return len(frames.shape) == 2 and int(frames.shape.max()) <= _LARGEST


def _view(record: Record, frames: Frames) -> dict[str, Any]:
    most = max(2, min(_MOST_FRAMES, _MOST_TUPLES // max(frames.indices.shape[1], 1)))
    chosen = frames_of(len(frames.step), most)
    step = frames.step[chosen].tolist()
    # Places that are drawn twice count once.
    spots = [np.unique(frames.indices[number], axis=0) for number in chosen]
    small = "u1" if frames.indices.max(initial=0) < 256 else "u2"
    return {
        "name": _name(record, len(step)),
        "target": record["arguments"]["target"],
        "command": record["command"],
        "shape": frames.shape.tolist(),
        "step": step,
        "error": errors_at(record, step),
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
    """What the paper shows first, of these the smoothest film."""
    arguments = record["arguments"]
    paper = arguments["method"] == "sparse" and arguments["target"] == "identity"
    return paper, arguments["size"] == 32, len(record["curve"]["step"]), record["date"]
