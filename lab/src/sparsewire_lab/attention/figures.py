"""The figures of the attention experiment."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from sparsewire_lab.attention.curves import attention_figure, with_curves
from sparsewire_lab.attention.frames import read_frames
from sparsewire_lab.attention.gallery import animate_boxes, boxes_figure, gallery_figure
from sparsewire_lab.attention.settings import settings
from sparsewire_lab.figures.album import Album
from sparsewire_lab.figures.arrays import read_or_note
from sparsewire_lab.figures.series import Record, has, measured, representatives


def draw(runs: Sequence[Record], album: Album) -> None:
    """Draw errors on canvases of each size, and glimpses and boxes of one run of each shape.

    Args:
        runs: The records of the experiment, each with its file of arrays under `file`.
        album: Where the figures are drawn.
    """
    for canvas in sorted({run["arguments"]["canvas"] for run in runs}):
        shown = measured([run for run in runs if has(run, canvas=canvas)], with_curves)
        if shown:
            album.add(f"attention-errors-{canvas}", partial(attention_figure, shown))
    groups = [group for group in settings(runs) if group.setting["model"] == "glimpse"]
    for name, run in representatives(groups, _name, _worth).items():
        frames = read_or_note(read_frames, run, album.notes)
        if frames is not None:
            album.add(f"{name}-glimpses", partial(gallery_figure, frames))
            album.add(f"{name}-boxes", partial(boxes_figure, frames))
            album.animate(f"{name}-boxes", partial(animate_boxes, frames))


def _name(setting: dict[str, Any]) -> str:
    return "attention-{glimpses}x{size}-{canvas}".format(**setting)


def _worth(run: Record) -> tuple[bool, bool, str]:
    """Return what runs are ordered by: test set before validation set, our preset, the last."""
    return has(run, split="test"), has(run, preset="ours"), run.get("date") or ""
