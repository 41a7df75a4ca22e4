"""What is measured of soft sorts: the cases, the engines of each, and what they would need."""

import math
from collections.abc import Collection, Iterator, Sequence

from sparsewire_lab.bench.case import OURS, Case

SORTING = ("soft_rank", "soft_sort", "sort_by", "order_loss")

# A sort of torch, which has no doubt and nearly no gradient: what sorting costs at all.
HARD = "torch.sort"
# Those that make a matrix, in `sparsewire_lab.sorting.peers`.
MATRICES = ("softsort", "neuralsort", "sinkhorn", "odd-even", "bitonic")
# A sorting network for numbers alone, which needs no matrix for it.
VALUES = "bitonic values"
# Ours by comparisons of neighbours alone, `order_loss` with a reach of one.
NEIGHBOURS = "neighbours"
# A likelihood of an order that is computed from the largest to the smallest.
LIST_MLE = "listmle"
TORCHSORT, OTT = "torchsort", "ott"
NETWORKS = {"diffsort odd-even": "odd_even", "diffsort bitonic": "bitonic"}
# What has to be installed for an engine: how it is imported, and how it is called otherwise.
PACKAGES = {
    TORCHSORT: ("torchsort", "torchsort"),
    **dict.fromkeys(NETWORKS, ("diffsort", "diffsort")),
    OTT: ("ott", "ott-jax"),
}
ENGINES = {
    "soft_rank": (OURS, HARD, *MATRICES, *PACKAGES),
    "soft_sort": (OURS, HARD, *MATRICES, VALUES, *PACKAGES),
    "sort_by": (OURS, HARD, *MATRICES, *NETWORKS),
    "order_loss": (OURS, NEIGHBOURS, LIST_MLE, *MATRICES, TORCHSORT, *NETWORKS),
}

BATCH = 64
SIZES, QUICK_SIZES = (16, 64, 256, 1024, 4096), (16, 64)
# What belongs to a key, in `sort_by`: the images of three digits, or a few numbers.
PAYLOADS = {"16": (16,), "3×784": (3, 784)}
PAYLOAD_OF = {"cpu": "16", "cuda": "3×784"}
PAYLOAD_SIZES = {"cpu": SIZES, "cuda": (16, 64, 1024)}

# Tables of (n, n) in float32 that are held at the peak, by measurement: for each instance, and for
# each layer of a network.
_TABLES = {"softsort": 12, "neuralsort": 12, "sinkhorn": 50, OTT: 40}
_LAYER_TABLES = {"odd-even": 3, "bitonic": 4, "diffsort odd-even": 4, "diffsort bitonic": 5}
# Of ours, only the likelihood of many in a graph keeps such tables.
_LOSS_TABLES = 14


def sorting_plan(device: str, quick: bool, sizes: Sequence[int] = ()) -> Iterator[Case]:
    """Yield the cases of a run, ours first at each size.

    Args:
        device: `"cpu"` or `"cuda"`.
        quick: Whether it must end soon.
        sizes: Sizes n instead of the usual ones.
    """
    for case in SORTING:
        usual = PAYLOAD_SIZES[device] if case == "sort_by" else SIZES
        for n in sizes or (QUICK_SIZES if quick else usual):
            variant = PAYLOAD_OF[device] if case == "sort_by" else ""
            for mode in ("eager", "captured") if device == "cuda" else ("eager",):
                for engine in ENGINES[case]:
                    if _is_planned(engine, mode, device, quick):
                        yield Case(case, engine, n, variant, mode, BATCH)


def reason_not_to_sort(case: Case, absent: Collection[str]) -> str | None:
    """Say why an engine cannot do a case, or None if it can.

    Args:
        case: One of `SORTING`.
        absent: Engines that are not installed.
    """
    if case.engine in absent:
        module, package = PACKAGES[case.engine]
        return f"{module} is not installed: pip install {package}"
    if case.engine in ("bitonic", VALUES) and case.n & (case.n - 1):
        return "this network needs a power of two"
    return None


def sorting_table_bytes(case: Case) -> int:
    """Bytes of the tables of an engine, about; 0 for those that keep none."""
    tables = _TABLES.get(case.engine, 0)
    if (case.case, case.engine, case.mode) == ("order_loss", OURS, "captured"):
        tables = _LOSS_TABLES
    if case.engine in _LAYER_TABLES:
        tables = _LAYER_TABLES[case.engine] * _layers(case)
    return tables * case.batch * case.n**2 * 4


def payload_of(case: Case) -> tuple[int, ...]:
    """Return the shape of what belongs to a key."""
    return PAYLOADS[case.variant] if case.case == "sort_by" else ()


def _layers(case: Case) -> int:
    steps = math.ceil(math.log2(max(case.n, 2)))
    return case.n if case.engine.endswith("odd-even") else steps * (steps + 1) // 2


def _is_planned(engine: str, mode: str, device: str, quick: bool) -> bool:
    """Whether an engine has a place in a run: packages launch what they will, JAX compiles."""
    if engine == OTT:
        return device == "cpu" and not quick
    return mode == "eager" or engine not in PACKAGES
