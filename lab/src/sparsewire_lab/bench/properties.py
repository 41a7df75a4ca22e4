"""What a soft sort can do: each property is tried, on ours and on every peer alike.

A property returns True or False, or None where it does not apply: nothing returns a permutation, or
gradients are not torch's.
"""

import functools
import importlib
import importlib.metadata
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import sparsewire as sw
from sparsewire_lab.bench import cases, peers
from sparsewire_lab.bench.cases import OTT, OURS, Case
from sparsewire_lab.sorting import peers as sorters

Function = Callable[[Tensor], Tensor]

ANSWERS = {True: "yes", False: "no", None: "–"}
_CLOSE, _TINY = 1e-6, 1e-9
# Their tables are in single precision, or all numbers are by default.
_SINGLE = (cases.DIFFTOPK, OTT)
# A function of each engine as its users find it, for its arguments.
_PUBLIC: dict[str, Callable[..., Any] | tuple[str, str]] = {
    cases.HARD: torch.argsort,
    "softsort": sorters.soft_sort_matrix,
    "neuralsort": sorters.neural_sort,
    cases.DFTOPK: peers.dftopk,
    cases.TORCHSORT: ("torchsort", "soft_rank"),
    cases.LAPSUM: ("lapsum.topk", "soft_topk"),
    cases.DIFFTOPK: ("difftopk", "DiffTopkNet"),
    OTT: ("ott.tools.soft_sort", "ranks"),
    **dict.fromkeys((cases.SOFTTORCH, cases.SOFTTORCH_FAST), ("softtorch", "rank")),
    **dict.fromkeys(cases.NETWORKS, ("diffsort", "DiffSortNet")),
}


def check(engine: str) -> dict[str, bool | None]:
    """Try every property of an engine; a call that fails does not have it."""
    found: dict[str, bool | None] = {}
    for name, holds in PROPERTIES.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[name] = holds(engine)
        except Exception:
            found[name] = False
    return found


def continuous(engine: str) -> bool | None:
    """Nothing jumps where a key passes another one by 10⁻⁹: all changes are below 10⁻⁶.

    Engines in single precision are given 10⁻⁶ and 10⁻³.
    """
    keys, rough = _keys(8), 1000 if engine in _SINGLE else 1
    near = keys.clone()
    keys[0], near[0] = keys[1] - rough * _TINY, keys[1] + rough * _TINY
    found = [f(near) - f(keys) for f in _functions(engine, 8)]
    return all(bool((change.abs() < rough * _CLOSE).all()) for change in found)


def doubly_stochastic(engine: str) -> bool | None:
    """The rows and the columns of its permutation sum to one, and nothing is negative."""
    if (permutation := _function("soft_permutation", engine, 8)) is None:
        return None
    found = permutation(_keys(8))
    sums = torch.cat([found.sum(-1), found.sum(-2)])
    return bool((found >= 0).all() and ((sums - 1).abs() < _CLOSE).all())


def in_order(engine: str) -> bool | None:
    """What it sorts is never out of order, for 100 sets of 64 keys."""
    if (sort := _function("soft_sort", engine, 64)) is None:
        return None
    found = sort(_keys(100, 64))
    return bool((found.diff() >= -_TINY).all())


def ties(engine: str) -> bool | None:
    """Equal keys have equal ranks, or shares of the mask."""
    keys = torch.tensor([[5.0, 1.0, 5.0, 7.0, 5.0, 2.0, 8.0, 9.0]], dtype=torch.float64)
    rank = _function("soft_rank", engine, 8) or _function("soft_topk_mask", engine, 8)
    if rank is None:
        return None
    found = rank(keys)[0, [0, 2, 4]]
    return bool(found.max() - found.min() < _CLOSE)


def mask(engine: str) -> bool | None:
    """It takes padding, which changes neither results nor gradients."""
    if engine != OURS:
        public = _PUBLIC[engine]
        if isinstance(public, tuple):
            public = getattr(importlib.import_module(public[0]), public[1])
        return "mask" in inspect.signature(public).parameters  # no peer has one to be tried
    keys = _keys(8)
    padded = torch.cat([keys, torch.full((3,), torch.nan, dtype=keys.dtype)])
    valid = torch.arange(11) < 8
    for function in (sw.soft_rank, sw.soft_sort, functools.partial(sw.soft_topk_mask, k=3)):
        want = _with_gradient(function, keys)
        got = _with_gradient(functools.partial(function, mask=valid), padded)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, torch.cat([b, torch.zeros_like(b[:3])]))
    return True


