"""From the words of a command line to runs: parse, check, train."""

import os
import sys
from collections.abc import Sequence

from sparsewire.training.options import Experiment


def run_command(kind: type[Experiment], words: Sequence[str]) -> int:
    """Run an experiment as its command line says; return the exit status."""
    import tyro

    # In the help, what is this experiment's own comes before what all have.
    fields = kind.__dataclass_fields__
    for name in Experiment.__dataclass_fields__:
        fields[name] = fields.pop(name)
    experiment = tyro.cli(kind, args=list(words), prog=f"sparsewire {kind.name}")
    try:
        experiment.check()
        settings = [setting.resolved() for setting in experiment.settings()]
    except (TypeError, ValueError) as error:
        print(f"sparsewire {kind.name}: error: {error}", file=sys.stderr)
        return 2
    from sparsewire.training.runs import run_all  # slow to import

    status = run_all(settings, words)
    first_process = os.environ.get("RANK", "0") == "0"
    if status == 0 and experiment.figures and first_process:
        from sparsewire.figures.command import draw_all

        for path in draw_all(experiment.out / f"{kind.name}.jsonl", experiment.out / "figures"):
            if not experiment.quiet:
                print(f"figure: {path}")
    return status
