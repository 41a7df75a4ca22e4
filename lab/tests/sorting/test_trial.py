"""A trial of the sorting experiment: what it trains on, by which losses, and how it is judged."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.tests.sorting.sorts import (
    BRIGHTNESS,
    EVERY,
    LOSSES,
    METHODS,
    build,
    load_shapes,
)
from tests.helpers import seeded
from torch import Tensor, nn

from sparsewire.sorting import QuickSort, order_loss
from sparsewire_lab.data.augment import augment, sample_changes
from sparsewire_lab.data.numbers import Numbers, pictures, sample_numbers
from sparsewire_lab.sorting import trial as sorting_trial
from sparsewire_lab.sorting.networks import KeyNetwork, WideKeyNetwork
from sparsewire_lab.sorting.peers import (
    network_sort,
    neural_sort,
    projected_ranks,
    sinkhorn_sort,
    soft_sort_matrix,
)
from sparsewire_lab.sorting.trial import SortingTrial, permutation_loss, rank_loss
from sparsewire_lab.train.distributed import whole_batch

pytestmark = pytest.mark.usefixtures("shapes")


def everything(x: Tensor) -> Tensor:
    return x


def seen_by(trial: SortingTrial, batch: int = 4) -> Tensor:
    """The pictures of the next step."""
    seen = []

    def model(x: Tensor) -> Tensor:
        seen.append(x)
        return x.flatten(2).sum(-1).requires_grad_()

    trial.loss(model, batch, everything)
    (x,) = seen
    return x


def next_numbers(trial: SortingTrial, batch: int, seed: int) -> tuple[Tensor, Tensor]:
    """The pictures and values of the step after a seed, without augmentation."""
    torch.manual_seed(seed)
    drawn = sample_numbers(trial.groups, batch, trial.args.size, trial.args.places)
    return pictures(trial.groups, drawn.which), drawn.values


# What it is built of.


def test_networks_are_those_that_were_asked_for():
    assert isinstance(build(network="wide").model, WideKeyNetwork)
    model = build(network="paper", places=2, dropout=0.25, tanh=False).model
    assert isinstance(model, KeyNetwork)
    assert model.key[0].in_features == 8 * 2
    assert [m.p for m in model.modules() if isinstance(m, nn.Dropout)] == [0.25]
    assert not [m for m in model.modules() if isinstance(m, nn.Tanh)]
    plain = build(network="paper").model
    assert not [m for m in plain.modules() if isinstance(m, nn.Dropout)]
    assert [m for m in plain.modules() if isinstance(m, nn.Tanh)]


def test_the_optimizer_and_the_sort_are_those_that_were_asked_for():
    plain, decaying = build().optimizer, build(decay=0.125, lr=0.5, cosine=False).optimizer
    assert (type(plain), type(decaying)) == (torch.optim.Adam, torch.optim.AdamW)
    assert plain.param_groups[0]["weight_decay"] == 0
    assert decaying.param_groups[0]["weight_decay"] == 0.125
    assert decaying.param_groups[0]["lr"] == 0.5
    for method, samples in (("exact", None), ("sampled", 4)):
        sort = build(method=method, temperature=0.25).sort
        assert (sort.method, sort.temperature, sort.samples) == (method, 0.25, samples)
    assert build(method="sampled", samples=3).sort.samples == 3


def test_the_learning_rate_falls_along_a_cosine_or_stays():
    assert build(preset="paper").schedule is None
    trial = build(steps=10)
    assert trial.schedule is not None
    rates = []
    for _ in range(10):
        rates.append(trial.optimizer.param_groups[0]["lr"])
        trial.optimizer.step()
        trial.schedule.step()
    want = [2e-3 * 0.5 * (1 + math.cos(math.pi * step / 10)) for step in range(10)]
    assert rates == pytest.approx(want)


# What it trains on, and what it is judged by.


@pytest.mark.parametrize(
    ("split", "splits"),
    [("test", ["all-train", "test"]), ("validation", ["train", "validation"])],
)
def test_what_is_judged_was_never_trained_on(split, splits, shapes):
    """The brightness of every picture tells where it is from."""
    trial = build(split=split, jitter=0.0, sets=50)
    assert shapes == [(split, None) for split in splits]
    mine, held_out = (
        set(range(BRIGHTNESS[name], BRIGHTNESS[name] + 30))  # pyright: ignore
        for name in splits
    )
    assert not mine & held_out
    trained = seen_by(trial, 50).flatten(0, 2).flatten(1).amax(1) * 255
    assert set(trained.round().int().tolist()) == mine
    judged = pictures(trial.judged, trial.sets.which).flatten(0, 2).flatten(1).amax(1) * 255
    assert set(judged.round().int().tolist()) == held_out


def test_mnist_is_read_from_its_folder(shapes):
    build(data="mnist", mnist=Path("some"))
    assert shapes == [("all-train", Path("some")), ("test", Path("some"))]


def test_the_sets_that_errors_are_measured_on_stay():
    """Whatever the seed, the method, the network, and the state of torch's generator."""
    first = build(seed=0)
    assert first.sets.which.shape == (6, 4, 1)
    assert first.sets.values.shape == (6, 4)
    others = [build(seed=1), build(method="sampled"), build(network="paper"), build(preset="paper")]
    for trial in others:
        assert torch.equal(trial.sets.which, first.sets.which)
        assert torch.equal(trial.sets.values, first.sets.values)
        assert torch.equal(trial.judged.images, first.judged.images)


