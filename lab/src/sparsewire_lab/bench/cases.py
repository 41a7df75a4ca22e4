"""What is measured: the cases of a run, in order, and the sizes that their work follows from."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sparsewire_lab.bench.case import OURS, Case
from sparsewire_lab.bench.sorting_cases import sorting_plan

GROUPS = ("ceilings", "spread", "step", "glimpse", "sorting")
CEILINGS = ("copy", "exp", "matmul float32", "matmul bfloat16")

# Ours is what a user gets without asking; the others of this library can be chosen.
OWN_ENGINES = (OURS, "reference", "chunked", "compiled")
# Engines that keep tables of all pairs.
TABLE_ENGINES = ("reference", "plain")

ALL_PAIRS = "all pairs"
FLOOR_VARIANCES = "floor variances"
GLIMPSES = {"1×32×32": (1, 32, 32), "8×12×12": (8, 12, 12)}
IMAGE = (1, 100, 100)

# `spread` with fewer integer tuples, at one size: a peer's usual ground.
FEW = "spread, few"
FEW_SIZE = 1024

LOCAL_SAMPLES, GLOBAL_SAMPLES, FEW_GLOBAL_SAMPLES = 2, 18, 2
GLIMPSE_SAMPLES = (32, 16)
STEP_BATCH = 64
GLIMPSE_BATCH, QUICK_GLIMPSE_BATCH = 128, 16

SPREAD_SIZES = {"cpu": (64, 256, 1024, 4096), "cuda": (64, 256, 1024, 4096, 16384, 65536)}
STEP_SIZES = {"cpu": (64, 256, 1024, 4096), "cuda": (64, 256, 1024, 4096, 16384)}
# With variances at their floor nearly every pair is negligible: only these sizes get so large.
FLOOR_SIZES = {"cpu": (), "cuda": (4096, 65536, 2**20)}
ALL_PAIRS_SIZES = {"cpu": (), "cuda": (16384,)}
QUICK_SIZES = (64, 256)

# Given sizes above this are measured with variances at their floor.
_LARGEST_WIDE = 2**15


@dataclass(frozen=True)
class Sizes:
    """The sizes that a case's work follows from; letters as in `sparsewire.ops`."""

    contexts: int
    k: int
    m: int
    r: int
    lanes: int = 0  # instances that share a wiring; 0 where nothing is contracted
    wirings: int = 1
    in_size: int = 0
    out_size: int = 0
    trained: bool = False  # whether an optimiser's step is part of it

    @property
    def pairs(self) -> int:
        """Pairs of a continuous and an integer tuple, over all contexts."""
        return self.contexts * self.k * self.m


def samples_of(case: Case) -> tuple[int, int]:
    """Return how many tuples are drawn for each: around it, and from everywhere."""
    if case.case == "glimpse":
        return GLIMPSE_SAMPLES
    return LOCAL_SAMPLES, FEW_GLOBAL_SAMPLES if case.case == FEW else GLOBAL_SAMPLES


def sizes_of(case: Case) -> Sizes:
    """Return the sizes of a case of `spread`, `step` or `glimpse`."""
    if case.case == "glimpse":
        outs, ins = math.prod(GLIMPSES[case.variant]), math.prod(IMAGE)
        return Sizes(case.batch * outs, 1, 4 + sum(GLIMPSE_SAMPLES), 2, 1, case.batch, ins, outs)
    n, m = case.n, case.n * (4 + sum(samples_of(case)))
    if case.case in ("spread", FEW):
        return Sizes(1, n, m, 2)
    return Sizes(1, n, m, 2, lanes=case.batch, in_size=n, out_size=n, trained=True)


def plan(
    device: str, quick: bool, only: Sequence[str] = GROUPS, sizes: Sequence[int] = ()
) -> list[Case]:
    """Return the cases of a run. Ceilings always come first: the floors are made of them.

    At each size the reference comes first, so that every later row can be compared with it.

    Args:
        device: `"cpu"` or `"cuda"`.
        quick: Whether it must end within a minute on a CPU.
        only: Which of `GROUPS` to measure.
        sizes: Sizes n instead of the usual ones, for all but `glimpse`.
    """
    cases = list(_ceilings(device))
    if "spread" in only:
        usual = QUICK_SIZES if quick else SPREAD_SIZES[device]
        for n in sorted(sizes or usual):
            cases += _spread(device, quick, n)
        if not quick and not sizes:
            engines = ("reference", "plain", *_cpu(device, quick), OURS)
            cases += [Case(FEW, engine, FEW_SIZE) for engine in engines]
            cases.append(Case(FEW, "keops", FEW_SIZE))
    if "step" in only:
        cases += _steps(device, quick, sorted(sizes))
    if "glimpse" in only:
        cases += _glimpses(device, quick)
    if "sorting" in only:
        cases += sorting_plan(device, quick, sorted(sizes))
    return cases


def _ceilings(device: str) -> Iterator[Case]:
    for name in CEILINGS:
        # Few CPUs multiply bfloat16 faster than float32; those that do not take very long.
        if device == "cuda" or name != "matmul bfloat16":
            yield Case("ceilings", name)


def _cpu(device: str, quick: bool) -> tuple[str, ...]:
    """Return the engines in chunks; compiling takes too long for a quick run."""
    return ("chunked",) if device == "cuda" or quick else ("chunked", "compiled")


def _spread(device: str, quick: bool, n: int) -> Iterator[Case]:
    modes = ("eager", "captured") if device == "cuda" else ("eager",)
    for mode in modes:
        for engine in ("reference", "plain", *_cpu(device, quick), OURS):
            yield Case("spread", engine, n, mode=mode)
        if device == "cuda":  # only the kernels leave pairs out
            yield Case("spread", OURS, n, ALL_PAIRS, mode)
    if not quick:  # it compiles for most of a minute when it meets a formula first
        yield Case("spread", "keops", n)


def _steps(device: str, quick: bool, sizes: Sequence[int]) -> Iterator[Case]:
    wide: Sequence[int] = QUICK_SIZES if quick else STEP_SIZES[device]
    narrow: Sequence[int] = () if quick else FLOOR_SIZES[device]
    every: Sequence[int] = () if quick else ALL_PAIRS_SIZES[device]
    if sizes:
        wide = [n for n in sizes if n <= _LARGEST_WIDE]
        narrow, every = [n for n in sizes if n > _LARGEST_WIDE], ()
    for n in wide:
        yield Case("step", "reference", n, batch=STEP_BATCH)
        for engine in _cpu(device, quick):
            yield Case("step", engine, n, batch=STEP_BATCH)
        yield from _modes(device, "step", n, "", STEP_BATCH)
    for n in every:
        yield from _modes(device, "step", n, ALL_PAIRS, STEP_BATCH)
    for n in narrow:
        yield from _modes(device, "step", n, FLOOR_VARIANCES, STEP_BATCH)


def _glimpses(device: str, quick: bool) -> Iterator[Case]:
    batch = QUICK_GLIMPSE_BATCH if quick and device == "cpu" else GLIMPSE_BATCH
    for variant, shape in GLIMPSES.items():
        n = math.prod(shape)
        yield Case("glimpse", "reference", n, variant, batch=batch)
        yield from _modes(device, "glimpse", n, variant, batch)


def _modes(device: str, case: str, n: int, variant: str, batch: int) -> Iterator[Case]:
    options: dict[str, Any] = {"variant": variant, "batch": batch}
    yield Case(case, OURS, n, **options)
    if device == "cuda":
        yield Case(case, OURS, n, mode="captured", **options)
