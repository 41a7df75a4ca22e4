"""Records → the table of the identity experiment."""

from collections.abc import Sequence

from sparsewire_lab.figures.pages import markdown
from sparsewire_lab.figures.series import THRESHOLD, Group, Record, reach
from sparsewire_lab.identity.settings import best, groups
from sparsewire_lab.train.records import aggregate

# What the paper says of its figure; it prints no numbers.
PAPER = {
    **{("sparse", size): "converges" for size in (8, 16, 32, 64)},
    ("reinforce", 8): "works, if slowly",
    ("reinforce", 16): "fails",
}
_VALUES = {"fixed": "fixed at 1", "ones": "learned, from 1", "normal": "learned, from N(0, 1)"}
_HEAD = (
    "size",
    "target",
    "method",
    "values",
    "lr",
    "steps",
    "seeds",
    "rounded error",
    "places found",
    f"below {THRESHOLD:g} after",
    "paper",
)


def identity_table(records: Sequence[Record]) -> str:
    """Return the table of the identity experiment: a row for each setting, averaged over seeds.

    Of a sweep, the row of the best learning rate.
    """
    return markdown(_HEAD, [_row(group) for group in best(groups(records))])


def _row(group: Group) -> tuple[str, ...]:
    setting, runs = group.setting, group.runs
    method, target, size = (setting[name] for name in ("method", "target", "size"))
    finals = aggregate(runs)
    error = str(finals["error"])
    if "expected_error" in finals:
        error += f" (not rounded: {finals['expected_error']})"
    said = PAPER.get((method, size), "–")
    return (
        f"{size:,}",
        target,
        method,
        _VALUES.get(setting["values"], str(setting["values"])),
        f"{setting['lr']:g}",
        f"{setting['steps']:,}",
        str(len(runs)),
        error,
        _percent(finals["found"].mean),
        _reached(group),
        said if target == "identity" and setting["values"] == "fixed" else "–",
    )


def _percent(share: float) -> str:
    """With as many digits as it takes not to say 100 % of less."""
    short = f"{100 * share:.4g} %"
    return f"{100 * share:.6g} %" if short == "100 %" and share < 1 else short


def _reached(group: Group) -> str:
    there = [reach(group._replace(runs=[run])) for run in group.runs]
    count = sum(end.reached for end in there)
    if count < len(there):
        return f"{count} of {len(there)} seeds" if count else "never"
    whole = reach(group)
    return f"{whole.steps:,.0f} steps, {whole.seconds:.2g} s"
