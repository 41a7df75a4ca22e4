"""The figure of a record: time and memory against the size, with fitted exponents."""

from collections.abc import Sequence
from pathlib import Path

from sparsewire_lab.bench import growth
from sparsewire_lab.bench.cases import ALL_PAIRS, FLOOR_VARIANCES, OURS
from sparsewire_lab.bench.record import Row

COLUMNS = {"ms_forward_backward": "time (ms)", "extra_mib": "extra memory at the peak (MiB)"}
TITLES = {"spread": "spread, forward and backward", "step": "training step, batch 64"}
# One colour for each engine, one line for each mode, one marker for each variant.
_COLOURS = {
    OURS: "tab:red",
    "reference": "tab:blue",
    "plain": "tab:orange",
    "chunked": "tab:green",
    "compiled": "tab:olive",
    "keops": "tab:purple",
}
_LINES = {"eager": "-", "captured": "--"}
_MARKERS = {"": "o", ALL_PAIRS: "s", FLOOR_VARIANCES: "^"}


def draw(rows: Sequence[Row], path: Path) -> bool:
    """Draw a record; return False, and draw nothing, if no engine has two sizes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    panels = [
        (device, case, cases[case])
        for device, cases in growth.newest(rows).items()
        for case in TITLES
        if case in cases and growth.series(cases[case], "ms_forward_backward")
    ]
    if not panels:
        return False
    figure, axes = plt.subplots(
        len(panels), 2, figsize=(15, 4.4 * len(panels)), layout="constrained", squeeze=False
    )
    for (device, case, measured), pair in zip(panels, axes, strict=True):
        for (column, unit), axis in zip(COLUMNS.items(), pair, strict=True):
            for line in growth.series(measured, column):
                grows = "" if line.exponent is None else f"  ∝ n^{line.exponent:.2f}"
                axis.plot(
                    *zip(*line.points, strict=True),
                    color=_COLOURS.get(line.engine, "tab:gray"),
                    linestyle=_LINES.get(line.mode, ":"),
                    marker=_MARKERS.get(line.variant, "x"),
                    markersize=5,
                    linewidth=2 if line.engine == OURS else 1,
                    label=line.label + grows,
                )
            floors = sorted({(r["n"], r["floor_ms"]) for r in measured if r["floor_ms"]})
            if floors and column == "ms_forward_backward":
                xs, ys = zip(*floors, strict=True)
                axis.plot(xs, ys, color="0.5", linestyle=":", label="floor, all pairs")
            axis.set(xscale="log", yscale="log", xlabel="n", ylabel=unit)
            axis.set_title(f"{TITLES[case]}\n{device}", fontsize=10)
            axis.grid(True, which="major", alpha=0.3)
            if axis.lines:
                axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True
