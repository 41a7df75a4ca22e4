"""Which cases a run has, and the sizes that they stand for."""

import pytest

from sparsewire_lab.bench.cases import CEILINGS, FEW, GROUPS, OURS, Case, plan, sizes_of
from sparsewire_lab.bench.sorting_cases import SORTING


def test_ceilings_come_first_and_the_reference_before_what_is_compared_with_it() -> None:
    for device in ("cpu", "cuda"):
        cases = plan(device, quick=False)
        assert [case.engine for case in cases[: len(CEILINGS)]][:2] == ["copy", "exp"]
        assert {case.case for case in cases} == {*GROUPS, FEW, *SORTING} - {"sorting"}
        for number, case in enumerate(cases):
            if (
                case.case not in SORTING
                and case.engine in (OURS, "plain", "chunked", "keops")
                and not case.variant
            ):
                before = {(c.case, c.engine, c.n) for c in cases[:number]}
                assert (case.case, "reference", case.n) in before, case


def test_only_a_gpu_captures_and_gets_the_largest_sizes() -> None:
    cpu, cuda = (plan(device, quick=False) for device in ("cpu", "cuda"))
    assert {case.mode for case in cpu} == {"eager"}
    assert {case.mode for case in cuda} == {"eager", "captured"}
    assert max(case.n for case in cpu) == 4096
    largest = [case for case in cuda if case.n == 2**20]
    assert {(case.case, case.variant) for case in largest} == {("step", "floor variances")}
    assert len(set(cuda)) == len(cuda)


def test_parts_and_sizes_can_be_chosen() -> None:
    cases = plan("cpu", quick=True, only=["spread"], sizes=[16, 8])
    assert {case.case for case in cases} == {"ceilings", "spread"}
    assert [case.n for case in cases if case.engine == OURS and not case.variant] == [8, 16]
    assert {case.case for case in plan("cpu", quick=True, only=["ceilings"])} == {"ceilings"}
    large = plan("cuda", quick=False, only=["step"], sizes=[64, 2**17])
    assert {(c.n, c.variant) for c in large if c.n} == {(64, ""), (2**17, "floor variances")}


@pytest.mark.parametrize(
    ("case", "pairs", "wirings"),
    [
        (Case("spread", "auto", 10), 10 * 240, 1),
        (Case("step", "auto", 10, batch=64), 10 * 240, 1),
        (Case("glimpse", "auto", 1024, "1×32×32", batch=3), 3 * 1024 * 52, 3),
        (Case("glimpse", "auto", 1152, "8×12×12", batch=3), 3 * 1152 * 52, 3),
    ],
)
def test_sizes_follow_from_the_samples(case: Case, pairs: int, wirings: int) -> None:
    assert (sizes_of(case).pairs, sizes_of(case).wirings) == (pairs, wirings)
