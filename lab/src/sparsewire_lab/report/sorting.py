"""Keys of the sorting experiment → the strip: numbers moving through the levels of quicksort."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsewire_lab.report.frames import errors_at, frames_of, read_or_note, short
from sparsewire_lab.report.images import packed, picture
from sparsewire_lab.report.lines import Line
from sparsewire_lab.sorting.keys_file import Keys, misplaced, read_keys, spearman
from sparsewire_lab.train.records import Record

_MOST_RUNS, _MOST_FRAMES, _MOST_KEYS = 6, 40, 500
# Half-permutations of larger sets are tables of more numbers than a page should hold.
_LARGEST_SET = 32


def strips(lines: Sequence[Line], notes: list[str]) -> list[dict[str, Any]]:
    """Return a strip for each setting that left keys; problems are added to the notes."""
    shown = []
    for line in _presets_first([line for line in lines if _with_files(line)]):
        if len(shown) == _MOST_RUNS:
            break
        record = min(_with_files(line), key=lambda run: run["seed"])
        kept = read_or_note(read_keys, record, notes)
        if kept is not None:
            shown.append(_strip(line, record, kept))
    # Those that can be watched level by level first, and of these such of eight numbers: fewer have
    # little to sort, and more are small to look at.
    return sorted(shown, key=lambda strip: (strip["levels"] == 0, abs(strip["levels"] - 3)))


def _with_files(line: Line) -> list[Record]:
    return [run for run in line.runs if run["file"] is not None]


def _presets_first(lines: Sequence[Line]) -> list[Line]:
    """Of each task one line of each preset, then the others: not all can be shown."""
    first: dict[tuple[str, Any], Line] = {}
    for line in lines:
        first.setdefault((line.task, line.group.setting.get("preset")), line)
    return [*first.values(), *(line for line in lines if line not in first.values())]


def _strip(line: Line, record: Record, kept: Keys) -> dict[str, Any]:
    chosen = frames_of(len(kept.step), _MOST_FRAMES)
    step = kept.step[chosen].tolist()
    ranks = [spearman(kept.values, kept.keys[number]) for number in chosen]
    strip = {
        "name": f"{line.label}, seed {record['seed']}",
        "command": record["command"],
        "step": step,
        "error": errors_at(record, step),
        "spearman": [short(rank) if math.isfinite(rank) else None for rank in ranks],
        "keys": packed(kept.keys[chosen][:, :_MOST_KEYS], "f4"),
        "values": kept.values[:_MOST_KEYS].tolist(),
        "places": record["arguments"]["places"],
        "levels": 0,
    }
    if kept.halves is None or kept.images is None or len(kept.images) > _LARGEST_SET:
        return strip
    # A byte for each share: what is less than 1/255 is not seen.
    shares = np.clip(kept.halves[chosen].astype(np.float64), 0, 1)
    return strip | {
        "levels": int(kept.halves.shape[1]),
        "halves": packed((255 * shares).round(), "u1"),
        "misplaced": [misplaced(kept, number) for number in chosen],
        # Digits side by side; where they would be too small, the page puts them below each other.
        "images": [picture(np.concatenate(list(number), axis=1)) for number in kept.images],
    }
