"""What a page could show and lacks, with the command that would make it."""

from typing import Any, NamedTuple

from sparsewire_lab.report.load import Results


class Missing(NamedTuple):
    """Something that is not on the page."""

    what: str
    command: str


def missing_parts(results: Results, viewers: dict[str, Any]) -> list[Missing]:
    """Return what is missing.

    Args:
        results: What is shown.
        viewers: By name, the data of each viewer; empty if there is none.
    """
    runs = {name: bool(results.of(name)) for name in ("identity", "attention", "sorting")}
    has_levels = any(strip["levels"] for strip in viewers["sorting"])
    digits = "(small digits: nothing is fetched)"
    wanted = [
        (not runs["identity"], "the identity experiment", "identity --size 32"),
        (
            runs["identity"] and not viewers["wiring"],
            "the wires of an identity matrix in training",
            "identity --size 32 --steps 7200 --evaluate-every 80",
        ),
        (not runs["attention"], f"the glimpse experiment {digits}", "attention --data digits"),
        (
            runs["attention"] and not viewers["glimpses"],
            "a gallery of glimpses",
            "attention --data digits --again",
        ),
        (
            not runs["sorting"],
            f"the sorting experiment {digits}",
            "sorting --data digits --places 2 --size 8",
        ),
        (
            runs["sorting"] and not has_levels,
            "numbers moving through the levels of a sort",
            "sorting --data digits --places 2 --size 8 --method exact",
        ),
        (not results.bench, "benchmarks of this machine", "bench --quick"),
    ]
    return [Missing(what, f"sparsewire {words}") for lacks, what, words in wanted if lacks]
