"""What a page could show and does not have, with the command that would make it."""

from typing import Any, NamedTuple

from sparsewire_lab.report.gather import Found


class Absent(NamedTuple):
    """Something that is not on the page."""

    what: str
    command: str


def absences(found: Found, sections: dict[str, Any]) -> list[Absent]:
    """Return what is missing.

    Args:
        found: What was gathered.
        sections: By name, what each viewer shows; empty if it has nothing.
    """
    wanted = [
        (not found.of("identity"), "the identity experiment", "sparsewire identity --size 32"),
        (
            bool(found.of("identity")) and not sections["wiring"],
            "the wires of an identity matrix while they move",
            "sparsewire identity --size 32 --steps 7200 --evaluate-every 80",
        ),
        (
            not found.of("attention"),
            "the glimpse experiment (small digits: nothing is fetched)",
            "sparsewire attention --data digits",
        ),
        (
            bool(found.of("attention")) and not sections["glimpses"],
            "a gallery of glimpses",
            "sparsewire attention --data digits --again",
        ),
        (
            not found.of("sorting"),
            "the sorting experiment (small digits: nothing is fetched)",
            "sparsewire sorting --data digits --places 2 --size 8",
        ),
        (
            bool(found.of("sorting")) and not any(s["levels"] for s in sections["sorting"]),
            "numbers moving through the levels of a sort",
            "sparsewire sorting --data digits --places 2 --size 8 --method exact",
        ),
        (not found.bench, "benchmarks of this machine", "sparsewire bench --quick"),
    ]
    return [Absent(what, command) for missing, what, command in wanted if missing]
