"""The kernels of soft sorting against the definition, which sums over all pairs in float64."""

from typing import Any

import pytest
import torch
from tests.helpers import seeded
from tests.kernels.compare import EXACT, assert_near
from torch import Tensor

from sparsewire.sorting.soft_sort._call import Call
from sparsewire.sorting.soft_sort._reference import by_pairs
from sparsewire.sorting.soft_sort._triton import operators, rows

HOT = torch.tensor([[0.05], [0.7], [30.0]])  # one row nearly sorted, one mixed, one all alike


def inputs(n: int, features: int | None, dtype: torch.dtype, kind: str) -> dict[str, Tensor]:
    keys = torch.randn(3, n, generator=seeded(n))
    if kind == "ties":
        keys = (2 * keys).round() / 2
    if kind == "far":
        keys = keys * torch.tensor([1e-30, 1e3, 1e38])[torch.arange(n) % 3]
    found = {"keys": keys.to(dtype), "temperature": HOT.to(dtype)}
    if features:
        found["payload"] = torch.randn(3, n, features, generator=seeded(features)).to(dtype) + 1
    return found


def derivatives(
    function: Any, given: dict[str, Tensor], weights: Tensor | None, twice: bool = False
) -> dict[str, Tensor]:
    """The result and its gradients by name, or the gradients of these gradients."""
    given = {name: t.clone().requires_grad_() for name, t in given.items()}
    operation = "mix" if "payload" in given else "rank"
    call = Call(operation, given["keys"], given.get("payload"), weights,
                given["temperature"], None, "light")  # fmt: skip
    out = function(call)
    seed = torch.randn(out.shape, generator=seeded(9)).to(out)
    seed.requires_grad_()
    slopes = torch.autograd.grad(out, list(given.values()), seed, retain_graph=True)
    if not twice:
        return {"out": out.cpu(), **{k: t.cpu() for k, t in zip(given, slopes, strict=True)}}
    slope = torch.autograd.grad(out, given["keys"], seed, create_graph=True)[0]
    again = torch.autograd.grad(slope.square().sum(), [seed, *given.values()])
    return {k: t.cpu() for k, t in zip(("seed", *given), again, strict=True)}


def double(given: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.double() for name, t in given.items()}


@pytest.mark.parametrize(
    ("n", "features", "kind", "weighted", "dtype"),
    [
        (1, None, "", False, torch.float32),
        (63, None, "ties", True, torch.float32),
        (130, None, "", False, torch.float64),
        (2, 1, "", False, torch.float32),
        (60, 1, "ties", False, torch.float32),
        (130, 1, "", True, torch.float64),
        (16, 3, "", False, torch.float32),
        (17, 66, "ties", True, torch.float32),
        (20, 3, "", True, torch.float64),
    ],
)
def test_results_and_derivatives_are_those_of_the_definition(
    n: int, features: int | None, kind: str, weighted: bool, dtype: torch.dtype, device: str
) -> None:
    given = inputs(n, features, dtype, kind)
    weights = torch.rand(3, n, generator=seeded(1)).mul(3).floor().to(dtype) if weighted else None
    exact, moved = (None if weights is None else weights.to(to) for to in (torch.double, device))
    want = derivatives(by_pairs, double(given), exact)
    given = {name: t.to(device) for name, t in given.items()}
    assert_near(derivatives(operators.by_kernels, given, moved), want, 30 * EXACT[dtype])


@pytest.mark.parametrize("features", [None, 1, 2])
def test_second_derivatives_are_those_of_the_definition(features: int | None, device: str) -> None:
    given = inputs(5, features, torch.float32, "")
    want = derivatives(by_pairs, double(given), None, twice=True)
    given = {name: t.to(device) for name, t in given.items()}
    assert_near(derivatives(operators.by_kernels, given, None, twice=True), want, 1e-3)


