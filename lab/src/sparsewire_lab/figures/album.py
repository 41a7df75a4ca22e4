"""The figures of a file of records: one that cannot be drawn does not stop the others."""

import re
import zlib
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from sparsewire_lab.errors import debugging
from sparsewire_lab.figures.save import save

_LONGEST = 100


class Album:
    """Draws figures into a folder, and notes those that cannot be drawn.

    Args:
        source: The file of records.
        folder: The folder of the figures.
        animation: Whether to draw animations.
    """

    def __init__(self, source: Path, folder: Path, animation: bool = True) -> None:
        self.source, self.folder, self.animation = source, folder, animation
        self.drawn: list[Path] = []
        self.notes: list[str] = []

    def add(self, name: str, make: Callable[[], Figure]) -> None:
        """Draw a figure into a PNG file of this name."""
        self._add(f"{name}.png", lambda path: save(make(), path))

    def animate(self, name: str, draw: Callable[[Path], Path]) -> None:
        """Draw an animation into a GIF file of this name, if animations are wanted."""
        if self.animation:
            self._add(f"{name}.gif", draw)

    def _add(self, name: str, draw: Callable[[Path], Path]) -> None:
        try:
            self.drawn.append(draw(self.folder / file_name(name)))
        except OSError:
            raise
        # A valid record may still hold numbers that Matplotlib cannot draw.
        except Exception as error:
            if debugging():
                raise
            self.notes.append(f"{self.source}, figure {name}: {error or type(error).__name__}")


def file_name(text: str) -> str:
    """Return a text as the name of a file, with `_` for all but letters, digits, `.`, `-` and `_`.

    It names nothing outside of a folder, and different texts have different names.

    Examples:
        >>> file_name("sorting-errors-3.png")
        'sorting-errors-3.png'
        >>> file_name("x/../../3.png")
        '02a132bd_x_.._.._3.png'
    """
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", text)
    if plain == text and not text.startswith(".") and 0 < len(text) <= _LONGEST:
        return text
    return f"{zlib.crc32(text.encode(errors='replace')):08x}_{plain[-_LONGEST:]}"
