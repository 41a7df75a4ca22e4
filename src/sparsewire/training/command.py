"""From the words of a command line to runs: parse, check, train."""

import sys
from collections.abc import Sequence

from sparsewire.training.options import Experiment


def run_command(kind: type[Experiment], words: Sequence[str]) -> int:
    """Run an experiment as its command line says; return the exit status."""
    import tyro

    experiment = tyro.cli(kind, args=list(words), prog=f"sparsewire {kind.name}")
    try:
        experiment.check()
        settings = [setting.resolved() for setting in experiment.settings()]
    except (TypeError, ValueError) as error:
        print(f"sparsewire {kind.name}: error: {error}", file=sys.stderr)
        return 2
    from sparsewire.training.runs import run_all  # slow to import

    return run_all(settings, words)
