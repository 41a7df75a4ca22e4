"""Draw soft ranks against the temperature: `python examples/soft_ranks.py docs/images`."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import sparsewire as sw


def main(folder: str) -> None:
    """Draw the ranks of five numbers, two of which are near each other."""
    x = torch.tensor([0.0, 0.5, 0.6, 1.5, 3.0])
    heat = torch.logspace(-2, 2, 200)
    ranks = sw.soft_rank(x.expand(200, 5), temperature=heat)
    figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
    axes.semilogx(heat, ranks, label=[f"x = {each:g}" for each in x.tolist()])
    axes.set(xlabel="temperature", ylabel="soft rank")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.savefig(Path(folder) / "soft-ranks.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main(sys.argv[1])
