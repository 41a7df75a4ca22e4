"""A bar with loss, metric, speed and time left, where there is a terminal to see it."""

import shutil
import sys
import time
from collections.abc import Callable

from tqdm import tqdm

# Reading a loss makes the host wait for a GPU, so it is read no more often than eyes can follow.
_SECONDS_BETWEEN = 0.25


class Progress:
    """The bar of one run; silent when asked, and when standard error is no terminal.

    Args:
        text: What stands in front of it.
        start: Steps that were made before, by the run that is continued.
        total: Steps of the whole run.
        quiet: Whether to show nothing.
    """

    def __init__(self, text: str, start: int, total: int, quiet: bool) -> None:
        self._hidden = quiet or not sys.stderr.isatty()
        # Some terminals say that they have no size, and tqdm would then draw nothing.
        size = shutil.get_terminal_size((100, 24))
        self._bar = tqdm(
            desc=text,
            initial=start,
            total=total,
            disable=self._hidden,
            unit=" steps",
            ncols=size.columns,
            nrows=size.lines,
        )
        self._step, self._shown = start, time.monotonic()
        self._metrics = ""

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def advance(self, step: int, loss: Callable[[], float]) -> None:
        """Show a step, and now and then its loss, which is asked for only then."""
        if self._hidden or time.monotonic() - self._shown < _SECONDS_BETWEEN:
            return
        self._bar.set_postfix_str(f"loss {loss():.3g}{self._metrics}", refresh=False)
        self._bar.update(step - self._step)
        self._step, self._shown = step, time.monotonic()

    def finish(self, step: int) -> None:
        """Show the last step, however long ago the one before was shown."""
        self._bar.update(step - self._step)
        self._step = step

    def evaluated(self, metrics: dict[str, float]) -> None:
        """Show the metrics from now on."""
        self._metrics = "".join(f", {name} {value:.3g}" for name, value in metrics.items())
