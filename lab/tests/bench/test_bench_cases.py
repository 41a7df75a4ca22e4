"""Which cases a run has, the sizes they have, and the least work they need."""

from itertools import pairwise
from typing import get_args

import pytest
from lab.tests.bench.rows import RATES

from sparsewire_lab.bench import cases, floors
from sparsewire_lab.bench.cases import OURS, Case, plan
from sparsewire_lab.bench.floors import Sizes, Work, floor, layer_works, sizes_of
from sparsewire_lab.cli.bench import Part


def test_ceilings_come_first_and_the_reference_before_what_is_compared_with_it() -> None:
    assert get_args(Part) == cases.GROUPS
    names = {"ceilings", "spread", cases.FEW, "step", "contexts", "glimpse"}
    names |= {"properties", "canvases"}
    for device in ("cpu", "cuda"):
        planned = plan(device, quick=False)
        assert [case.engine for case in planned[:2]] == ["copy", "exp"]
        assert {case.case for case in planned} == {*names, *cases.SORTS}
        assert len(set(planned)) == len(planned)
        for number, case in enumerate(planned):
            compared = case.engine in (OURS, "plain", "chunked", "keops") and not case.variant
            if compared and case.case in ("spread", cases.FEW, "step", "glimpse"):
                before = {(c.case, c.engine, c.n) for c in planned[:number]}
                assert (case.case, "reference", case.n) in before, case


def test_only_a_gpu_captures_and_gets_the_largest_sizes() -> None:
    cpu, cuda = (plan(device, quick=False) for device in ("cpu", "cuda"))
    assert {case.mode for case in cpu} == {"eager"}
    assert {case.mode for case in cuda} == {"eager", "captured"}
    usual = {case.case for case in cpu if case.n > 4096} - {*cases.LEAGUE}
    assert usual == {"contexts"}
    largest = {(case.case, case.variant) for case in cuda if case.n == 2**20}
    assert largest == {("step", "floor variances"), ("contexts", "")}
    captured = {case.engine for case in cuda if case.case == "spread" and case.mode == "captured"}
    assert captured == {OURS, "reference", "plain", "chunked"}


def test_parts_and_sizes_can_be_chosen() -> None:
    planned = plan("cpu", quick=True, only=["spread"], sizes=[16, 8])
    assert {case.case for case in planned} == {"ceilings", "spread"}
    assert [case.n for case in planned if case.engine == OURS and not case.variant] == [8, 16]
    assert {case.case for case in plan("cpu", quick=True, only=["ceilings"])} == {"ceilings"}
    assert {case.case for case in plan("cpu", quick=True, only=["canvases"])} == {"canvases"}
    large = plan("cuda", quick=False, only=["step"], sizes=[64, 2**17])
    assert {(c.n, c.variant) for c in large if c.n} == {(64, ""), (2**17, "floor variances")}
    glimpses = plan("cpu", quick=True, only=["glimpse"], sizes=[8])
    assert {case.batch for case in glimpses if case.n} == {16}  # sizes of their own


def test_the_league_has_powers_of_ten_for_one_row_and_for_many() -> None:
    quick = plan("cpu", quick=True, only=["sorting"])[3:]
    assert {case.n for case in quick} == {16, 64}
    assert cases.OTT not in {case.engine for case in quick}
    cpu, cuda = (
        [case for case in plan(device, False, ["sorting"]) if case.n] for device in ("cpu", "cuda")
    )
    tens = {10**e for e in range(1, 8)}
    for case in ("soft_rank", "soft_sort", "soft_topk_mask"):
        for batch in (1, 64):
            assert tens <= {c.n for c in cpu if (c.case, c.batch) == (case, batch)}
    assert {case.n for case in cpu if case.case == "soft_permutation"} == {10, 100, 10**3, 10**4}
    assert {cases.payload_of(case) for case in cpu} == {(), (16,)}
    images = [case for case in cuda if case.variant == "3×784"]
    assert {(case.n, case.batch) for case in images} == {(16, 64), (64, 64), (1024, 64)}
    captured = {case.engine for case in cuda if case.mode == "captured"}
    own = {cases.HARD, cases.NEIGHBOURS, cases.LIST_MLE, cases.DFTOPK, *cases.MATRICES}
    assert captured == {OURS, *own}
    for before, after in pairwise(cpu):
        if (before.case, before.n, before.batch) != (after.case, after.n, after.batch):
            assert after.engine == OURS
    assert {case.n for case in plan("cuda", True, ["sorting"], [5])[4:]} == {5}


