"""Experiments on the command line: check the arguments, then train, record and draw."""

from collections.abc import Sequence

from sparsewire_lab.cli.parse import parse
from sparsewire_lab.errors import UsageError, first_process
from sparsewire_lab.train.memory import keep_freed_memory, memory_checked
from sparsewire_lab.train.options import Experiment


def run_command(kind: type[Experiment], words: Sequence[str]) -> int:
    """Run an experiment with the words of a command line; return the exit status.

    Args:
        kind: The experiment, a dataclass whose fields are the arguments.
        words: The words after the command.

    Raises:
        UsageError: The words cannot be read, or the arguments contradict each other.
    """
    return run(parse(kind, words, f"sparsewire {kind.name}"), words)


def run(experiment: Experiment, words: Sequence[str]) -> int:
    """Run an experiment: train, record and draw what is not recorded yet, or make a dry run."""
    keep_freed_memory()
    with memory_checked(experiment):
        try:
            experiment.check()
            settings = [setting.resolved() for setting in experiment.settings()]
        except (TypeError, ValueError) as error:
            raise UsageError(str(error)) from error
        if experiment.dry_run:
            from sparsewire_lab.train.dry_run import make_dry_run  # slow to import

            return make_dry_run(settings, words)
        from sparsewire_lab.train.runs import record_path, run_all  # slow to import

        status = run_all(settings, words)
    if status == 0 and experiment.figures and first_process():
        from sparsewire_lab.cli.figures import draw_all, print_drawn

        album = draw_all(record_path(experiment), experiment.out / "figures")
        if not experiment.quiet:
            print_drawn(album)
    return status