def test_sets_show_the_values_that_they_are_judged_by():
    trial = build(places=2, sets=20)
    held_out = load_shapes("test")
    shown = pictures(trial.judged, trial.sets.which)
    bright = (shown.amax((-1, -2)) * 255).round().long() - BRIGHTNESS["test"]
    digits = held_out.labels[bright]
    assert torch.equal(digits[..., 0] * 10 + digits[..., 1], trial.sets.values)


@torch.no_grad()
def test_pictures_that_occur_often_are_read_once(monkeypatch):
    """By the paper's network, which reads digit by digit; keys are those of reading them all."""
    trial = build(network="paper", places=2, size=4, sets=100)
    trial.model.eval()
    seen = []
    read = KeyNetwork.digits
    monkeypatch.setattr(KeyNetwork, "digits", lambda net, x: (seen.append(len(x)), read(net, x))[1])
    keys = trial.keys()
    assert keys.shape == (100, 4)
    assert sum(seen) == len(trial.judged.images) < 800
    want = trial.model(pictures(trial.judged, trial.sets.which))
    torch.testing.assert_close(keys, want, rtol=1e-4, atol=1e-5)


def test_pictures_are_augmented_in_training_as_far_as_was_asked_for():
    """Every step has numbers of its own, those of the generator."""
    plain = build(places=2, jitter=0.0)
    want, _ = next_numbers(plain, 4, seed=5)
    torch.manual_seed(5)
    first, second = seen_by(plain), seen_by(plain)
    assert first.shape == (4, 4, 2, 28, 28)
    assert torch.equal(first, want)
    assert not torch.equal(first, second)
    for strength in (0.5, 1.0):
        trial = build(places=2, jitter=strength)
        want, _ = next_numbers(trial, 4, seed=5)
        changed = augment(want.view(32, 1, 28, 28), sample_changes(32, strength))
        torch.manual_seed(5)
        torch.testing.assert_close(seen_by(trial), changed.view_as(want))
        assert not torch.equal(changed.view_as(want), want)


# Losses.


SIZES = [("exact", 2), ("sampled", 3), ("odd_even", 5), ("neuralsort", 3), ("likelihood", 2)]
TRAINED: list[dict[str, Any]] = [{"method": method, "loss": loss} for method, loss in EVERY]
TRAINED += [{"method": method, "size": size} for method, size in SIZES]
TRAINED += [
    {"method": method, "network": "paper", "places": 2}
    for method in ("likelihood", "sampled", "neuralsort")
]


@pytest.mark.parametrize("options", TRAINED, ids=str)
def test_every_loss_is_finite_and_gives_every_parameter_a_gradient(options):
    """A number added to all keys changes no order: the last bias has the gradient zero."""
    trial = build(**options)
    loss = trial.loss(trial.model, 4, everything)
    assert loss.shape == ()
    assert loss.dtype == torch.float32
    assert loss.isfinite()
    assert loss > 0
    loss.backward()
    gradients = {name: p.grad for name, p in trial.model.named_parameters()}
    last = list(gradients)[-1]
    assert last == ("key.2.bias" if trial.args.network == "paper" else "key.bias")
    for name, gradient in gradients.items():
        assert gradient is not None, name
        assert gradient.isfinite().all(), name
        assert name == last or gradient.abs().max() > 1e-7, name
    torch.testing.assert_close(gradients[last], torch.zeros(1), rtol=0, atol=1e-6)


