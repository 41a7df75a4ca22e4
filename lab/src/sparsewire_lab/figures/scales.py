"""Axes over wide ranges, with legible numbers."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from sparsewire_lab.figures.series import Series


def decade(power: int) -> str:
    """Return a power of ten, in digits if there are few."""
    if power > 5 or power < -4:
        return f"$10^{{{power}}}$"
    return f"{10**power:,}" if power >= 0 else f"{10.0**power:.{-power}f}"


def scale_along(axis: Axes, first: float, longest: float, wide: bool) -> None:
    """Set up the horizontal axis of curves that all begin at 0.

    Args:
        axis: The axes.
        first: The first number above 0; a wide axis is logarithmic from there.
        longest: The end of the longest curve.
        wide: Whether some curve is too short to be visible on a linear axis.
    """
    if wide:
        axis.set_xscale("symlog", linthresh=first, linscale=0.3)
        decades = range(math.ceil(math.log10(first)), math.floor(math.log10(longest)) + 1)
        axis.set_xticks([0, *(10.0**d for d in decades)], ["0", *map(decade, decades)])
        axis.xaxis.set_minor_locator(NullLocator())
    else:
        axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.set_xlim(0, max(longest, 1) * (1.2 if wide else 1.02))


def scale_percent(axis: Axes, every: Sequence[Series]) -> float:
    """Set up the axis of errors: 1, 2, 5, 10 and so on, and 0 beneath them if it occurs.

    Returns the lowest value that can be drawn: a band that reaches zero has no logarithm.
    """
    errors = [100 * value for series in every for value in series.mean]
    smallest = min((error for error in errors if error > 0), default=1.0)
    steps = [digit * 10.0**power for power in range(-2, 3) for digit in (1, 2, 5)]
    # Some room below the lowest line, for its band.
    low = max((step for step in steps if step <= 0.7 * smallest), default=steps[0])
    high = min(step for step in steps if step >= min(max(*errors, 10 * low), 100.0))
    ticks = [step for step in steps if low <= step <= high]
    labels = [f"{tick:g}" for tick in ticks]
    with_zero = min(errors) < low
    if with_zero:
        axis.set_yscale("symlog", linthresh=low, linscale=0.4)
        ticks, labels = [0.0, *ticks], ["0", *labels]
    else:
        axis.set_yscale("log")
    axis.set_ylim(-0.12 * low if with_zero else low, 1.05 * high)
    axis.set_yticks(ticks, labels)
    axis.yaxis.set_minor_locator(NullLocator())
    return 0.0 if with_zero else low / 1000
