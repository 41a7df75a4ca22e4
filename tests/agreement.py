"""Every engine of a function of `sparsewire.ops` against its specification, for all arguments.

The axes of a case have the names of the arguments of its function. An argument without an axis
fails a test, so that none can be ignored by one engine.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from tests.helpers import pairwise, random_indices, seeded
from torch import Tensor

import sparsewire as sw
from sparsewire import ops
from sparsewire.ops.bound import working_dtype
from sparsewire.ops.fused_gather import Addresses, fused_gather, gather_reference

FLOAT, DOUBLE, HALF = torch.float32, torch.float64, torch.bfloat16

Row = Mapping[str, Any]


class Case(NamedTuple):
    """A function, values for its arguments, and how calls are made of these and specified."""

    function: Callable[..., Tensor]
    axes: Mapping[str, Sequence[Any]]
    make: Callable[[Row], dict[str, Any]]
    specification: Callable[..., Tensor]
    extra: tuple[str, ...] = ()  # axes that are no arguments

    def rows(self, **fewer: Sequence[Any]) -> list[dict[str, Any]]:
        """Pairwise combinations, and again in float64 alone, in which more is compared.

        With whose gradients are wanted, and whether tensors have gaps in memory.
        """
        floating = [name for name, values in self.axes.items() if DOUBLE in values]
        more = {"wanted": ["all", *floating], "strided": [False, True]}
        axes = {**self.axes, **more, **fewer}
        exact = {n: [DOUBLE] if DOUBLE in values else values for n, values in axes.items()}
        return pairwise(**axes) + (pairwise(**exact) if exact != axes else [])


def parameters(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(inspect.unwrap(function)).parameters)


def floats(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, dtype=DOUBLE, generator=seeded(seed)).to(dtype)


def spread_call(row: Row) -> dict[str, Any]:
    prefix, k, m, r = row["indices"]
    indices = random_indices(prefix, m, (9,) * r)
    repeats = ops.mark_repeats(indices, (9,) * r)
    first = torch.zeros_like(repeats)
    first.view(math.prod(prefix), m)[:1] = True
    excluded = {
        None: None,
        "repeats": repeats,
        "first context": first,
        "all but one": torch.arange(m).expand_as(repeats) != m - 1,
        "all": torch.ones_like(repeats),
    }
    means = torch.rand(*prefix, k, r, dtype=DOUBLE, generator=seeded(1)) * 8
    variances = torch.rand(*prefix, k, r, dtype=DOUBLE, generator=seeded(2)) + 0.5
    return {
        "means": means.to(row["means"]),
        "variances": (variances * row["variances"]).to(row["means"]),
        "values": floats(*prefix, k, seed=3, dtype=row["values"]),
        "indices": indices,
        "excluded": excluded[row["excluded"]],
        **{name: row[name] for name in ("density", "degrees", "tolerance")},
    }


def contract_call(row: Row) -> dict[str, Any]:
    (w, b), outs, ins = row["around"], row["out_shape"], (6, 2)
    features = (3, 1)[: row["features"]]
    return {
        "indices": random_indices(w, row["indices"], (*outs, *ins)),
        "values": floats(*w, row["indices"], seed=1, dtype=row["values"]),
        "x": floats(*w, *b, *ins, *features, seed=2, dtype=row["x"]),
        "out_shape": outs,
        "features": row["features"],
    }


def contract_flat_call(row: Row) -> dict[str, Any]:
    call = contract_call({**row, "out_shape": (row["out_size"],), "indices": row["rows"]})
    indices, x = call["indices"], call["x"]
    first = x.dim() - row["features"] - 2
    return {
        **{name: call[name] for name in ("values", "features")},
        "rows": indices[..., 0],
        "cols": indices[..., 1] if row["cols"] == "some" else indices[..., 1] * 0,
        "x": x.flatten(first, first + 1),
        "out_size": row["out_size"],
    }


def flat_by_contract(
    rows: Tensor, cols: Tensor, values: Tensor, x: Tensor, out_size: int, features: int
) -> Tensor:
    indices = torch.stack([rows, cols], -1)
    return ops.contract_reference(indices, values, x, (out_size,), features)


def mark_call(row: Row) -> dict[str, Any]:
    """Tuples at the ends and in the middle of axes, whose numbers may differ in one bit only."""
    prefix, m = row["indices"]
    indices = random_indices(prefix, m, [min(n, 6) for n in row["shape"]])
    for column, n in zip(indices.unbind(-1), row["shape"], strict=True):
        if n > 6:
            column.copy_(torch.tensor([0, 1, n // 2, n // 2 + 1, n - 2, n - 1])[column])
    return {"indices": indices, "shape": row["shape"]}


def marked_by_pairs(indices: Tensor, shape: Sequence[int]) -> Tensor:
    equal = (indices.unsqueeze(-2) == indices.unsqueeze(-3)).all(-1)
    return equal.tril(-1).any(-1)


def sample_call(row: Row) -> dict[str, Any]:
    *prefix, k = row["prefix"]
    means = torch.rand(*prefix, k, len(row["shape"]), dtype=DOUBLE, generator=seeded(1))
    means = means * (torch.tensor(row["shape"]) - 1)
    region = [min(row["region"], size) for size in row["shape"]]
    return {"means": means.to(row["means"]), "region": region} | {
        name: row[name] for name in ("shape", "local_samples", "global_samples", "generator")
    }


def sample_facts(
    means: Tensor, shape: Sequence[int], region: Sequence[int], **given: Any
) -> Tensor:
    """What every engine samples alike: the nearest tuples; for the others, whether they are inside.

    Twice from one state of the generator, all tuples must be the same.
    """
    state = torch.get_rng_state() if (generator := given["generator"]) is None else generator
    state = state if generator is None else generator.get_state()
    first = ops.sample(means, shape, region, **given)
    (torch.set_rng_state if generator is None else generator.set_state)(state)
    if generator is not None or means.device.type == "cpu":
        assert torch.equal(first, ops.sample(means, shape, region, **given))
    corners, around = 2 ** len(shape), given["local_samples"]
    nearest, near, far = first.unflatten(-2, (means.shape[-2], -1)).tensor_split(
        (corners, corners + around), -2
    )
    start = ops.window(means, shape, region)[..., :1, :]
    inside = (near >= start) & (near < start + torch.tensor(region, device=means.device))
    anywhere = (far >= 0) & (far < torch.tensor(shape, device=means.device))
    return torch.cat([nearest, inside.long(), anywhere.long()], -2)


def facts_by_definition(
    means: Tensor, shape: Sequence[int], region: Sequence[int], **given: Any
) -> Tensor:
    nearest = ops.nearest(means, shape)
    rest = given["local_samples"] + given["global_samples"]
    return torch.cat(
        [nearest, torch.ones_like(nearest[..., :1, :]).repeat_interleave(rest, -2)], -2
    )


def gather_call(row: Row) -> dict[str, Any]:
    sizes, (w, c) = row["addresses"], row["contexts"]
    r, n = len(sizes), int(torch.tensor(sizes).prod())
    means = torch.rand(w, c, r, dtype=DOUBLE, generator=seeded(1)) * 1.4 - 0.2
    means = means * torch.tensor(sizes)  # inside the bounds and beyond
    variances = torch.rand(w, c, r, dtype=DOUBLE, generator=seeded(2)) + 0.2
    strides = tuple(int(torch.tensor(sizes[:axis]).prod()) for axis in range(r))
    return {
        "means": means.to(row["means"]),
        "variances": (variances * row["variances"]).to(row["means"]),
        "values": floats(w, c, seed=3, dtype=row["values"]),
        "x": floats(w, 3 * n, seed=4, dtype=row["x"]),
        "addresses": Addresses(sizes, strides, torch.arange(c) % 3 * n),
        "region": [min(row["region"], size) for size in sizes],
    } | {
        name: row[name]
        for name in ("local_samples", "global_samples", "density", "degrees", "generator")
    }


def gather_by_stages(
    means: Tensor,
    variances: Tensor,
    values: Tensor,
    x: Tensor,
    addresses: Addresses,
    region: Sequence[int],
    local_samples: int,
    global_samples: int,
    density: Any,
    degrees: float,
    generator: Any,
) -> Tensor:
    """The specification, for the tuples that this engine samples."""
    # Sampled in the dtype in which all is computed.
    means = means.to(working_dtype(torch.promote_types(means.dtype, values.dtype)))
    counts = local_samples, global_samples
    indices = ops.sample(means.unsqueeze(-2), addresses.sizes, region, *counts, generator)
    tuples = means, variances, values, x
    return gather_reference(*tuples, indices, addresses, density, degrees)


# Dimensions of the wirings, and of the batch.
_AROUND = [((), ()), ((), (4,)), ((2, 2), (3,)), ((), (65,)), ((2,), (0,)), ((0,), (2,))]

CASES = {
    "spread": Case(
        ops.spread,
        {
            "indices": [  # contexts, continuous tuples, integer tuples, rank
                ((), 5, 9, 2),
                ((2,), 3, 40, 2),
                ((2, 2), 1, 7, 3),
                ((), 63, 140, 1),
                ((3, 1), 17, 67, 5),
                ((2,), 3, 17, 6),
                ((), 1, 1, 1),
                ((2, 0), 3, 7, 2),
                ((2,), 0, 5, 2),
                ((2,), 3, 0, 2),
            ],
            "means": [FLOAT, DOUBLE, HALF],
            "variances": [1.0, 0.1, 30.0],
            "values": [FLOAT, HALF, DOUBLE],
            "excluded": ["repeats", None, "first context", "all but one", "all"],
            "density": ["gaussian", "student"],
            "degrees": [1.0, 0.3, 7.0],
            "tolerance": [1e-7, 0.0, 1.0],
        },
        spread_call,
        ops.spread_reference,
    ),
    "contract": Case(
        ops.contract,
        {
            "around": _AROUND,
            "indices": [11, 1100, 0],
            "values": [FLOAT, DOUBLE],
            "x": [FLOAT, DOUBLE, HALF],
            "out_shape": [(5,), (3, 4), ()],
            "features": [0, 1, 2],
        },
        contract_call,
        ops.contract_reference,
        ("around",),
    ),
    "contract_flat": Case(
        ops.contract_flat,
        {
            "around": _AROUND,
            "rows": [11, 1100, 0],
            "cols": ["some", "one"],
            "values": [FLOAT, DOUBLE],
            "x": [FLOAT, DOUBLE, HALF],
            "out_size": [5, 1],
            "features": [0, 1, 2],
        },
        contract_flat_call,
        flat_by_contract,
        ("around",),
    ),
    "mark_repeats": Case(
        ops.mark_repeats,
        {
            "indices": [((), 9), ((2,), 40), ((2, 2), 7), ((0,), 3), ((3,), 0), ((2,), 600)],
            "shape": [
                (9,),
                (3, 4),
                (4, 1, 3, 2, 4, 3),
                (2**31 - 1,),
                (2**33, 2),
                (2**20, 2**20),
                (2**54, 2**8),
                (2**63 - 1,),
                (),
            ],
        },
        mark_call,
        marked_by_pairs,
    ),
    "sample": Case(
        ops.sample,
        {
            "prefix": [(3,), (2, 2), (2, 0, 3)],
            "means": [FLOAT, DOUBLE],
            "shape": [(30,), (9, 8), (5, 1, 7)],
            "region": [1, 3, 50],
            "local_samples": [2, 0, 9],
            "global_samples": [3, 0],
            "generator": [5, None],
        },
        sample_call,
        facts_by_definition,
        ("prefix",),
    ),
    "fused_gather": Case(
        fused_gather,
        {
            "contexts": [(2, 3), (1, 5), (3, 67), (0, 5)],
            "means": [FLOAT, DOUBLE],
            "variances": [1.0, 0.1, 30.0],
            "values": [FLOAT, DOUBLE],
            "x": [FLOAT, DOUBLE, HALF],
            "addresses": [(9, 8), (30,), (11, 1, 3), (3, 4, 5, 6), (30, 30), (1,)],
            "region": [3, 1, 20, 50],
            "local_samples": [2, 0, 9],
            "global_samples": [3, 0, 17],
            "density": ["gaussian", "student"],
            "degrees": [1.0, 0.3],
            "generator": [5, None],
        },
        gather_call,
        gather_by_stages,
        ("contexts",),
    ),
}


def outcome(
    function: Callable[..., Tensor],
    call: Row,
    engine: Any,
    device: str = "cpu",
    wanted: str = "all",
    strided: bool = False,
    orders: int = 1,
) -> dict[str, Tensor]:
    """Output and derivatives by name, on the CPU, for arguments that lie side by side or not."""

    def there(value: Any) -> Any:
        if isinstance(value, Addresses):
            return value._replace(base=value.base.to(device))
        if not isinstance(value, Tensor):
            return value
        value = value.to(device)
        return torch.stack([value, value], -1)[..., 0] if strided else value

    given = {name: there(value) for name, value in call.items()}
    torch.manual_seed(7)
    if given.get("generator") is not None:
        given["generator"] = torch.Generator(device).manual_seed(given["generator"])
    leaves = {
        name: value.detach().requires_grad_()
        for name, value in given.items()
        if isinstance(value, Tensor) and value.is_floating_point() and wanted in ("all", name)
    }
    with sw.engine(engine):
        output = function(**{**given, **leaves})
    results = {"output": output.detach()}
    if output.requires_grad:
        weights = torch.randn(output.shape, dtype=DOUBLE, generator=seeded(1)).to(output)
        found = torch.autograd.grad(output, list(leaves.values()), weights, retain_graph=True)
        results |= {f"gradient of {name}": g for name, g in zip(leaves, found, strict=True)}
        # Those of a nonlinear function: each derivative is differentiated again.
        total = output.square().sum()
        for order in range(1, orders):
            found = torch.autograd.grad(total, list(leaves.values()), create_graph=True)
            named = zip(leaves, found, strict=True)
            results |= {f"derivative {order} of {name}": g.detach() for name, g in named}
            total = sum((g.square().sum() for g in found), torch.zeros_like(total))
    return {name: tensor.cpu() for name, tensor in results.items()}


def assert_agreement(name: str, row: Row, engine: Any, device: str = "cpu") -> None:
    """Compare an engine with the specification: output and every gradient, by name.

    In float64 the derivatives of the gradients too, up to the third.
    """
    case = CASES[name]
    call = case.make(row)
    numbers = [t for t in call.values() if isinstance(t, Tensor) and t.is_floating_point()]
    exact = all(t.dtype == DOUBLE for t in numbers)
    how = device, row["wanted"], row["strided"], 4 if exact else 1
    function = sample_facts if name == "sample" else case.function
    got = outcome(function, call, engine, *how)
    # Tuples that the specification samples are those of the engine; all else is plain PyTorch.
    want = outcome(case.specification, call, engine, *how)
    assert got.keys() == want.keys()
    for which, tensor in want.items():
        mine = got[which]
        assert (mine.dtype, mine.shape) == (tensor.dtype, tensor.shape), which
        if not tensor.is_floating_point():
            assert torch.equal(mine, tensor), which
            continue
        limit = max(1e-11 if exact else 2e-5, 2 * torch.finfo(tensor.dtype).eps)
        # Rounding grows with every derivative.
        limit *= 100 ** (int(which.split()[1]) if which.startswith("derivative") else 0)
        error, size = float((mine.double() - tensor.double()).norm()), float(tensor.double().norm())
        # Gradients are differences, which may cancel.
        size += 1e-6 if which == "output" else 0.1
        assert error <= limit * size, f"{which}: error {error:.1e} in {size:.1e}"
