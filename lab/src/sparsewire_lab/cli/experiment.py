"""From the words of a command line to runs: parse, check, train."""

import inspect
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sparsewire_lab.cli.words import check_words, words_of_fields
from sparsewire_lab.errors import WRONG_USE, complain
from sparsewire_lab.train.options import Experiment

_MORE = "With --dry-run nothing is trained; with --debug an error shows where it happened."


def run_command(kind: type[Experiment], words: Sequence[str]) -> int:
    """Run an experiment as its command line says; return the exit status."""
    import tyro

    program, first_process = f"sparsewire {kind.name}", os.environ.get("RANK", "0") == "0"
    try:
        # Words that tyro could not read either, told in a line.
        if (known := words_of_fields(kind)) is not None:
            check_words(known, words)
        told = f"{inspect.getdoc(kind)}\n\n{_MORE}"
        with own_first(kind):
            experiment = tyro.cli(kind, args=list(words), prog=program, description=told)
        experiment.check()
        settings = [setting.resolved() for setting in experiment.settings()]
    except (TypeError, ValueError) as error:
        return complain(program, error, WRONG_USE) if first_process else WRONG_USE
    if experiment.dry_run:
        from sparsewire_lab.train.dry_run import rehearse  # slow to import

        return rehearse(settings, words)
    from sparsewire_lab.train.runs import run_all  # slow to import

    status = run_all(settings, words)
    if status == 0 and experiment.figures and first_process:
        from sparsewire_lab.cli.figures import draw_all

        for path in draw_all(experiment.out / f"{kind.name}.jsonl", experiment.out / "figures"):
            if not experiment.quiet:
                print(f"figure: {path}")
    return status


@contextmanager
def own_first(kind: type[Experiment]) -> Iterator[None]:
    """Put what is an experiment's own before what all have, for its help."""
    fields = kind.__dataclass_fields__
    before = dict(fields)
    for name in Experiment.__dataclass_fields__:
        fields[name] = fields.pop(name)
    try:
        yield
    finally:
        fields.clear()
        fields.update(before)