def any_n(engine: str) -> bool | None:
    """It sorts 1, 2, 7, 33 and 100 keys."""
    for n in (1, 2, 7, 33, 100):
        if not all(bool(f(_keys(2, n)).isfinite().all()) for f in _functions(engine, n)):
            return False
    return True


def float16(engine: str) -> bool | None:
    """Half precision is kept, and results and gradients of 1,024 keys are finite.

    Networks, which would store 1,024 matrices of them, have 64.
    """
    if engine == OTT:
        return None
    n = 64 if engine in (*cases.NETWORKS, cases.DIFFTOPK) else 1024
    for function in _functions(engine, n):
        out, gradient = _with_gradient(function, _keys(1, n).half())
        if out.dtype != torch.float16 or not (out.isfinite().all() and gradient.isfinite().all()):
            return False
    return True


def float64(engine: str) -> bool | None:
    """It computes in double precision: gradients agree with differences of results."""
    if engine == OTT:
        return None
    keys = _keys(2, 8).requires_grad_()
    return all(torch.autograd.gradcheck(f, keys) for f in _functions(engine, 8, fixed=True))


def compiles(engine: str) -> bool | None:
    """`torch.compile(fullgraph=True)` returns the same results and gradients."""
    if engine == OTT:
        return None
    for function in _functions(engine, 8):
        torch.compiler.reset()
        want = _with_gradient(function, _keys(2, 8))
        got = _with_gradient(
            torch.compile(function, fullgraph=True, backend="aot_eager"), _keys(2, 8)
        )
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)
    return True


def double_backward(engine: str) -> bool | None:
    """Second derivatives agree with differences of gradients."""
    if engine == OTT:
        return None
    keys = _keys(2, 8).requires_grad_()
    return all(torch.autograd.gradgradcheck(f, keys) for f in _functions(engine, 8, fixed=True))


def no_compiler(engine: str) -> bool | None:
    """Its package was installed without compiling: from a wheel that the index has."""
    package = "sparsewire" if engine == OURS else peers.version_of(engine).partition(" ")[0]
    if not package:
        return None
    wheel = importlib.metadata.distribution(package).read_text("WHEEL") or ""
    tags = [line.partition(":")[2] for line in wheel.splitlines() if line.startswith("Tag")]
    # What an index offers is for any platform, or names the oldest that it runs on.
    return all(tag.endswith("-any") or "manylinux" in tag or "musllinux" in tag for tag in tags)


PROPERTIES: dict[str, Callable[[str], bool | None]] = {
    "continuous": continuous,
    "doubly stochastic": doubly_stochastic,
    "in order": in_order,
    "ties have equal ranks": ties,
    "mask for padding": mask,
    "any n": any_n,
    "float16": float16,
    "float64": float64,
    "torch.compile": compiles,
    "double backward": double_backward,
    "no compiler at install": no_compiler,
}


EXPLAINED = {name: (holds.__doc__ or "").splitlines()[0] for name, holds in PROPERTIES.items()}


def _functions(engine: str, n: int, fixed: bool = False) -> list[Function]:
    """Return what an engine has of ranks, values in order, and the mask of the largest.

    By default our temperature follows the scale of the keys and is a constant for the gradient:
    `fixed` gives it, for comparisons with differences.
    """
    names = ("soft_rank", "soft_sort", "soft_topk_mask")
    found = (_function(name, engine, n, fixed) for name in names)
    return [function for function in found if function is not None]


def _function(name: str, engine: str, n: int, fixed: bool = False) -> Function | None:
    if engine not in (OURS, *cases.PEERS[name]):
        return None
    if fixed and engine == OURS:
        given = {"k": 3} if name == "soft_topk_mask" else {}
        return functools.partial(getattr(sw, name), temperature=1.0, **given)
    case = Case(name, engine, n)
    if engine == OTT:
        return lambda keys: peers.ott_calls(case, keys.float(), torch.ones_like(keys))[0]()
    compute = peers.engine_of(case)
    single = engine in _SINGLE and not fixed

    def call(keys: Tensor) -> Tensor:
        # Some peers take a batch of rows and nothing else.
        rows = keys if keys.dim() > 1 else keys.unsqueeze(0)
        if single and keys.dtype == torch.float64:
            rows = rows.float()
        found = compute(rows, rows)
        return found if keys.dim() > 1 else found.squeeze(0)

    return call


def _keys(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def _with_gradient(function: Function, keys: Tensor) -> tuple[Tensor, Tensor]:
    keys = keys.clone().requires_grad_()
    out = function(keys)
    slope = torch.arange(out.numel()).cos().reshape(out.shape)
    if not out.requires_grad:
        return out, torch.zeros_like(keys)
    return out.detach(), torch.autograd.grad(out, keys, slope.to(out))[0]
