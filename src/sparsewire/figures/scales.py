"""Axes over wide ranges, with numbers that are easily read."""

import math

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator


def decade(power: int) -> str:
    """Return a power of ten, in digits as long as these are easily read."""
    if power > 5 or power < -4:
        return f"$10^{{{power}}}$"
    return f"{10**power:,}" if power >= 0 else f"{10.0**power:.{-power}f}"


def scale_along(axis: Axes, first: float, longest: float, wide: bool) -> None:
    """Set up the horizontal axis of curves that all begin at 0.

    Args:
        axis: Whose.
        first: The first number above 0, from which a wide axis is logarithmic.
        longest: Where the longest curve ends.
        wide: Whether some curve is too short to be seen beside the longest.
    """
    if wide:
        axis.set_xscale("symlog", linthresh=first, linscale=0.3)
        decades = range(math.ceil(math.log10(first)), math.floor(math.log10(longest)) + 1)
        axis.set_xticks([0, *(10.0**d for d in decades)], ["0", *map(decade, decades)])
        axis.xaxis.set_minor_locator(NullLocator())
    else:
        axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.set_xlim(0, max(longest, 1) * (1.2 if wide else 1.02))
