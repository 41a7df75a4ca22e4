"""Calls of every public function of `sparsewire.sorting` that has engines, over all its arguments.

`AXES` has one axis for every argument of a function and one for its size; tests run pairwise
combinations of them by every engine. An argument without an axis fails a test.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from tests.helpers import assert_same, output_and_gradients, pairwise, seeded
from torch import Tensor

import sparsewire as sw
from sparsewire import sorting

# What has no engines: one implementation of its own, or no computation.
WITHOUT_ENGINES = {
    "DISTRIBUTIONS",
    "Distribution",
    "SoftTopK",
    "Steps",
    "enumerated_half",
    "exact_half",
    "half_rows",
    "log_odds",
    "log_symmetric",
    # Losses of soft ranks are compared in test_losses.py.
    "NDCGLoss",
    "OrderLoss",
    "SpearmanLoss",
    "TopKCrossEntropy",
    "TrimmedLoss",
    "ndcg_loss",
    "spearman_loss",
    "topk_cross_entropy",
    "trimmed_loss",
    "sampled_half",
}
KEYS = {
    "random": lambda x: x,
    "tied": lambda x: x.mul(1.5).round(),
    "far": lambda x: 100 * x,
    "infinite": lambda x: torch.where(x.abs() > 1, x.sign() * math.inf, x),
}
SOFT: dict[str, Any] = {
    "temperature": (None, 0.0, 0.5, "rows"),
    "tails": ("light", "heavy"),
    "mask": (None, "some", "one row"),
    "hard": (False, True),
    "n": (1, 2, 3, 5, 8, 19),
}
ALONG: dict[str, Any] = {"x": tuple(KEYS), "dim": (-1, 0), **SOFT}
WEIGHTED: dict[str, Any] = {"weights": (None, "fixed", "learned"), **ALONG}
FINITE = ("random", "tied", "far")
AXES: dict[str, dict[str, Any]] = {
    "half": {"odds": FINITE, "lower": ("none", "one", "half", "all"), "n": (1, 2, 5, 8, 13)},
    "order_loss": {
        "keys": FINITE,
        "target": ("order", "tied", "equal"),
        "temperature": (1.0, 0.3),
        "bend": (math.inf, 0.5),
        "reach": (None, 1, 3, 100),
        "ties": (True, False),
        "mask": ("none", "some", "rows"),
        "weights": (None, (0.5, 2.0)),
        "reduction": ("none", "mean", "sum"),
        "n": (1, 2, 3, 7, 13),
    },
    "QuickSort": {
        "method": ("exact", "sampled"),
        "samples": (None, 3),
        "temperature": (0.5, 2.0),
        "distribution": sorting.DISTRIBUTIONS,
        "keys": ("random", "tied"),
        "payload": ((), (3,), (2, 2)),
        "target": (True, False),
        "generator": (1, 2),
        "n": (1, 2, 3, 6),
    },
    "soft_sort": {"descending": (False, True), **ALONG},
    "soft_rank": {"descending": (False, True), **WEIGHTED},
    "soft_permutation": {"descending": (False, True), **ALONG},
    "sort_by": {
        "keys": tuple(KEYS),
        "payload": ((), (1,), (3,), (2, 2)),
        "dim": (-1, 0),
        "descending": (False, True),
        **SOFT,
    },
    "soft_topk": {"k": ("one", "half"), "largest": (False, True), **ALONG},
    "soft_topk_mask": {
        "k": ("one", "half", "all", 1.3, "rows"),
        "largest": (False, True),
        **ALONG,
    },
    "soft_quantile": {
        **WEIGHTED,
        "q": (0.3, (0.0, 0.77, 1.0), "tensor"),
        "keepdim": (False, True),
    },
    "soft_median": {**WEIGHTED, "keepdim": (False, True)},
}
ROWS = [(name, row) for name, axes in AXES.items() for row in pairwise(**axes)]
BATCH = 2


def arguments_of(name: str) -> set[str]:
    """The names of all arguments of a public function, or of a layer and its steps."""
    public = getattr(sorting, name)
    functions = [public.__init__, public.steps] if isinstance(public, type) else [public]
    names = [name for f in functions for name in inspect.signature(f).parameters]
    return set(names) - {"self"}


def numbers(kind: str, *shape: int) -> Tensor:
    return KEYS[kind](torch.randn(shape, generator=seeded(shape[-1] + len(shape))))


def call_of(name: str, row: dict[str, Any]) -> tuple[Callable[..., Tensor], dict[str, Tensor]]:
    """Return a function of named tensors in float32, and these tensors."""
    options, n = dict(row), row["n"]
    del options["n"]
    counts = {"none": 0, "one": 1, "half": (n + 1) // 2, "all": n}
    if name == "half":
        lower = counts[options["lower"]]
        return lambda odds: sorting.half(odds, lower), {"odds": numbers(row["odds"], BATCH, n)}
    if name == "order_loss":
        keys = {"keys": numbers(options.pop("keys"), BATCH, n)}
        values = {"order": 1000, "tied": 3, "equal": 1}[options.pop("target")]
        target = torch.randint(values, (BATCH, n), generator=seeded(n))
        weights = options.pop("weights")
        if weights is not None:
            options["weights"] = torch.tensor(weights)
        random = torch.rand(BATCH, n, generator=seeded(n)) < 0.6
        rows = torch.arange(BATCH).unsqueeze(-1) > 0
        options["mask"] = {"none": None, "some": random, "rows": rows}[options["mask"]]

        def losses(keys: Tensor) -> Tensor:
            given: dict[str, Any] = {
                k: v.to(keys.device) if isinstance(v, Tensor) else v for k, v in options.items()
            }
            return sorting.order_loss(keys, target.to(keys.device), **given)

        return losses, keys
    if name == "QuickSort":
        return _quicksort(options, n)
    along = options.get("dim", -1)
    tensors: dict[str, Tensor] = {}
    if name == "sort_by":
        payload = numbers("random", BATCH, n, *options.pop("payload"))
        tensors["payload"] = payload if along else payload.movedim(1, 0)
    first = "keys" if name == "sort_by" else "x"
    tensors[first] = numbers(options.pop(first), BATCH, n).movedim(-1, along)
    if row["temperature"] == "rows":
        del options["temperature"]
        tensors["temperature"] = torch.linspace(0.3, 2, BATCH)
    given = torch.rand(BATCH, n, generator=seeded(n)).movedim(-1, along)
    fixed: dict[str, Tensor] = {}
    if row["mask"]:
        kept = (given > 0.3).movedim(along, -1)
        kept[0] &= row["mask"] == "some"
        fixed["mask"] = kept.movedim(-1, along)
        del options["mask"]
    if options.pop("weights", None):
        (fixed if row["weights"] == "fixed" else tensors)["weights"] = 2 * given
    if options.get("q") == "tensor":
        fixed["q"] = torch.tensor([0.5, 0.1])
        del options["q"]
    if "k" in options:
        options["k"] = counts.get(options["k"], options["k"])
        if row["k"] == "rows":
            fixed["k"] = torch.tensor([0.0, n / 2])
            del options["k"]
        elif isinstance(row["k"], float):
            options["k"] = min(n, row["k"])

    def function(**inputs: Tensor) -> Tensor:
        some = next(iter(inputs.values()))
        more = {key: t.to(some.device) for key, t in fixed.items()}
        result = getattr(sorting, name)(**inputs, **more, **options)
        return result.values if name == "soft_topk" else result

    return function, tensors


def _quicksort(options: dict[str, Any], n: int) -> tuple[Callable[..., Tensor], dict[str, Tensor]]:
    shape, seed = (BATCH, n, *options.pop("payload")), options.pop("generator")
    tensors = {"keys": numbers(options.pop("keys"), BATCH, n), "payload": numbers("random", *shape)}
    if options.pop("target"):
        tensors["target"] = torch.randn(shape, generator=seeded(n))
    layer = sorting.QuickSort(**options)

    def function(**inputs: Tensor) -> Tensor:
        generator = torch.Generator(inputs["keys"].device).manual_seed(seed)
        steps = layer.steps(**inputs, generator=generator)
        return torch.stack([*steps.values, *steps.targets])

    return function, tensors


def assert_as_reference(name: str, row: dict[str, Any], *engines: Any, device: str = "cpu") -> None:
    """Compare values and gradients of engines, in float32, with the reference's in float64."""
    function, tensors = call_of(name, row)

    def on_device(**inputs: Tensor) -> Tensor:
        result = function(**{name: t.to(device) for name, t in inputs.items()}).cpu()
        # Some results do not depend on all tensors; then the gradient is zero.
        return result + sum(t.nan_to_num(posinf=0, neginf=0).sum() * 0 for t in inputs.values())

    with sw.engine("reference"):
        want = output_and_gradients(on_device, {name: t.double() for name, t in tensors.items()})
    slopes = [want[f"gradient of {name}"].nan_to_num(posinf=0, neginf=0) for name in tensors]
    steepest = max(1.0, *(float(slope.abs().amax()) for slope in slopes))
    for engine in engines:
        with sw.engine(engine):
            got = output_and_gradients(on_device, tensors)
        got = {name: tensor.double() for name, tensor in got.items()}
        assert_same(got, want, rtol=1e-4, atol=1e-4 * steepest, equal_nan=True)
