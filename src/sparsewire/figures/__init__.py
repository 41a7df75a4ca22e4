"""Records → figures; never trains. Needs Matplotlib, so only commands import it."""

from sparsewire.figures.identity import draw_errors, draw_scaling
from sparsewire.figures.wiring import animate_wiring, draw_matrix, draw_wiring, read_wiring

__all__ = [
    "animate_wiring",
    "draw_errors",
    "draw_matrix",
    "draw_scaling",
    "draw_wiring",
    "read_wiring",
]
