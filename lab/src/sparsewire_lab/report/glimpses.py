"""Frames of the attention experiment → galleries: images, boxes, sampled points, glimpses."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sparsewire_lab.attention.frames import GlimpseFrames, read_frames
from sparsewire_lab.figures.arrays import read_or_note
from sparsewire_lab.report.entries import Entry
from sparsewire_lab.report.viewers import frames_of, moving, packed, picture
from sparsewire_lab.train.records import Record

_MOST_RUNS, _MOST_FRAMES, _MOST_TRACKED, _MOST_MISTAKES = 10, 60, 8, 4
# Sampled positions are stored in tenths of a pixel.
_PARTS = 10


def galleries(entries: Sequence[Entry], notes: list[str]) -> list[dict[str, Any]]:
    """Return a gallery for each setting with a file of frames; problems are added to the notes.

    Of many the first are shown: our models with our settings, then with others, then baselines.
    """
    shown = []
    for entry in sorted(entries, key=_rank):
        record = entry.shown_run
        if record is None or len(shown) == _MOST_RUNS:
            continue
        gallery = read_or_note(partial(_gallery, entry, record), record, notes)
        shown += [gallery] if gallery else []
    return shown


def _rank(entry: Entry) -> tuple[bool, ...]:
    return entry.setting["split"] != "test", not entry.ours, entry.setting["preset"] != "ours"


def _gallery(entry: Entry, record: Record, path: Path) -> dict[str, Any]:
    frames = read_frames(path)
    chosen = frames_of(len(frames.step), _MOST_FRAMES)
    tracked = min(frames.tracked, _MOST_TRACKED)
    mistakes = range(frames.tracked, min(len(frames.images), frames.tracked + _MOST_MISTAKES))
    shown = [*range(tracked), *mistakes]
    side, split = entry.setting["canvas"], entry.setting["split"]
    name = entry.name + ("" if split == "test" else f", {split}")
    name += f", canvas {side} × {side}, seed {record['seed']}"
    return moving(name, record, frames.step[chosen].tolist()) | {
        "size": list(frames.images.shape[1:]),
        "tracked": tracked,
        "boxes": packed(_tenths(frames.corners[chosen][:, :tracked]), "f4"),
        "last": packed(_tenths(frames.last_corners[shown]), "f4"),
        "sampled": packed(_sampled(frames)[shown], "u2"),
        "cards": [_card(frames, number) for number in shown],
    }


def _card(frames: GlimpseFrames, number: int) -> dict[str, Any]:
    return {
        "image": picture(frames.images[number]),
        "glimpses": [picture(glimpse) for glimpse in frames.glimpses[number]],
        "truth": int(frames.labels[number]),
        "answer": int(frames.predicted[number]),
    }


def _sampled(frames: GlimpseFrames) -> np.ndarray:
    """Return the positions that were read, in tenths of a pixel, clipped to the image."""
    places = frames.sampled
    if places is None:
        m, g = frames.points.shape[:2]
        places = frames.points.reshape(m, g, -1, 2)
    most = np.array(frames.images.shape[1:]) - 1
    return (np.clip(places, 0, most) * _PARTS).round().astype(np.int64)


def _tenths(corners: np.ndarray) -> np.ndarray:
    """Return positions rounded to tenths of a pixel: less is not visible."""
    return corners.astype(np.float64).round(1)
