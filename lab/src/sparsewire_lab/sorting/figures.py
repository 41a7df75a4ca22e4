"""The figures of the sorting experiment."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from sparsewire_lab.figures.album import Album
from sparsewire_lab.figures.arrays import read_or_note
from sparsewire_lab.figures.series import Record, has, measured, representatives
from sparsewire_lab.sorting.curves import sorting_figure, with_curves
from sparsewire_lab.sorting.keys import keys_figure, steps_figure
from sparsewire_lab.sorting.keys_file import read_keys
from sparsewire_lab.sorting.settings import rank, settings


def draw(runs: Sequence[Record], album: Album) -> None:
    """Draw errors on numbers of each length, and keys and steps of one run of each task.

    Args:
        runs: The records of the experiment, each with its file of arrays under `file`.
        album: Where the figures are drawn.
    """
    for places, data in sorted({(r["arguments"]["places"], r["arguments"]["data"]) for r in runs}):
        task = [run for run in runs if has(run, places=places, data=data)]
        if shown := measured(task, with_curves):
            name = f"sorting-errors-{_task_name(places, data)}"
            album.add(name, partial(sorting_figure, shown))
    for name, run in representatives(settings(runs), _name, _worth).items():
        keys = read_or_note(read_keys, run, album.notes)
        if keys is not None:
            album.add(f"{name}-keys", partial(keys_figure, keys))
            if keys.halves is not None:
                album.add(f"{name}-steps", partial(steps_figure, keys))


def _name(setting: dict[str, Any]) -> str:
    paper = "-paper" if setting["preset"] == "paper" else ""
    return f"sorting-{setting['size']}x{_task_name(setting['places'], setting['data'])}{paper}"


def _task_name(places: int, data: str) -> str:
    return f"{places}" if data == "mnist" else f"{places}-{data}"


def _worth(run: Record) -> tuple[Any, ...]:
    """Return what runs are ordered by: test set, ours before peers, the longest, the last."""
    arguments = run["arguments"]
    ours = -rank(arguments)
    return has(run, split="test"), ours, arguments["steps"], run.get("date") or ""
