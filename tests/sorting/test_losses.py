"""Losses of rankings, against loops over the hard definitions, and what none of them may do."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tests.helpers import DTYPES, assert_same, output_and_gradients, pairwise, seeded, seeds
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, vmap

import sparsewire as sw
from sparsewire.sorting import losses as every

FUNCTIONS = {
    "spearman_loss": sw.spearman_loss,
    "ndcg_loss": sw.ndcg_loss,
    "topk_cross_entropy": sw.topk_cross_entropy,
    "trimmed_loss": sw.trimmed_loss,
}
AXES: dict[str, dict[str, Any]] = {
    "spearman_loss": {"tails": ("heavy", "light")},
    "ndcg_loss": {"k": (None, 1, 3), "tails": ("heavy", "light")},
    "topk_cross_entropy": {"k": (1, 2, (0.5, 0.0, 0.5))},
    "trimmed_loss": {"keep": (0.5, 0.9, 1.0)},
}
SHARED: dict[str, Any] = {
    "temperature": (0.3, 1.0, "default"),
    "mask": ("none", "some", "rows"),
    "weights": (None, (0.5, 2.0, 1.0)),
    "reduction": ("none", "mean", "sum"),
    "n": (3, 4, 7),
}
ROWS = [(name, row) for name, axes in AXES.items() for row in pairwise(**axes, **SHARED)]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return 2 * torch.randn(shape, dtype=torch.float64, generator=seeded(seed))


def target_of(name: str, n: int, seed: int = 1, lists: int = 3) -> tuple[Tensor, ...]:
    """The second argument of a loss, if it has one."""
    if name == "trimmed_loss":
        return ()
    if name == "topk_cross_entropy":
        return (torch.randint(n, (lists,), generator=seeded(seed)),)
    return (torch.randint(4, (lists, n), generator=seeded(seed)),)


def call_of(name: str, row: dict[str, Any]) -> tuple[Tensor, tuple[Tensor, ...], dict[str, Any]]:
    """Scores of three lists, the target and the options of a row of arguments."""
    n, options = row["n"], {key: value for key, value in row.items() if key != "n"}
    if options["temperature"] == "default":
        del options["temperature"]
    if options["weights"] is not None:
        options["weights"] = torch.tensor(options["weights"], dtype=torch.float64)
    masks = {"none": None, "rows": torch.arange(3).unsqueeze(-1) < 2}
    masks["some"] = torch.rand(3, n, generator=seeded(n)) < 0.7
    options["mask"] = masks[options["mask"]]
    return numbers(3, n, seed=n), target_of(name, n), options


# The definitions, where the temperature falls.


@given(st.integers(2, 8), seeds)
def test_spearman_is_that_of_scipy(n, seed):
    scores, target = numbers(n, seed=seed), torch.randint(5, (n,), generator=seeded(seed))
    got = sw.spearman_loss(scores, target, temperature=0.0).item()
    if len(target.unique()) == 1:
        assert got == 0
    else:
        assert math.isclose(
            got, 1 - float(np.asarray(stats.spearmanr(scores, target))[0]), abs_tol=1e-9
        )


@given(st.integers(1, 8), seeds, st.sampled_from([None, 1, 2, 5]))
def test_ndcg_is_the_sum_over_places(n, seed, k):
    scores, target = numbers(n, seed=seed), torch.randint(5, (n,), generator=seeded(seed))

    def gain(order: Tensor) -> float:
        places = enumerate(target[order].tolist()[:k])
        return sum((2**relevance - 1) / math.log2(place + 2) for place, relevance in places)

    best = gain(target.argsort(descending=True))
    want = 1 - gain(scores.argsort(descending=True)) / best if best else 0.0
    got = sw.ndcg_loss(scores, target, k=k, temperature=0.0).item()
    assert math.isclose(got, want, abs_tol=1e-9)


@given(st.integers(1, 8), seeds, st.sampled_from([0.01, 0.3, 3.0]))
def test_soft_ndcg_is_between_zero_and_one(n, seed, temperature):
    scores, target = numbers(n, seed=seed), torch.randint(5, (n,), generator=seeded(seed))
    assert -1e-9 <= sw.ndcg_loss(scores, target, temperature=temperature).item() <= 1


@given(st.integers(2, 8), seeds)
def test_shares_of_all_labels_sum_to_k(n, seed):
    scores, labels = numbers(n, seed=seed).expand(n, n), torch.arange(n)
    for k in (1, n - 1):
        losses = sw.topk_cross_entropy(scores, labels, k, reduction="none")
        torch.testing.assert_close((-losses).exp().sum(), torch.tensor(float(k)).double())
    mixed = sw.topk_cross_entropy(scores, labels, [0.25, 0.75], reduction="none")
    one, two = (sw.topk_cross_entropy(scores, labels, k, reduction="none") for k in (1, 2))
    torch.testing.assert_close((-mixed).exp(), 0.25 * (-one).exp() + 0.75 * (-two).exp())


@given(st.integers(1, 9), seeds, st.sampled_from([0.3, 0.75, 1.0]))
def test_the_trimmed_loss_is_between_its_limits(n, seed, keep):
    """The k smallest at temperature 0, with a part of the next; all where it is high."""
    losses = numbers(n, seed=seed).square()
    k, inorder = keep * n, losses.sort().values
    parts = (k - torch.arange(n, dtype=torch.float64)).clamp(0, 1)
    hard = float((parts * inorder).sum() / k)
    cold, warm, hot = (sw.trimmed_loss(losses, keep, temperature=t).item() for t in (0.0, 1.0, 1e9))
    assert math.isclose(cold, hard, abs_tol=1e-9)
    assert hard - 1e-9 <= warm <= losses.mean() + 1e-9
    assert math.isclose(hot, float(losses.mean()), rel_tol=1e-5, abs_tol=1e-5)


def test_the_gradient_of_the_trimmed_loss_is_the_share_of_each_sample():
    losses = numbers(9).square().requires_grad_()
    (slopes,) = torch.autograd.grad(sw.trimmed_loss(losses, 0.6, reduction="sum"), losses)
    heat = 0.1 * losses.detach().mean()
    shares = sw.sorting.soft_topk_mask(losses.detach(), 0.6 * 9, largest=False, temperature=heat)
    torch.testing.assert_close(slopes * 0.6 * 9, shares)


# Every argument.


def test_every_loss_and_every_argument_has_an_axis():
    import inspect

    assert {name for name in every.__all__ if name.islower()} == set(FUNCTIONS)
    for name, axes in AXES.items():
        names = list(inspect.signature(inspect.unwrap(FUNCTIONS[name])).parameters)
        tensors = 1 if name == "trimmed_loss" else 2
        assert set(names[tensors:]) == (set(axes) | set(SHARED)) - {"n"}


@pytest.mark.parametrize(("name", "row"), ROWS, ids=str)
def test_engines_agree_and_padding_has_no_influence(name, row):
    scores, target, options = call_of(name, row)

    def loss(given: Tensor, target: tuple[Tensor, ...] = target, **other: Any) -> Tensor:
        return FUNCTIONS[name](given, *target, **{**options, **other})

    want = output_and_gradients(loss, {"given": scores})
    for engine in ("reference", "chunked"):
        with sw.engine(engine):
            assert_same(output_and_gradients(loss, {"given": scores}), want)
    if options["mask"] is None:
        return
    mask = options["mask"].expand(scores.shape)
    assert (want["gradient of given"][~mask] == 0).all()
    junk = scores.where(mask, math.nan)
    torch.testing.assert_close(loss(junk), want["output"])
    each = loss(scores, reduction="none", weights=None)
    for i, chosen in enumerate(mask):
        few = [t[i, chosen] if t.dim() > 1 else t[i] for t in target]
        if name == "topk_cross_entropy":
            chosen = chosen & True
            label = int(few[0])
            few = [chosen[:label].sum()]
            if not chosen[label] or int(chosen.sum()) < 3:
                assert chosen[label] or each[i] == 0
                continue
        if chosen.any():
            alone = loss(scores[i, chosen], tuple(few), mask=None, weights=None, reduction="none")
            torch.testing.assert_close(each[i], alone)
        else:
            assert each[i] == 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_lists_without_valid_elements_are_left_out_of_the_mean(name):
    row = {"n": 5, "temperature": 1.0, "mask": "rows", "weights": (0.5, 2.0, 1.0)}
    scores, target, options = call_of(name, row)
    got = FUNCTIONS[name](scores, *target, **options)
    weights, target = options["weights"][:2], tuple(t[:2] for t in target)
    want = FUNCTIONS[name](scores[:2], *target, temperature=1.0, weights=weights)
    torch.testing.assert_close(got, want)


# Gradients.


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("options", [{}, {"mask": torch.arange(5) < 4}], ids=str)
def test_gradients_and_theirs(name, options):
    scores, target = numbers(3, 5, seed=3).requires_grad_(), target_of(name, 5)
    target = tuple(t.clamp(max=3) for t in target)
    call = lambda x: FUNCTIONS[name](x, *target, temperature=0.7, **options)  # noqa: E731
    assert gradcheck(call, scores)
    assert gradgradcheck(call, scores)


@pytest.mark.parametrize("distance", [1.0, 30.0, 1e4])
def test_a_wrong_order_never_loses_its_gradient(distance):
    scores = torch.tensor([[distance, 0.0, -distance]], requires_grad=True)
    rising = torch.arange(3).unsqueeze(0)
    for loss in (
        sw.spearman_loss(scores, rising),
        sw.ndcg_loss(scores, rising),
        sw.topk_cross_entropy(scores, torch.tensor([2])),
        sw.topk_cross_entropy(scores, torch.tensor([2]), k=2),
    ):
        (slopes,) = torch.autograd.grad(loss, scores)
        assert slopes[0, 2] < 0
        assert slopes[0, 0] >= 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_equal_scores_have_a_finite_gradient_that_orders_them(name):
    scores, target = torch.zeros(1, 5, requires_grad=True), target_of(name, 5, lists=1)
    loss = FUNCTIONS[name](scores, *target)
    (slopes,) = torch.autograd.grad(loss, scores)
    assert loss.isfinite()
    assert slopes.isfinite().all()
    assert name == "trimmed_loss" or slopes.abs().max() > 1e-3


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e4, 3e38, math.inf])
def test_values_and_gradients_are_finite_at_any_scale(name, size):
    scores = (numbers(2, 6).float().sign() * size).nan_to_num(nan=0, posinf=math.inf)
    scores.requires_grad_()
    target = target_of(name, 6, lists=2)
    loss = FUNCTIONS[name](scores, *target)
    (slopes,) = torch.autograd.grad(loss, scores)
    assert loss.isfinite()
    assert slopes.isfinite().all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_transforms_them(name):
    scores, target = numbers(3, 5).requires_grad_(), target_of(name, 5)
    (want,) = torch.autograd.grad(FUNCTIONS[name](scores, *target, reduction="sum"), scores)
    each = vmap(grad(FUNCTIONS[name]))(scores.detach(), *target)
    torch.testing.assert_close(each, want)


# Shapes, dtypes, modules.


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_losses_have_the_dtype_of_the_scores_and_any_batch(name, dtype):
    scores, target = numbers(3, 5), target_of(name, 5)
    got = FUNCTIONS[name](scores.to(dtype), *target, reduction="none")
    assert got.dtype == dtype
    want = FUNCTIONS[name](scores.to(dtype).double(), *target, reduction="none")
    torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=2e-2)
    shaped = tuple(t.unsqueeze(0) for t in target)
    more = FUNCTIONS[name](scores.unsqueeze(0), *shaped, reduction="none")
    assert more.shape == (1, 3)


@pytest.mark.parametrize("name", ["spearman_loss", "ndcg_loss", "trimmed_loss"])
def test_lists_of_nothing_cost_nothing(name):
    target = () if name == "trimmed_loss" else (torch.zeros(2, 0),)
    losses = FUNCTIONS[name](torch.zeros(2, 0), *target, reduction="none")
    assert torch.equal(losses, torch.zeros(2))


@pytest.mark.parametrize(
    ("module", "function", "options"),
    [
        (sw.OrderLoss, sw.order_loss, {"temperature": 0.5, "bend": 2.0, "reach": 2, "ties": False}),
        (sw.SpearmanLoss, sw.spearman_loss, {"temperature": 0.5, "tails": "light"}),
        (sw.NDCGLoss, sw.ndcg_loss, {"k": 2, "temperature": 0.5, "tails": "light"}),
        (sw.TopKCrossEntropy, sw.topk_cross_entropy, {"k": (0.5, 0.5), "temperature": 2.0}),
        (sw.TrimmedLoss, sw.trimmed_loss, {"keep": 0.5, "temperature": 0.3}),
    ],
)
def test_a_module_is_its_function(module: Any, function: Callable[..., Tensor], options) -> None:
    criterion = module(**options, reduction="sum")
    name = function.__name__
    scores, target = numbers(3, 5), target_of(name, 5)
    given = {"mask": torch.arange(5) < 4, "weights": torch.tensor([1.0, 0.5, 2.0])}
    want = function(scores, *target, **options, **given, reduction="sum")
    torch.testing.assert_close(criterion(scores, *target, **given), want)
    assert all(f"{name}={value!r}" in repr(criterion) for name, value in options.items())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: sw.spearman_loss(x.long(), x), "scores must have a floating-point dtype"),
        (lambda x: sw.spearman_loss(x, x[0]), r"target must have the shape of scores, \(2, 4\)"),
        (lambda x: sw.spearman_loss(x, x, reduction="max"), "reduction must be one of 'mean'"),  # pyright: ignore
        (lambda x: sw.spearman_loss(x, x, weights=x), r"weights must have one number for each"),
        (lambda x: sw.spearman_loss(x, x, mask=x), "mask must be a boolean tensor, True for"),
        (lambda x: sw.spearman_loss(x, x, temperature=-1.0), "temperature must be between 0"),
        (lambda x: sw.ndcg_loss(x, x, k=0), "k must be at least 1; got 0"),
        (lambda x: sw.topk_cross_entropy(x, x), "target must have dtype torch.int64"),
        (lambda x: sw.topk_cross_entropy(x, x.long()), r"one label for each list, \(2,\)"),
        (lambda x: sw.topk_cross_entropy(x, x[:, 0].long(), 5), "k must be 1 to 4, the number"),
        (lambda x: sw.topk_cross_entropy(x, x[:, 0].long(), [0.5]), "probabilities that sum to 1"),
        (lambda x: sw.trimmed_loss(x, 0.0), "keep must be above 0; got 0.0"),
        (lambda x: sw.trimmed_loss(x, 1.5), "keep must be between 0 and 1; got 1.5"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(torch.zeros(2, 4))
