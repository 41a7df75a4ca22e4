"""The figures of the identity experiment."""

from collections.abc import Sequence
from functools import partial

from sparsewire_lab.figures.album import Album
from sparsewire_lab.figures.arrays import read_or_note
from sparsewire_lab.figures.series import Record, has
from sparsewire_lab.identity.curves import error_figure, scaling_figure
from sparsewire_lab.identity.wiring import animate_wiring, matrix_figure, read_matrix, wiring_figure

# The size whose wires the paper shows, and the steps.
_SHOWN_SIZE, _SHOWN_STEPS = 32, (0, 1000, 5000, 9000, 13000)


def draw(runs: Sequence[Record], album: Album) -> None:
    """Draw errors, scaling, and the wires of one run.

    Args:
        runs: The records of the experiment, each with its file of arrays under `file`.
        album: Where the figures are drawn.
    """
    plain = [run for run in runs if has(run, target="identity", values="fixed")]
    if paper := [run for run in plain if not has(run, method="rewire")]:
        album.add("identity-errors", partial(error_figure, paper))
    rewired = [run for run in runs if has(run, method="rewire") and not has(run, target="band")]
    if rewired:
        album.add("identity-rewire", partial(error_figure, rewired))
    timed = [run for run in (*plain, *rewired) if has(run, target="identity")]
    timed = [run for run in timed if not has(run, method="reinforce")]
    if len({run["arguments"]["size"] for run in timed}) > 1:
        album.add("identity-scaling", partial(scaling_figure, timed))
    for run in sorted(runs, key=_worth, reverse=True):
        frames = read_or_note(read_matrix, run, album.notes)
        if frames is not None:
            name, steps = f"identity-{run['arguments']['size']}", _steps(run)
            album.add(f"{name}-matrix", partial(matrix_figure, frames))
            album.add(f"{name}-wiring", partial(wiring_figure, frames, steps))
            album.animate(f"{name}-wiring", partial(animate_wiring, frames))
            break


def _worth(run: Record) -> tuple[bool, str]:
    """Return what runs are ordered by: the paper's own run first, else the last one."""
    paper = has(run, method="sparse", size=_SHOWN_SIZE, target="identity", values="fixed")
    return paper, run.get("date") or ""


def _steps(run: Record) -> tuple[int, ...]:
    """Return the paper's steps; of a shorter run, five that are as far apart."""
    longest, steps = _SHOWN_STEPS[-1], run.get("steps") or run["arguments"]["steps"]
    if steps >= longest:
        return _SHOWN_STEPS
    return tuple(round(step / longest * steps) for step in _SHOWN_STEPS)
