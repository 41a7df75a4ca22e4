"""The figure of the label-ranking experiment: mean ranks, with the critical difference."""

from collections.abc import Sequence
from functools import partial

from matplotlib import rc_context
from matplotlib.figure import Figure

from sparsewire_lab.figures.album import Album
from sparsewire_lab.figures.save import COLOURS, STYLE, blank
from sparsewire_lab.label_ranking.metrics import friedman, mean_ranks
from sparsewire_lab.label_ranking.table import MODELS, results_of
from sparsewire_lab.train.records import Record


def draw(runs: Sequence[Record], album: Album) -> None:
    """Draw the mean ranks, if enough is recorded."""
    if any(len(results_of(runs, model).data_sets) > 1 for model in MODELS):
        album.add("label-ranking-ranks", partial(ranks_figure, runs))


@rc_context(STYLE)
def ranks_figure(runs: Sequence[Record]) -> Figure:
    """Return the mean rank of each method over data sets, in a panel for each model.

    The line shows what is within the critical difference of the best: methods under it are not
    significantly worse.
    """
    figure = blank(8.0, 3.0)
    panels = figure.subplots(1, len(MODELS), sharex=True)
    for axes, (model, title) in zip(panels, MODELS.items(), strict=True):
        results = results_of(runs, model)
        axes.set_title(f"{title}, {len(results.data_sets)} data sets")
        axes.set_xlabel("mean rank (1 is the best)")
        if len(results.data_sets) < 2:
            continue
        ranks = mean_ranks(results.table)
        order = sorted(range(len(ranks)), key=lambda i: -ranks[i])
        titles = results.titles()
        colours = [COLOURS[0 if titles[i].startswith("ours") else 4] for i in order]
        axes.barh([titles[i] for i in order], [ranks[i] for i in order], color=colours)
        if len(ranks) > 2:
            critical = friedman(results.table).critical
            best, top = min(ranks), len(ranks) - 0.4
            axes.plot([best, best + critical], [top, top], color=COLOURS[6], linewidth=2)
            axes.text(best, top + 0.15, "critical difference", size=8)
            axes.set_ylim(-0.6, top + 0.8)
        axes.grid(axis="x", alpha=0.3)
    return figure
