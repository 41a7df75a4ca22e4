"""Keys of the sorting experiment → strips: numbers moving through the levels of quicksort."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sparsewire_lab.figures.arrays import read_or_note
from sparsewire_lab.report.entries import Entry
from sparsewire_lab.report.viewers import frames_of, moving, packed, picture, short
from sparsewire_lab.sorting.keys_file import misplaced, read_keys, spearman
from sparsewire_lab.train.records import Record

_MOST_RUNS, _MOST_FRAMES, _MOST_KEYS = 6, 40, 500
# Half-permutations of larger sets are tables of more numbers than a page should hold.
_LARGEST_SET = 32


def strips(entries: Sequence[Entry], notes: list[str]) -> list[dict[str, Any]]:
    """Return a strip for each setting with a file of keys; problems are added to the notes."""
    shown = []
    for entry in _presets_first(entries):
        record = entry.shown_run
        if record is None or len(shown) == _MOST_RUNS:
            continue
        strip = read_or_note(partial(_strip, entry, record), record, notes)
        shown += [strip] if strip else []
    # Runs with levels come first, and of these eight numbers: fewer have little to sort, and more
    # are small on the screen.
    return sorted(shown, key=lambda strip: (strip["levels"] == 0, abs(strip["levels"] - 3)))


def _presets_first(entries: Sequence[Entry]) -> list[Entry]:
    """Return one entry of each preset of each task, then the others: not all can be shown."""
    entries = [entry for entry in entries if entry.shown_run is not None]
    first: dict[tuple[str, Any], Entry] = {}
    for entry in entries:
        first.setdefault((entry.task, entry.setting["preset"]), entry)
    chosen = {id(entry) for entry in first.values()}
    return [*first.values(), *(entry for entry in entries if id(entry) not in chosen)]


def _strip(entry: Entry, record: Record, path: Path) -> dict[str, Any]:
    keys = read_keys(path)
    chosen = frames_of(len(keys.step), _MOST_FRAMES)
    name = f"{entry.label}, seed {record['seed']}"
    strip = moving(name, record, keys.step[chosen].tolist()) | {
        "spearman": [short(spearman(keys.values, keys.keys[number])) for number in chosen],
        "keys": packed(keys.keys[chosen][:, :_MOST_KEYS], "f4"),
        "values": keys.values[:_MOST_KEYS].tolist(),
        "places": record["arguments"]["places"],
        "levels": 0,
    }
    if keys.halves is None or keys.images is None or len(keys.images) > _LARGEST_SET:
        return strip
    # A byte for each share: less than 1/255 is not visible.
    shares = np.clip(keys.halves[chosen].astype(np.float64), 0, 1)
    return strip | {
        "levels": int(keys.halves.shape[1]),
        "halves": packed((255 * shares).round(), "u1"),
        "misplaced": [misplaced(keys, number) for number in chosen],
        # Digits side by side; where they would be too small, the page puts them below each other.
        "images": [picture(np.concatenate(list(number), axis=1)) for number in keys.images],
    }