def some_keys(batch: int, n: int = 4) -> Tensor:
    return torch.randn(batch, n, generator=seeded(7)).requires_grad_()


def share(t: Tensor) -> Tensor:
    return t[2:5]


@pytest.mark.parametrize(
    ("temperature", "bend", "reach"),
    [(1.0, 0.0, None), (0.5, 0.0, None), (0.5, 0.3, None), (0.5, 0.3, 1)],
)
def test_the_order_loss_is_the_likelihood_for_each_number_of_the_share(temperature, bend, reach):
    trial = build(temperature=temperature, bend=bend, reach=reach)
    keys = some_keys(3)
    _, values = next_numbers(trial, 8, seed=3)
    torch.manual_seed(3)
    got = trial.loss(lambda x: keys[: len(x)], 8, share)
    given = {"temperature": temperature, "bend": bend or math.inf, "reach": reach}
    want = order_loss(keys, values[2:5], **given) / 4
    torch.testing.assert_close(got, want)


def cross_entropy_by_hand(found: Tensor, target: Tensor) -> Tensor:
    found = found.clamp(1e-6, 1 - 1e-6)
    return -(target * found.log() + (1 - target) * (1 - found).log()).mean()


def step_of(trial: SortingTrial, keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss of a step with these keys; its values, its pixels, and its pixels in order."""
    torch.manual_seed(3)
    got = trial.loss(lambda x: keys[: len(x)], 8, share)
    x, values = next_numbers(trial, 8, seed=3)
    pixels, values = x[2:5].flatten(2), values[2:5]
    goal = torch.stack([p[v.argsort(stable=True)] for p, v in zip(pixels, values, strict=True)])
    return got, values, pixels, goal


@pytest.mark.parametrize("method", ["exact", "sampled"])
@pytest.mark.parametrize("size", [3, 4])
def test_the_steps_loss_compares_pictures_after_every_half(method, size):
    """The sorted pictures are sent back through what comes after each."""
    keys = some_keys(3, size)
    trial = build(method=method, loss="steps", jitter=0.0, size=size)
    got, _, pixels, goal = step_of(trial, keys)
    with whole_batch(8, share):
        first, second = QuickSort(method).halves(keys)
    want = cross_entropy_by_hand(first @ pixels, (second.mT @ goal).clamp(0, 1))
    want = want + cross_entropy_by_hand(second @ first @ pixels, goal)
    torch.testing.assert_close(got, want)


of_every_matrix = pytest.mark.parametrize(
    "method", [method for method in METHODS if "permutation" in LOSSES[method]]
)


@of_every_matrix
def test_other_losses_compare_what_the_matrix_sorts(method):
    keys = some_keys(3)
    for loss in ("permutation", "pixels"):
        trial = build(method=method, loss=loss, jitter=0.0)
        got, values, pixels, goal = step_of(trial, keys)
        with whole_batch(8, share):
            matrix = trial.matrix(keys)
        want = permutation_loss(matrix, values)
        if loss == "pixels":
            want = cross_entropy_by_hand(matrix @ pixels, goal)
        torch.testing.assert_close(got, want)


@of_every_matrix
def test_matrices_of_every_method_sort_the_smallest_first(method):
    order = torch.tensor([[2, 0, 3, 1], [3, 2, 1, 0], [1, 3, 0, 2]])
    matrix = build(method=method).matrix(order * 40.0)
    assert matrix.shape == (3, 4, 4)
    assert torch.equal(matrix.argmax(-1), order.argsort(-1))
    assert permutation_loss(matrix, order) < 0.05
    assert permutation_loss(matrix, -order) > 1


def test_peers_are_those_that_were_asked_for():
    keys = some_keys(3)
    peers = {
        "neuralsort": neural_sort(keys, 0.5),
        "softsort": soft_sort_matrix(keys, 0.5),
        "odd_even": network_sort(keys, 2.0, "odd_even"),
        "bitonic": network_sort(keys, 2.0, "bitonic"),
    }
    for method, want in peers.items():
        torch.testing.assert_close(build(method=method, temperature=0.5).matrix(keys), want)
    trial = build(method="sinkhorn", temperature=0.5)
    torch.manual_seed(1)
    want = sinkhorn_sort(keys, 0.5, noise=1.0)
    torch.manual_seed(1)
    torch.testing.assert_close(trial.matrix(keys), want)


def test_the_loss_of_ranks_is_their_squared_error():
    keys, values = some_keys(3), torch.tensor([[4, 1, 1, 9], [0, 1, 2, 3], [7, 7, 7, 7]])
    right = torch.tensor([[2, 0.5, 0.5, 3], [0, 1, 2, 3], [1.5, 1.5, 1.5, 1.5]])  # equal ones share
    ranks = projected_ranks(keys, 0.5)
    torch.testing.assert_close(rank_loss(ranks, values), (ranks - right).square().mean())
    trial = build(method="projection", temperature=0.5)
    _, drawn = next_numbers(trial, 8, seed=3)
    torch.manual_seed(3)
    got = trial.loss(lambda x: keys[: len(x)], 8, share)
    torch.testing.assert_close(got, rank_loss(ranks, drawn[2:5]))


@pytest.mark.parametrize(
    ("values", "chances"),
    [
        # The first and the last may go to the second or the third place.
        ([5, 3, 5], [0.5 + 0.1, 0.7, 0.2 + 0.7]),
        # Without ties it is one entry for each.
        ([5, 3, 6], [0.5, 0.7, 0.7]),
        # Where all are equal, nothing but the sums of columns counts.
        ([4, 4, 4], [0.8, 1.2, 1.0]),
    ],
)
def test_equal_numbers_may_change_places_in_the_permutation_loss(values, chances):
    matrix = torch.tensor([[[0.2, 0.7, 0.1], [0.5, 0.3, 0.2], [0.1, 0.2, 0.7]]])
    got = permutation_loss(matrix, torch.tensor([values]))
    assert got.item() == pytest.approx(-sum(map(math.log, chances)) / 3, abs=1e-6)


def test_the_permutation_loss_of_a_batch_is_the_mean_and_stays_finite():
    right, values = torch.eye(3), torch.tensor([[1, 2, 3], [3, 2, 1]])
    assert permutation_loss(right.expand(1, 3, 3), values[:1]) == 0
    both = permutation_loss(right.expand(2, 3, 3), values)
    # Two of three are in the wrong place, of chance zero.
    assert both.item() == pytest.approx(-2 * math.log(1e-20) / 6)


# Judging.


# Values, keys, and the error with ties in any order, the strict one, and the share misplaced.
JUDGED: list[tuple[list[int], list[float], tuple[float, float, float]]] = [
    ([1, 2, 3, 4], [-3.0, 0.5, 0.75, 9.0], (0, 0, 0)),
    ([4, 3, 2, 1], [1.0, 2.0, 3.0, 4.0], (1, 1, 1)),
    ([1, 2, 3, 4], [1.0, 3.0, 2.0, 4.0], (1, 1, 0.5)),
    ([7, 7, 7, 7], [1.0, 3.0, 2.0, 4.0], (0, 1, 0.5)),
    ([7, 7, 7, 7], [0.0, 0.0, 0.0, 0.0], (0, 0, 0)),
    ([5, 5, 1, 2], [4.0, 3.0, 1.0, 2.0], (0, 1, 0.5)),
    ([3, 1, 2, 2], [0.0, 1.0, 2.0, 3.0], (1, 1, 1)),
]


@pytest.mark.parametrize("sets", [*([one] for one in JUDGED), JUDGED])
def test_errors_by_hand(sets, monkeypatch):
    values, keys, errors = map(torch.tensor, zip(*sets, strict=True))
    trial = build(sets=len(sets))
    trial.sets = Numbers(trial.sets.which, values)
    monkeypatch.setattr(trial, "keys", lambda: keys)
    want = dict(zip(("error", "strict", "elements"), errors.double().mean(0).tolist(), strict=True))
    assert trial.evaluate() == pytest.approx(want)


@torch.no_grad()
def test_keys_are_those_of_plain_pictures_however_many_are_read_at_once(monkeypatch):
    trial = build(sets=7, places=2, jitter=1.0)
    trial.model.eval()
    want = trial.model(pictures(trial.judged, trial.sets.which))
    assert want.shape == (7, 4)
    assert want.dtype == torch.float32
    for digits in (20_000, 1, 8, 24):
        monkeypatch.setattr(sorting_trial, "_AT_ONCE", {"cpu": digits})
        torch.testing.assert_close(trial.keys(), want)


@torch.no_grad()
def test_judging_draws_nothing_and_changes_nothing():
    trial = build(network="paper", dropout=0.5)
    trial.model.eval()
    before = torch.get_rng_state()
    state = {name: tensor.clone() for name, tensor in trial.model.state_dict().items()}
    assert trial.evaluate() == trial.evaluate()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(state[name], t) for name, t in trial.model.state_dict().items())
