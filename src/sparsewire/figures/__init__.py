"""Records → figures; never trains. Needs Matplotlib, so only commands import it."""

from sparsewire.figures.attention import draw_attention_errors
from sparsewire.figures.boxes import animate_boxes, draw_boxes
from sparsewire.figures.gallery import draw_glimpses
from sparsewire.figures.identity import draw_errors, draw_scaling
from sparsewire.figures.looks import read_looks
from sparsewire.figures.sorting import draw_sorting_errors
from sparsewire.figures.sorting_file import read_keys
from sparsewire.figures.sorting_keys import draw_keys
from sparsewire.figures.sorting_steps import draw_steps
from sparsewire.figures.wiring import animate_wiring, draw_matrix, draw_wiring, read_wiring

__all__ = [
    "animate_boxes",
    "animate_wiring",
    "draw_attention_errors",
    "draw_boxes",
    "draw_errors",
    "draw_glimpses",
    "draw_keys",
    "draw_matrix",
    "draw_scaling",
    "draw_sorting_errors",
    "draw_steps",
    "draw_wiring",
    "read_keys",
    "read_looks",
    "read_wiring",
]
