"""Times of a step beside that of one setting: for the tables of speed of all experiments."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from sparsewire_lab.figures.cells import NONE, pace
from sparsewire_lab.figures.series import Group
from sparsewire_lab.figures.settings import finished, seeds


def speed_cells(
    found: Sequence[Group], is_measure: Callable[[dict[str, Any]], bool]
) -> list[tuple[str, str, str]]:
    """Return for each setting its seeds, milliseconds of a step, and how many times the measure's.

    Args:
        found: The settings that are compared.
        is_measure: Tells by its arguments which setting the others are measured by: the first.
    """
    paces = [pace(finished(group)) for group in found]
    measures = (ms for g, ms in zip(found, paces, strict=True) if is_measure(g.setting))
    measure = next(measures, math.nan)
    return [
        (seeds(group), _unless_unknown(ms, ".3g"), _unless_unknown(ms / measure, ".2f", " ×"))
        for group, ms in zip(found, paces, strict=True)
    ]


def _unless_unknown(number: float, digits: str, unit: str = "") -> str:
    return f"{number:{digits}}{unit}" if math.isfinite(number) else NONE
