"""What all figures share: their style, and files that are written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

# At 8 inches, shown 800 pixels wide, a size of 9 is 12 or 13 pixels high.
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "legend.fontsize": 9,
    "axes.axisbelow": True,
}
DPI = 150
# Okabe and Ito's colours, which colour-blind readers can distinguish too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# They distinguish what has the same colour and line; the first has none.
MARKERS = ("", "o", "s", "^", "D", "v", "P", "X")


def blank(width: float, height: float) -> Figure:
    """Return an empty white figure of this size in inches."""
    layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.09)
    return Figure(figsize=(width, height), dpi=DPI, facecolor="white", layout=layout)


def tighten(figure: Figure) -> None:
    """Bring panels without tick labels closer to each other."""
    figure.set_layout_engine(
        ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03, wspace=0.0, hspace=0.0)
    )


@contextmanager
def fresh(path: Path) -> Iterator[Path]:
    """Yield a temporary path; the file written there replaces the path if nothing failed."""
    if not path.suffix:
        raise ValueError(f"path must end in the kind of picture, as in .png; got {path}")
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays at the end, because it decides the format.
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.new{path.suffix}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@rc_context(STYLE)  # ticks are made here
def save(figure: Figure, path: Path) -> Path:
    """Write a figure, whole or not at all; return the path."""
    with fresh(path) as temporary:
        figure.savefig(temporary)
    return path