def test_properties_need_no_ceilings() -> None:
    planned = plan("cpu", quick=False, only=["properties"])
    engines = {engine for case in cases.LEAGUE for engine in cases.PEERS[case]}
    assert {case.case for case in planned} == {"properties"}
    assert {case.engine for case in planned} == {OURS, *engines}
    assert plan("cpu", quick=True, only=["properties"]) == []


@pytest.mark.parametrize(
    ("case", "pairs", "wirings"),
    [
        (Case("spread", "auto", 10), 10 * 240, 1),
        (Case("step", "auto", 10, batch=64), 10 * 240, 1),
        (Case("contexts", "auto", 2**20, batch=4), 2**16 * 64 * 24, 1),
        (Case("glimpse", "auto", 1024, "1×32×32", batch=3), 3 * 1024 * 52, 3),
        (Case("glimpse", "auto", 1152, "8×12×12", batch=3), 3 * 1152 * 52, 3),
    ],
)
def test_sizes_follow_from_the_samples(case: Case, pairs: int, wirings: int) -> None:
    sizes = sizes_of(case)
    assert sizes is not None
    assert (sizes.pairs, sizes.wirings) == (pairs, wirings)
    assert sizes.trained == (case.case in ("step", "contexts"))


def test_the_work_of_spread_by_hand() -> None:
    """Two tuples against three points on one axis: 6 pairs, 3 numbers a tuple, 13 bytes a point."""
    sizes = Sizes(contexts=1, k=2, m=3, r=1)
    inputs, points = 2 * 3 * 4, 3 * (8 + 1 + 4)
    there, both = layer_works(sizes)
    assert there == Work(6, 6 * 7, inputs + points)
    assert both == Work(12, 6 * (7 + 13), 3 * inputs + 2 * points)


def test_layers_move_input_and_output_and_store_no_points() -> None:
    """Two tuples, r = 1, of a layer from 5 to 4 with batch 7: raw numbers are 3 a tuple."""
    sizes = Sizes(1, 2, 30, 1, lanes=7, in_size=5, out_size=4, trained=True)
    raw, x, y = 2 * 3 * 4, 7 * 5 * 4, 7 * 4 * 4
    there, both = layer_works(sizes)
    assert there == Work(60, 60 * 7 + 2 * 30 * 7, raw + x + y)
    backward, adam = (60, 60 * 13 + 2 * 30 * 7, 2 * raw + x + y), (0, 12 * 6, 7 * 6 * 4)
    assert both == tuple(map(sum, zip(there, backward, adam, strict=True)))


def test_the_work_of_sorts_is_what_has_to_be_moved() -> None:
    keys = 2 * 10 * 4
    for case, there, both in (
        (Case("soft_sort", OURS, 10, batch=2), 2 * keys, 5 * keys),
        (Case("sort_by", OURS, 10, "16", batch=2), keys * (1 + 2 * 16), keys * (3 + 5 * 16)),
        (Case("soft_permutation", OURS, 10, batch=2), 11 * keys, 23 * keys),
        (Case("order_loss", OURS, 10, batch=2), 3 * keys + 8, 3 * keys + 4 * keys + 2 * 8),
    ):
        assert floors.works_of(case) == (Work(0, 0, there), Work(0, 0, both))


def test_a_floor_is_the_longest_of_three_times() -> None:
    assert floor(Work(2 * 10**9, 0, 2 * 10**10), RATES) == (2000.0, "exp")
    assert floor(Work(10**9, 0, 6 * 10**10), RATES) == (3000.0, "bytes")
    assert floor(Work(10**9, 5 * 10**11, 2 * 10**10), RATES) == (5000.0, "flops")
    assert floor(Work(1, 1, 1), {"copy": 1.0}) is None


def test_fewer_pairs_lower_the_floor_but_never_to_zero() -> None:
    for case in (
        Case("spread", "auto", 64),
        Case("step", "auto", 64, batch=64),
        Case("glimpse", "auto", 1024, "1×32×32", batch=2),
    ):
        sizes = sizes_of(case)
        assert sizes is not None
        floors = [floor(layer_works(sizes, p)[1], RATES) for p in (0, sizes.pairs // 2, None)]
        times = [0.0 if f is None else f[0] for f in floors]
        assert 0 < times[0] <= times[1] <= times[2]
        assert layer_works(sizes, sizes.pairs) == layer_works(sizes)
