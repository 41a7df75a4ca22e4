"""Every engine of every function that is measured: ours, and its peers.

An engine takes the inputs of a problem, in order. Peers have the options they have by default.
Most peers of sorting compute a matrix P, of which rows are places and columns elements; it is
applied to the values, its transpose to the places. Where an order is known, the loss of a matrix is
the cross-entropy of its rows, that of ranks their squared error.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import sparsewire as sw
from sparsewire import ops
from sparsewire_lab.bench import cases
from sparsewire_lab.bench.cases import OURS, Case
from sparsewire_lab.sorting import peers as sorters

Engine = Callable[..., Tensor]
Matrix = Callable[[Tensor], Tensor]
Sorts = dict[str, Callable[..., Tensor]]  # by case; that of `soft_topk_mask` takes k first

# Beside this every real logit is large, and float32 has room to add to it.
_HIDDEN = -1e9
_LEAST = 1e-20  # of a probability, where its logarithm is taken
OTT_STEPS = 100


def absent() -> list[str]:
    """Return the engines whose package is not installed."""
    modules = [(name, module) for name, (module, _) in cases.PACKAGES.items()]
    return [name for name, module in modules if importlib.util.find_spec(module) is None]


@functools.cache
def version_of(engine: str) -> str:
    """Return the package and version of an engine; nothing for an engine of this repository."""
    if engine not in cases.PACKAGES:
        return ""
    module = cases.PACKAGES[engine][0]
    names = importlib.metadata.packages_distributions().get(module, [module])
    return f"{names[0]} {importlib.metadata.version(names[0])}"


def engine_of(case: Case) -> Engine:
    """Return what computes a case; engines of ours are chosen around the call, by `sw.engine`."""
    if case.case in ("spread", cases.FEW):
        if case.engine in cases.OWN_ENGINES:
            exact = case.variant == cases.ALL_PAIRS
            return functools.partial(ops.spread, tolerance=0.0) if exact else ops.spread
        if case.engine in SPREAD:
            return SPREAD[case.engine]
    elif case.engine in (*cases.MATRICES, *cases.NETWORKS) and case.case in _BY_MATRIX:
        return functools.partial(_BY_MATRIX[case.case], _matrix_of(case.engine), case)
    elif (case.case, case.engine) == ("soft_topk_mask", cases.DIFFTOPK):
        matrix = _difftopk_of(cases.chosen_of(case))
        return lambda keys, _: matrix(keys).sum(-2)
    elif case.engine in (OURS, *cases.PEERS.get(case.case, ())):
        make = _OF_PACKAGES.get(case.engine)
        function = (make() if make else _SORTS[case.engine])[case.case]
        if case.case == "soft_topk_mask":
            return functools.partial(function, cases.chosen_of(case))
        return function
    raise ValueError(f"engine must be one that computes {case.case}; got {case.engine!r}")


def plain(
    means: Tensor, variances: Tensor, values: Tensor, indices: Tensor, excluded: Tensor
) -> Tensor:
    """Spread as one would write it first: the whole table, and a softmax over it."""
    steps = indices.to(means.dtype)[None, :, :] - means[:, None, :]
    logits = -0.5 * (steps**2 / variances[:, None, :]).sum(-1)
    table = logits.masked_fill(excluded, float("-inf")).softmax(-1)
    return values @ table


def keops(
    means: Tensor, variances: Tensor, values: Tensor, indices: Tensor, excluded: Tensor
) -> Tensor:
    """Spread with KeOps: a symbolic table, reduced twice without being stored."""
    symbol: Any = importlib.import_module("pykeops.torch").LazyTensor
    mean, precision = symbol(means[:, None, :]), symbol(variances.reciprocal()[:, None, :])
    point = symbol(indices.to(means.dtype)[None, :, :])
    hidden = symbol((excluded.to(means.dtype) * _HIDDEN)[None, :, None])
    logits = ((mean - point) ** 2 * precision).sum(-1) * -0.5 + hidden
    total = symbol(logits.logsumexp(dim=1)[:, None, :])
    shared = ((logits - total).exp() * symbol(values[:, None, None])).sum(dim=0)
    return shared.squeeze(-1).masked_fill(excluded, 0)


def dftopk(keys: Tensor, k: int, temperature: float = 1.0) -> Tensor:
    """DFTopK (Zhu et al., 2025): a sigmoid of distances from the middle of places k and k + 1.

    What it returns is from 0 to 1, but need not sum to k.
    """
    n = keys.shape[-1]
    if k == n:
        return torch.ones_like(keys) + 0 * keys
    ends = [keys.kthvalue(place, dim=-1, keepdim=True).values for place in (n - k, n - k + 1)]
    return ((keys - (ends[0] + ends[1]) / 2) / temperature).sigmoid()


# The default gradient of OTT solves a linear system, which often fails in float32.
def ott_calls(
    case: Case, keys: Tensor, weight: Tensor
) -> tuple[Callable[[], Tensor], Callable[[], list[Tensor]]]:
    """Return a call of OTT's function for a case, compiled by JAX, and one with its gradient."""
    # XLA gets as many threads as torch; it reads these variables only when it is loaded.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("PJRT_NPROC", str(torch.get_num_threads()))
    if torch.get_num_threads() == 1:
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    jax: Any = importlib.import_module("jax")
    start = importlib.import_module("ott.initializers.linear.initializers").DefaultInitializer()
    function = functools.partial(
        getattr(
            importlib.import_module("ott.tools.soft_sort"),
            {"soft_sort": "sort", "soft_rank": "ranks", "soft_topk_mask": "topk_mask"}[case.case],
        ),
        **({"k": cases.chosen_of(case)} if case.case == "soft_topk_mask" else {}),
        axis=-1,
        implicit_diff=None,
        min_iterations=OTT_STEPS,
        max_iterations=OTT_STEPS,
        initializer=start,
    )

    def with_gradient(x: Any, slope: Any) -> Any:
        result, pull = jax.vjp(function, x)
        return result, *pull(slope)

    inputs = [jax.numpy.asarray(t.detach().numpy()) for t in (keys, weight)]
    alone, together = jax.jit(function), jax.jit(with_gradient)

    def both() -> list[Tensor]:
        return [torch.from_dlpack(x) for x in jax.block_until_ready(together(*inputs))]

    return lambda: torch.from_dlpack(jax.block_until_ready(alone(inputs[0]))), both


