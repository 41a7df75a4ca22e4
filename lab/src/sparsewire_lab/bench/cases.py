"""What is measured: suites of cases, and the plan of a run."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

# What a user gets without asking.
OURS = "auto"
# The last is in older records only.
OWN_ENGINES = (OURS, "reference", "chunked", "compiled")
# Engines of `spread` that store tables of all pairs.
TABLE_ENGINES = ("reference", "plain")

CEILINGS = ("copy", "exp", "matmul float32", "matmul bfloat16")
FEW = "spread, few"
ALL_PAIRS, FLOOR_VARIANCES = "all pairs", "floor variances"
GLIMPSES = {"1×32×32": (1, 32, 32), "8×12×12": (8, 12, 12)}
IMAGE = (1, 100, 100)
CONTEXT, CONTEXT_TUPLES = 64, 2**16

# The league of soft sorts: each function, and which peers compute it.
LEAGUE = ("soft_rank", "soft_sort", "sort_by", "soft_topk_mask", "soft_permutation")
# Before it, records have other soft sorts under the same names.
LEAGUE_SINCE = "2026-11-20"
SORTS = (*LEAGUE, "order_loss")
# torch.sort has no doubt and nearly no gradient: the least that sorting costs.
HARD = "torch.sort"
# Peers that compute a matrix, from `sparsewire_lab.sorting.peers`.
MATRICES = ("softsort", "neuralsort")
# `order_loss` with a reach of one.
NEIGHBOURS = "neighbours"
LIST_MLE, DFTOPK, KEOPS = "listmle", "dftopk", "keops"
TORCHSORT, OTT, LAPSUM, DIFFTOPK = "torchsort", "ott", "lapsum", "difftopk"
# Of SoftTorch, what it does by default, and its fastest method.
SOFTTORCH, SOFTTORCH_FAST = "softtorch", "softtorch fast_soft_sort"
NETWORKS = {"diffsort odd-even": "odd_even", "diffsort bitonic": "bitonic"}
# The module that an engine imports, and what installs it.
PACKAGES = {
    KEOPS: ("pykeops", "'sparsewire-lab[keops]'"),
    TORCHSORT: ("torchsort", "torchsort"),
    **dict.fromkeys(NETWORKS, ("diffsort", "diffsort")),
    DIFFTOPK: ("difftopk", "difftopk"),
    **dict.fromkeys((SOFTTORCH, SOFTTORCH_FAST), ("softtorch", "softtorch")),
    OTT: ("ott", "ott-jax"),
    LAPSUM: ("lapsum", "its folder `lapsum` from github.com/gmum/LapSum"),
}
_SOFT = (*MATRICES, *NETWORKS, SOFTTORCH)
_LINES = (TORCHSORT, SOFTTORCH_FAST, LAPSUM, OTT)
PEERS = {
    "soft_rank": (HARD, *_SOFT, *_LINES),
    "soft_sort": (HARD, *_SOFT, *_LINES),
    "sort_by": (HARD, *_SOFT),
    "soft_topk_mask": (HARD, *_SOFT, DIFFTOPK, LAPSUM, DFTOPK, OTT),
    "soft_permutation": (HARD, *_SOFT),
    "order_loss": (NEIGHBOURS, LIST_MLE, *MATRICES, TORCHSORT),
}
# The shape of what belongs to a key in `sort_by`: a few numbers, or the images of three digits.
PAYLOADS = {"16": (16,), "3×784": (3, 784)}

# Cases whose variant is a shape, part of their inputs.
SHAPED = ("glimpse", "sort_by")
# Cases without a backward pass, and without a floor.
FORWARD_ONLY = ("canvases",)
WITHOUT_TIME = "properties"

_CPU_ONLY = (OTT,)
_SLOW_TO_START = (KEOPS, OTT)  # they compile: not in a quick run
_ANY_SIZE = range(2, 10**7 + 1)
_LARGEST_WIDE = 2**15  # above, variances are at their floor: nearly every pair is negligible


@dataclass(frozen=True)
class Case:
    """One measurement, and one row of the record."""

    case: str
    engine: str
    n: int = 0
    variant: str = ""
    mode: str = "eager"
    batch: int = 0

    def __str__(self) -> str:
        size = f" n={self.n:,}" if self.n else ""
        return " ".join(filter(None, (f"{self.case}{size}", self.variant, self.engine, self.mode)))

    @property
    def inputs(self) -> "Case":
        """The case that stands for all cases with the same inputs."""
        variant = self.variant if self.case in SHAPED else ""
        return replace(self, engine=OURS, mode="eager", variant=variant)


@dataclass(frozen=True)
class Suite:
    """Cases that differ only in size, engine and mode."""

    group: str
    case: str
    engines: tuple[str, ...]
    captured: tuple[str, ...] = ()  # engines that are measured in a CUDA graph too
    cpu: tuple[int, ...] = ()
    cuda: tuple[int, ...] = ()
    quick: tuple[int, ...] = ()
    chosen: Sequence[int] | None = ()  # sizes that `--sizes` may give it; None: it has its own
    variant: str = ""
    batch: int = 0
    quick_batch: int = 0  # in a quick run, where it differs
    devices: tuple[str, ...] = ("cpu", "cuda")

    def sizes(self, device: str, quick: bool, given: Sequence[int]) -> Sequence[int]:
        """Return the sizes of a run."""
        if given and self.chosen is not None:
            return [n for n in given if n in self.chosen]
        return self.quick if quick else self.cuda if device == "cuda" else self.cpu

    def cases(self, device: str, quick: bool, n: int) -> Iterator[Case]:
        """Yield the cases of one size."""
        batch = self.quick_batch or self.batch if quick else self.batch
        left_out = (*(_SLOW_TO_START if quick else ()), *(_CPU_ONLY if device == "cuda" else ()))
        captured = self.captured if device == "cuda" else ()
        for mode, engines in (("eager", self.engines), ("captured", captured)):
            for engine in engines:
                if engine not in left_out:
                    yield Case(self.case, engine, n, self.variant, mode, batch)


def _suites() -> Iterator[Suite]:
    small, large = (64, 256, 1024, 4096), (64, 256, 1024, 4096, 16384)
    spread = ("reference", "plain", "chunked", OURS)
    step = ("reference", "chunked", OURS)
    ours: dict[str, Any] = {"engines": (OURS,), "captured": (OURS,)}
    usual: dict[str, Any] = {
        "cpu": small,
        "cuda": (*large, 65536),
        "quick": (64, 256),
        "chosen": range(2, 2**22 + 1),
    }
    yield Suite("spread", "spread", (*spread, KEOPS), spread, **usual)
    # Only the kernels leave pairs out.
    yield Suite("spread", "spread", **ours, **usual, variant=ALL_PAIRS, devices=("cuda",))
    yield Suite("spread", FEW, (*spread, KEOPS), (), (1024,), (1024,))
    usual |= {"cuda": large, "chosen": range(2, _LARGEST_WIDE + 1), "batch": 64}
    yield Suite("step", "step", step, (OURS,), **usual)
    yield Suite("step", "step", **ours, cuda=(16384,), variant=ALL_PAIRS, batch=64)
    usual = {"cuda": (4096, 65536, 2**20), "chosen": range(_LARGEST_WIDE + 1, 2**22 + 1)}
    yield Suite("step", "step", **ours, **usual, variant=FLOOR_VARIANCES, batch=64)
    yield Suite("step", "contexts", **ours, cpu=(2**20,), cuda=(2**20,), batch=4)
    for variant, shape in GLIMPSES.items():
        n = (math.prod(shape),)
        usual = {"cpu": n, "cuda": n, "quick": n, "chosen": None, "variant": variant}
        usual |= {"batch": 128, "quick_batch": 16}
        yield Suite("glimpse", "glimpse", ("reference", OURS), (OURS,), **usual)
    yield from _league()
    sizes = (60, 100, 400)
    usual = {"cpu": sizes, "cuda": sizes, "quick": (100,), "chosen": None, "batch": 128}
    peers = tuple(dict.fromkeys(name for case in LEAGUE for name in PEERS[case]))
    once: dict[str, Any] = {"cpu": (0,), "cuda": (0,), "chosen": None}
    yield Suite(WITHOUT_TIME, WITHOUT_TIME, (OURS, *peers), **once)
    yield Suite("canvases", "canvases", **ours, **usual)


def _league() -> Iterator[Suite]:
    """Powers of ten for one row and for 64, and of two where a target has them."""
    tens, twos = tuple(10**e for e in range(1, 8)), (64, 256, 1024, 4096)
    most = {"soft_permutation": 10**4, "order_loss": 10**4}
    for case in SORTS:
        engines = (OURS, *PEERS[case])
        captured = tuple(name for name in engines if name not in PACKAGES)
        usual: dict[str, Any] = {"chosen": _ANY_SIZE, "quick": (16, 64)}
        sizes = tuple(n for n in tens if n <= most.get(case, n))
        whole = Suite("sorting", case, engines, captured, sizes, sizes, **usual, batch=64)
        if case == "sort_by":
            yield replace(whole, variant="16")
            yield replace(whole, variant="16", batch=1, quick=())
            digits = {"cuda": (16, 64, 1024), "chosen": (), "quick": (), "cpu": ()}
            yield replace(whole, **digits, variant="3×784", devices=("cuda",))
        elif case == "order_loss":
            yield replace(whole, cpu=twos, cuda=twos)
        else:
            if case in ("soft_rank", "soft_sort"):
                both = tuple(sorted({*sizes, *twos}))
                whole = replace(whole, cpu=both, cuda=both)
            yield whole
            yield replace(whole, cpu=sizes, cuda=sizes, batch=1, quick=())


SUITES = tuple(_suites())
GROUPS = ("ceilings", *dict.fromkeys(suite.group for suite in SUITES))


def samples_of(case: Case) -> tuple[int, int]:
    """Return how many integer tuples are sampled for each: around it, and everywhere."""
    if case.case == "glimpse":
        return 32, 16
    return 2, 2 if case.case == FEW else 18


def chosen_of(case: Case) -> int:
    """Return the k of `soft_topk_mask`: a tenth of the elements."""
    return max(1, case.n // 10)


def payload_of(case: Case) -> tuple[int, ...]:
    """Return the shape of what belongs to a key."""
    return PAYLOADS[case.variant] if case.case == "sort_by" else ()


def plan(
    device: str, quick: bool, only: Sequence[str] = GROUPS, sizes: Sequence[int] = ()
) -> list[Case]:
    """Return the cases of a run. Ceilings come first: the floors are computed from them.

    At each size the reference comes first where there is one: later rows are compared with it.

    Args:
        device: `"cpu"` or `"cuda"`.
        quick: Whether it must end within a minute on a CPU.
        only: Which of `GROUPS` to measure.
        sizes: Sizes n instead of the usual ones, for the groups spread, step and sorting.
    """
    suites = [suite for suite in SUITES if suite.group in only and device in suite.devices]
    cases: list[Case] = []
    if set(only) - {*FORWARD_ONLY, WITHOUT_TIME}:
        # Few CPUs multiply bfloat16 faster than float32; those that do not take very long.
        names = [name for name in CEILINGS if device == "cuda" or name != "matmul bfloat16"]
        cases += [Case("ceilings", name) for name in names]
    for name in dict.fromkeys(suite.case for suite in suites):
        planned = [(one, one.sizes(device, quick, sizes)) for one in suites if one.case == name]
        for n in sorted({n for _, its_sizes in planned for n in its_sizes}):
            for suite, its_sizes in planned:
                if n in its_sizes:
                    cases += suite.cases(device, quick, n)
    return cases
