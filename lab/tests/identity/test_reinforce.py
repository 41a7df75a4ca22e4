"""The REINFORCE baseline: its draws, their log-probabilities, and the gradient it estimates."""

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from sparsewire.ops import rounded
from sparsewire_lab.identity.experiment import Identity, IdentityTrial
from sparsewire_lab.identity.reinforce import ReinforceLayer

CPU = torch.device("cpu")


def make(
    in_shape: tuple[int, ...] = (5,),
    out_shape: tuple[int, ...] = (4,),
    tuples: int = 3,
    **options: Any,
) -> ReinforceLayer:
    return ReinforceLayer(in_shape, out_shape, tuples, seed=0, **options).double()


def drawn_by_hand(layer: ReinforceLayer, draws: int) -> tuple[Tensor, Normal]:
    """The continuous tuples that a pass samples with this generator, and their law."""
    means, variances, _ = layer.sparse.wiring()
    noise = torch.randn(draws, *means.shape, dtype=means.dtype)
    law = Normal(means, variances.sqrt())
    return (means + variances.sqrt() * noise).detach(), law


def matrices(layer: ReinforceLayer, drawn: Tensor, space: tuple[int, ...]) -> Tensor:
    """The matrix of each draw: the tuples' values at the rounded places, added where they meet."""
    values, empty = layer.sparse.wiring().values, torch.zeros(space, dtype=drawn.dtype)
    every = rounded(drawn, space)
    dense = [empty.index_put(tuple(places.T), values, accumulate=True) for places in every]
    return torch.stack(dense).view(len(drawn), math.prod(layer.sparse.out_shape), -1)


@pytest.mark.parametrize("wirings", [1, 2, 6])
@pytest.mark.parametrize(("in_shape", "out_shape"), [((5,), (4,)), ((2, 3), (4,)), ((3,), (2, 2))])
def test_a_pass_multiplies_by_rounded_draws(wirings, in_shape, out_shape):
    layer = make(in_shape, out_shape, wirings=wirings)
    x = torch.randn(6, *in_shape, dtype=torch.float64)
    torch.manual_seed(7)
    drawn, law = drawn_by_hand(layer, wirings)
    torch.manual_seed(7)
    y, log_probability = layer(x)
    assert y.shape == (wirings, 6 // wirings, *out_shape)
    assert log_probability.shape == (wirings,)
    dense = matrices(layer, drawn, (*out_shape, *in_shape))
    want = x.view(wirings, 6 // wirings, -1) @ dense.mT
    torch.testing.assert_close(y.flatten(2), want)
    torch.testing.assert_close(log_probability, law.log_prob(drawn).sum((-2, -1)))


@pytest.mark.parametrize(
    ("wirings", "batch", "draws"), [(8, 3, 3), (3, 3, 3), (2, 8, 2), (8, 1, 1), (4, 0, 0)]
)
def test_there_are_as_many_draws_as_wirings_or_instances(wirings, batch, draws):
    """Every pass samples its own."""
    layer, x = make(wirings=wirings), torch.randn(batch, 5, dtype=torch.float64)
    y, log_probability = layer(x)
    if batch:
        assert y.shape == (draws, batch // draws, 4)
        assert log_probability.shape == (draws,)
        assert not torch.equal(layer(x)[1], log_probability)
    else:
        assert y.numel() == 0


def test_bad_arguments_are_refused():
    for name in ("wirings", "tuples"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1; got 0"):
            make(**{name: 0})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=re.escape("x must hold a multiple of 4 instances; got 6")):
        make(wirings=4)(torch.randn(6, 5, dtype=torch.float64))


# The gradient that the experiment trains it with.


def trial(size: int, **options: Any) -> IdentityTrial:
    args = Identity(size=size, method="reinforce", device="cpu", **options).resolved()
    made = args.build(0, CPU)
    made.model.double()
    return made


def loss_of(one: IdentityTrial, batch: int) -> Tensor:
    return one.loss(one.model, batch, lambda x: x.double())


@pytest.mark.parametrize("target", ["identity", "permutation", "band"])
@pytest.mark.parametrize("wirings", [1, 4, 8])
def test_the_loss_has_the_gradient_of_reinforce(target, wirings):
    """∇ = mean over draws of loss · ∇ log p for places, and ∇ loss for values."""
    one = trial(4, batch=8, wirings=wirings, values="normal", target=target)
    layer: Any = one.model
    source = layer.sparse.source
    torch.manual_seed(2)
    loss = loss_of(one, 8)
    parameters = [source.raw_means, source.raw_variances, source.values]
    got = torch.autograd.grad(loss, parameters)

    torch.manual_seed(2)
    x = torch.randn(8, 4).double()
    drawn, law = drawn_by_hand(layer, wirings)
    planted = torch.zeros(4, 4, dtype=torch.float64)
    planted[one.rows, one.cols] = 1.0
    dense = matrices(layer, drawn, (4, 4))
    grouped = x.view(wirings, 8 // wirings, 4)
    losses = (grouped @ (dense - planted).mT).square().mean((1, 2))
    log_probability = law.log_prob(drawn).sum((1, 2))
    surrogate = (losses.detach() * log_probability).mean()
    want = torch.autograd.grad(surrogate, parameters[:2])
    torch.testing.assert_close(loss.detach(), losses.mean().detach())
    torch.testing.assert_close(got[:2], want)
    torch.testing.assert_close(got[2], torch.autograd.grad(losses.mean(), source.values)[0])


def expected_loss(layer: ReinforceLayer, planted: Tensor) -> Tensor:
    """E[loss] for one tuple: over the places it may round to, and over x from N(0, I)."""
    means, variances, values = layer.sparse.wiring()
    law, size = Normal(means[0], variances[0].sqrt()), len(planted)
    edges = torch.arange(size - 1, dtype=torch.float64) + 0.5
    below = law.cdf(edges.unsqueeze(-1))  # (edges, axis)
    ends = torch.zeros(1, 2, dtype=torch.float64)
    shares = torch.cat([ends, below, ends + 1]).diff(dim=0)
    # The square of what is wrong, by the place of the value in a matrix of zeros.
    wrong = planted.square().sum() + values[0].square() - 2 * values[0] * planted
    return shares[:, 0] @ (wrong / size) @ shares[:, 1]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("values", ["fixed", "normal"])
def test_the_mean_of_the_estimates_is_the_gradient_of_the_expected_loss(values):
    """One tuple in a 2 × 2 matrix: 400 estimates of 500 draws each, within four standard errors."""
    one = trial(2, tuples=1, batch=500, values=values)
    layer: Any = one.model
    with torch.no_grad():
        layer.sparse.source.raw_variances.fill_(-2.5)
    parameters = list(layer.parameters())
    planted = torch.eye(2, dtype=torch.float64)
    want = torch.autograd.grad(expected_loss(layer, planted), parameters)
    estimates = [
        torch.cat([g.flatten() for g in torch.autograd.grad(loss_of(one, 500), parameters)])
        for _ in range(400)
    ]
    table = torch.stack(estimates)
    error = table.std(0) / math.sqrt(len(table))
    exact = torch.cat([g.flatten() for g in want])
    assert ((table.mean(0) - exact).abs() < 4 * error).all()
    assert (exact.abs() > 10 * error).any()