def _places(keys: Tensor) -> Tensor:
    return torch.arange(keys.shape[-1], dtype=keys.dtype, device=keys.device)


def _loss_by_matrix(matrix: Matrix, _: Case, keys: Tensor, given: Tensor) -> Tensor:
    order = given.argsort(dim=-1, stable=True).unsqueeze(-1)
    return -matrix(keys).gather(-1, order).clamp_min(_LEAST).log().sum((-1, -2))


def _hard_ranks(keys: Tensor, _: Tensor) -> Tensor:
    index = keys.argsort(dim=-1)
    # Zeros that depend on the keys: there is a backward pass to time.
    return torch.empty_like(keys).scatter(-1, index, _places(keys).expand_as(keys)) + keys * 0


def _hard_payload(keys: Tensor, given: Tensor) -> Tensor:
    index = keys.argsort(dim=-1).unsqueeze(-1)
    flat = given.flatten(2)
    return flat.gather(1, index.expand_as(flat)).view_as(given) + keys.sum() * 0


def _hard_mask(k: int, keys: Tensor, _: Tensor) -> Tensor:
    return torch.zeros_like(keys).scatter(-1, keys.topk(k, dim=-1).indices, 1.0) + keys * 0


def _hard_permutation(keys: Tensor, _: Tensor) -> Tensor:
    index = keys.argsort(dim=-1).unsqueeze(-1)
    found = keys.new_zeros(*keys.shape, keys.shape[-1])
    return found.scatter(-1, index, 1.0) + keys.sum() * 0


def _list_mle(keys: Tensor, given: Tensor) -> Tensor:
    inorder = keys.gather(-1, given.argsort(dim=-1, stable=True))
    return (inorder.logcumsumexp(-1) - inorder).sum(-1)


def _our_loss(reach: int | None, keys: Tensor, given: Tensor) -> Tensor:
    return sw.order_loss(keys, given, reach=reach, reduction="none")


def _networks(module: str, name: str, network: str, *k: int) -> Callable[[Tensor], Tensor]:
    """Return a call of the sorting network of a package that is made once for each size."""
    make, made = getattr(importlib.import_module(module), name), {}

    def call(keys: Tensor) -> Tensor:
        kind = keys.shape[-1], str(keys.device)
        if kind not in made:
            made.clear()
            made[kind] = make(network, kind[0], *k, device=kind[1])
        return made[kind](keys)[1].mT

    return call


def _of_torchsort() -> Sorts:
    package = importlib.import_module("torchsort")

    def loss(keys: Tensor, given: Tensor) -> Tensor:
        # Its ranks begin with 1.
        right = given.argsort(dim=-1, stable=True).argsort(dim=-1) + 1
        return (package.soft_rank(keys) - right).square().sum(-1)

    return {
        "soft_sort": lambda keys, _: package.soft_sort(keys),
        "soft_rank": lambda keys, _: package.soft_rank(keys),
        "order_loss": loss,
    }