@pytest.mark.parametrize("operation", ["rank", "mix"])
def test_rows_of_many_blocks(operation: Any, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As rows of millions, with small blocks, whose ends are added by more than one step."""
    monkeypatch.setattr(rows, "SHORT", 0)
    monkeypatch.setattr(rows, "_BLOCK", 8)
    given = inputs(90, 1 if operation == "mix" else None, torch.float32, "ties")
    want = derivatives(by_pairs, double(given), None)
    given = {name: t.to(device) for name, t in given.items()}
    assert_near(derivatives(operators.by_kernels, given, None), want, 1e-4)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("name", ["rank", "sort", "sort_by"])
def test_short_rows_as_they_come(name: str, descending: bool, device: str) -> None:
    """With the default temperature, in both orders."""
    keys, sign = torch.randn(3, 20, generator=seeded(3)), -1 if descending else 1
    payload = torch.randn(3, 20, 2, generator=seeded(4))
    heat = keys.double().std(-1, correction=0, keepdim=True) * 12**0.5 / 20

    def kernels(keys: Tensor) -> Tensor:
        if name == "sort_by":
            return operators.soft_rows(keys, payload.to(device), None, None, descending, False)[0]
        return operators.soft_rows(keys, None, None, None, descending, name == "rank")[0]

    def pairs(keys: Tensor) -> Tensor:
        rows = payload.double() if name == "sort_by" else keys.unsqueeze(-1)
        call = Call("rank", sign * keys, None, None, heat, None, "light")
        return by_pairs(call if name == "rank" else call._replace(operation="mix", payload=rows))

    found = []
    for run, x in ((kernels, keys.to(device)), (pairs, keys.double())):
        x = x.clone().requires_grad_()
        out = run(x)
        out = out.reshape(3, 20, -1)
        seed = torch.randn(out.shape, generator=seeded(5)).to(out)
        (slope,) = torch.autograd.grad(out, x, seed)
        found.append({"out": out.detach().cpu(), "keys": slope.cpu()})
    got, want = found
    assert_near(got, want, 1e-5)


@pytest.mark.parametrize("descending", [False, True])
def test_what_is_not_finite_is_at_an_end_without_a_gradient(descending: bool, device: str) -> None:
    inf, nan = float("inf"), float("nan")
    keys = torch.tensor([[inf, 3.0, nan, -inf, 1.0, inf], [3e38, -3e38, 0.0, 1.0, 3e38, inf]])
    ranks = torch.tensor([[3.5, 2, 5, 0, 1, 3.5], [3.5, 0, 1, 2, 3.5, 5]])
    values, _ = keys.sort(-1, descending)
    ranks = 5 - ranks if descending else ranks
    for ranked, want in ((True, ranks), (False, values)):
        x = keys.to(device).requires_grad_()
        out = operators.soft_rows(x, None, None, x.new_full((1,), 1e-3), descending, ranked)[0]
        torch.testing.assert_close(out.cpu(), want, rtol=1e-6, atol=1e-6, equal_nan=True)
        (slope,) = torch.autograd.grad(out[0].nan_to_num(0, 0, 0).sum() + out[1, :5].sum(), x)
        assert slope.isfinite().all()
        assert (slope.cpu()[~keys.isfinite()] == 0).all()


def test_masked_elements_change_nothing(device: str) -> None:
    keys = torch.randn(2, 9, generator=seeded(0))
    weights = torch.ones(2, 12)
    weights[:, 3:6] = 0
    padded = torch.cat([keys[:, :3], torch.tensor([[9.0, float("nan"), -9.0]] * 2), keys[:, 3:]], 1)
    whole = operators.soft_rows(keys.to(device), *[None] * 3, False, False)[0]
    given = padded.to(device), None, weights.to(device), None
    some = operators.soft_rows(*given, False, False)[0]
    torch.testing.assert_close(some[:, :9], whole, rtol=1e-6, atol=1e-6)
    assert (some[:, 9:] == 0).all()


def test_far_keys_and_temperatures_give_finite_numbers(device: str) -> None:
    keys = inputs(40, None, torch.float32, "far")["keys"]
    for heat in (1e-37, 1e-3, 1e30):
        for ranks in (True, False):
            x = keys.to(device).requires_grad_()
            out = operators.soft_rows(x, None, None, x.new_full((1,), heat), False, ranks)[0]
            (slope,) = torch.autograd.grad(out, x, torch.ones_like(out))
            assert out.isfinite().all()
            assert slope.isfinite().all()


def test_calls_that_the_kernels_leave_to_others() -> None:
    keys = torch.randn(2, 5)
    call = Call("rank", keys, None, None, torch.ones(2, 1), None, "light")
    assert operators.takes(call)
    assert not operators.takes(call._replace(tails="heavy"))
    assert not operators.takes(call._replace(operation="threshold", levels=torch.ones(2, 1)))
    assert not operators.takes(call._replace(weights=torch.ones(2, 5, requires_grad=True)))
