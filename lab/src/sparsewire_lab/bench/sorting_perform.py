"""Perform one case of soft sorting: check it against float64, then measure it."""

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import sparsewire as sw
from sparsewire_lab.bench import exactness
from sparsewire_lab.bench.case import OURS, Case
from sparsewire_lab.bench.found import Row, Setting, add_note, enter, in_mode, judge
from sparsewire_lab.bench.measure import Meter
from sparsewire_lab.bench.sorting_cases import OTT
from sparsewire_lab.bench.sorting_ott import NOTE as OTT_NOTE
from sparsewire_lab.bench.sorting_ott import ott_calls
from sparsewire_lab.bench.sorting_peers import Engine, sorting_engine
from sparsewire_lab.bench.sorting_problems import SortingProblem, sorting_problem

# Instances are sorted each for itself: so many are checked, at least, and more where n is small.
_CHECKED, _CHECKED_PAIRS = 4, 2**18


def perform_sorting(case: Case, setting: Setting, meter: Meter, row: Row) -> None:
    """Check and measure a case; enter what is found in its row."""
    problem = _problem(case.case, case.n, case.variant, case.batch, setting.device)
    with sw.engine("auto"):
        calls = ott_calls(case.case, problem) if case.engine == OTT else _calls(case, problem)
        forward, both, capture_mib = in_mode(case, meter, *calls)
        _check(case, problem, both(), row)
        if row["status"] == "ok":
            forward()
            row["ms_forward"] = meter.time(forward).ms
            enter(row, meter.measure(both), capture_mib)


def exact_results(case: Case, problem: SortingProblem) -> exactness.Named:
    """Return output and gradients in float64, ours by its specification.

    Under `vmap` sorts are the products of the matrices of all cuts: that is what they are defined
    as, and nothing else is done in their place.
    """
    engine = sorting_engine(case.case, case.engine)
    if case.engine == OURS and case.case != "order_loss":
        engine = torch.vmap(engine)
    with sw.engine("reference"):
        return _named(problem, _both(engine, problem))


def _check(case: Case, problem: SortingProblem, results: Sequence[Tensor], row: Row) -> None:
    """Compare with float64. Peers are another function each: only their rounding is seen."""
    if case.engine == OTT:
        add_note(row, f"{OTT_NOTE}; not checked")
        return
    rows = min(case.batch, max(_CHECKED, _CHECKED_PAIRS // case.n**2))
    want = exact_results(case, problem.exact(rows))
    got = {name: each[:rows] for name, each in _named(problem, results).items()}
    error, worst = exactness.relative_error(got, want)
    if case.engine == OURS:
        judge(row, error, worst, "reference, float64")
        return
    row.update(error=error if math.isfinite(error) else None, checked_against="itself, float64")
    if not error <= exactness.WRONG:
        add_note(row, f"in float32 its relative error is {error:.1e} in {worst}")


def _calls(
    case: Case, problem: SortingProblem
) -> tuple[Callable[[], Tensor], Callable[[], list[Tensor]]]:
    engine = sorting_engine(case.case, case.engine)

    def forward() -> Tensor:
        with torch.no_grad():
            return engine(problem.keys, problem.given)

    return forward, lambda: _both(engine, problem)


def _both(engine: Engine, problem: SortingProblem) -> list[Tensor]:
    out = engine(problem.keys, problem.given)
    return [out.detach(), *torch.autograd.grad(out, [*problem.leaves.values()], problem.weight)]


def _named(problem: SortingProblem, results: Sequence[Tensor]) -> exactness.Named:
    return dict(zip(("output", *problem.leaves), results, strict=True))


# The cases of one size follow each other: its inputs are made once.
@functools.lru_cache(maxsize=1)
def _problem(case: str, n: int, variant: str, batch: int, device: str) -> SortingProblem:
    return sorting_problem(Case(case, OURS, n, variant, batch=batch), torch.device(device))