def _of_softtorch(fast: bool) -> Sorts:
    package = importlib.import_module("softtorch")
    method = {"method": "fast_soft_sort"} if fast else {}
    of_numbers: Sorts = {
        "soft_sort": lambda keys, _: (
            package.sort(keys, dim=-1, return_indices=False, **method).values
        ),
        "soft_rank": lambda keys, _: package.rank(keys, dim=-1, descending=False, **method),
    }
    if fast:
        return of_numbers
    return {
        **of_numbers,
        "soft_topk_mask": lambda k, keys, _: package.topk(keys, k, dim=-1).indices.sum(-2),
        "soft_permutation": lambda keys, _: package.argsort(keys, dim=-1),
        "sort_by": lambda keys, given: (package.argsort(keys, dim=-1) @ given.flatten(2)).view_as(
            given
        ),
    }


def _of_lapsum() -> Sorts:
    names = {"rank": "soft_rank", "sort": "soft_sort", "topk": "soft_topk"}
    rank, sort, topk = (
        getattr(importlib.import_module(f"lapsum.{part}"), name) for part, name in names.items()
    )
    width = torch.tensor(1.0)  # where it is a number, backward passes fail

    return {
        "soft_sort": lambda keys, _: sort(keys, 1.0),
        "soft_rank": lambda keys, _: rank(keys, width),
        "soft_topk_mask": lambda k, keys, _: topk(keys, keys.new_full((len(keys), 1), k), width),
    }


@functools.cache
def _difftopk_of(k: int) -> Matrix:
    return _networks("difftopk", "DiffTopkNet", "odd_even", k)


def _matrix_of(engine: str) -> Matrix:
    return MATRIX_OF[engine] if engine in MATRIX_OF else _diffsort_of(cases.NETWORKS[engine])


@functools.cache
def _diffsort_of(network: str) -> Matrix:
    return _networks("diffsort", "DiffSortNet", network)


SPREAD: dict[str, Engine] = {"plain": plain, cases.KEOPS: keops}
MATRIX_OF: dict[str, Matrix] = {
    "softsort": sorters.soft_sort_matrix,
    "neuralsort": sorters.neural_sort,
}
_BY_MATRIX: dict[str, Callable[[Matrix, Case, Tensor, Tensor], Tensor]] = {
    "soft_sort": lambda matrix, _, keys, __: (matrix(keys) @ keys.unsqueeze(-1)).squeeze(-1),
    "soft_rank": lambda matrix, _, keys, __: _places(keys) @ matrix(keys),
    "sort_by": lambda matrix, _, keys, given: (matrix(keys) @ given.flatten(2)).view_as(given),
    "soft_topk_mask": lambda matrix, case, keys, _: matrix(keys)[
        ..., -cases.chosen_of(case) :, :
    ].sum(-2),
    "soft_permutation": lambda matrix, _, keys, __: matrix(keys),
    "order_loss": _loss_by_matrix,
}
_SORTS: dict[str, Sorts] = {
    OURS: {
        "soft_sort": lambda keys, _: sw.soft_sort(keys),
        "soft_rank": lambda keys, _: sw.soft_rank(keys),
        "sort_by": lambda keys, given: sw.sort_by(keys, given),
        "soft_topk_mask": lambda k, keys, _: sw.soft_topk_mask(keys, k),
        "soft_permutation": lambda keys, _: sw.soft_permutation(keys),
        "order_loss": functools.partial(_our_loss, None),
    },
    cases.NEIGHBOURS: {"order_loss": functools.partial(_our_loss, 1)},
    cases.HARD: {
        "soft_sort": lambda keys, _: keys.sort(dim=-1).values,
        "soft_rank": _hard_ranks,
        "sort_by": _hard_payload,
        "soft_topk_mask": _hard_mask,
        "soft_permutation": _hard_permutation,
    },
    cases.LIST_MLE: {"order_loss": _list_mle},
    cases.DFTOPK: {"soft_topk_mask": lambda k, keys, _: dftopk(keys, k)},
}
# Imported when asked for.
_OF_PACKAGES: dict[str, Callable[[], Sorts]] = {
    cases.TORCHSORT: _of_torchsort,
    cases.SOFTTORCH: functools.partial(_of_softtorch, False),
    cases.SOFTTORCH_FAST: functools.partial(_of_softtorch, True),
    cases.LAPSUM: _of_lapsum,
}
