"""The identity experiment: its defaults, what it plants, how it is judged."""

import dataclasses
import math
import re
from typing import Any, get_args

import pytest
import torch
from tests.nn.dense import matrix_of, tuples_of
from torch import Tensor

from sparsewire import SparseLayer
from sparsewire_lab.identity import experiment as identity
from sparsewire_lab.identity.experiment import Identity, IdentityTrial, Method, Target
from sparsewire_lab.identity.reinforce import ReinforceLayer

CPU = torch.device("cpu")
METHODS: tuple[Method, ...] = get_args(Method)
TARGETS: tuple[Target, ...] = get_args(Target)
PAPER_SIZES = (8, 16, 32, 64)


def build(seed: int = 0, **options: Any) -> IdentityTrial:
    return Identity(**{"size": 8, "device": "cpu", **options}).resolved().build(seed, CPU)


def everything(x: Tensor) -> Tensor:
    return x


def planted(args: Identity, seed: int) -> Tensor:
    rows, cols = args.places(seed)
    return torch.zeros(args.size, args.size).index_put((rows, cols), torch.tensor(1.0))


# Defaults.


@pytest.mark.parametrize(
    ("size", "samples", "steps", "lr"),
    [
        (8, (1, 2), 10_000, 0.005),
        (16, (2, 2), 20_000, 0.005),
        (32, (2, 8), 40_000, 0.005),
        (64, (2, 10), 60_000, 0.001),
    ],
)
def test_the_defaults_are_those_of_the_paper(size, samples, steps, lr):
    args = Identity(size=size).resolved()
    assert (args.local_samples, args.global_samples) == samples
    assert (args.steps, args.lr, args.batch) == (steps, lr, 64)
    assert args.region == math.log2(size)
    assert (args.tuples, args.values, args.wirings) == (size, "fixed", 1)
    layer = args.build(0, CPU).layer
    assert (layer.local_samples, layer.global_samples, layer.region) == (*samples, args.region)
    baseline = Identity(size=size, method="reinforce", batch=32, accumulate=2).resolved()
    assert (baseline.steps, baseline.wirings, baseline.lr) == (60_000, 16, lr)
    assert (baseline.local_samples, baseline.global_samples) == (0, 0)
    ours = Identity(size=size, method="rewire").resolved()
    assert (ours.steps, ours.lr, ours.values) == (6_000, 0.005, "ones")


def test_samples_grow_with_the_logarithm_of_the_size():
    """Fewer than 2 log₂ n for each tuple; the paper's own numbers reach it at 32 and 64."""
    near_halves = (round(2 ** (bits + 0.5)) + more for bits in range(3, 16) for more in (-1, 0, 1))
    sizes = {*range(8, 200), *(2**bits for bits in range(3, 17)), *near_halves, 50_000, 65_535}
    for size in sorted(sizes):
        args = Identity(size=size).resolved()
        assert args.local_samples is not None
        assert args.global_samples is not None
        samples = args.local_samples + args.global_samples
        most = 2 * math.log2(size)
        assert samples <= most if size in PAPER_SIZES else samples < most, size
        assert samples > most - 2 or size in PAPER_SIZES, size
        assert args.local_samples >= 1
        assert args.region == round(math.log2(size))


def test_what_is_given_stays():
    given = {
        "steps": 7, "lr": 0.5, "values": "normal", "tuples": 5, "local_samples": 0,
        "global_samples": 3, "region": 2, "wirings": 4, "evaluate_every": 3,
    }  # fmt: skip
    args = Identity(size=32, **given)  # pyright: ignore[reportArgumentType]
    assert {name: getattr(args.resolved(), name) for name in given} == given
    # As the help of global_samples says, 2 log₂ n − 1 − a_l.
    assert Identity(size=128, local_samples=4).resolved().global_samples == 2 * 7 - 1 - 4


def test_a_sweep_tries_nine_rates_each_as_a_run_of_its_own():
    args = Identity(size=8, method="reinforce", sweep=True)
    rates = [0.1, 0.05, 0.01, 0.005, 0.001, 0.0005, 0.0001, 0.00005, 0.00001]
    assert args.settings() == [dataclasses.replace(args, lr=rate) for rate in rates]
    assert Identity(size=8).settings() == [Identity(size=8)]
    swept = args.settings()[2].resolved()
    alone = Identity(size=8, method="reinforce", lr=0.01, keep_wiring=False).resolved()
    assert swept.lr == 0.01
    assert swept.key() == alone.key() != args.settings()[1].resolved().key()


@pytest.mark.parametrize(
    ("options", "label"),
    [
        ({}, "sparse identity 16"),
        ({"method": "rewire", "target": "permutation", "size": 32}, "rewire permutation 32"),
        ({"method": "reinforce", "values": "normal"}, "reinforce identity 16, values from N(0, 1)"),
        ({"values": "ones"}, "sparse identity 16, values from 1"),
        ({"target": "band", "values": "fixed"}, "sparse band 16"),
    ],
)
def test_labels(options, label):
    args = Identity(**options)
    assert args.label() == label
    assert args.resolved().label() == label


# What is refused.

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"size": 1}, "size must be at least 2; got 1"),
    ({"size": 99_999_999_999}, "size must be at most 16,777,216; got 99,999,999,999"),
    ({"tuples": 2**40}, "tuples must be at most 16,777,216; got"),
    ({"batch": 2**40}, "batch must be at most 16,777,216; got"),
    ({"band": -1, "target": "band"}, "band must be at least 0; got -1"),
    ({"band": 8, "target": "band", "size": 8}, "band must be below the size, 8; got 8"),
    ({"local_samples": -1}, "local_samples must be"),
    ({"global_samples": -1}, "global_samples must be"),
    ({"method": "rewire", "local_samples": 0, "global_samples": 0}, "samples"),
    ({"band": 2}, "band has a meaning with target band only; got identity"),
    ({"rewire_every": 0, "method": "rewire"}, "rewire_every must be at least 1; got 0"),
    ({"rewire_every": 50}, "rewire_every has a meaning with method rewire only; got sparse"),
    ({"tuples": 0}, "tuples must be at least 1; got 0"),
    ({"region": 0}, "region must be at least 1; got 0"),
    ({"region": 17}, "region must be at most the size, 16; got 17"),
    ({"wirings": 0}, "wirings must be at least 1; got 0"),
    *(
        (
            {name: 1, "method": "reinforce"},
            f"{name} has a meaning with method sparse or rewire only; got reinforce",
        )
        for name in ("local_samples", "global_samples", "region")
    ),
    ({"sweep": True, "lr": 0.1}, "sweep tries nine learning rates and lr sets one"),
    (
        {"wirings": 3, "method": "reinforce"},
        "wirings must divide 64, instances in a pass; got 3",
    ),
    (
        {"wirings": 5, "accumulate": 4, "method": "reinforce"},
        "wirings must divide 16, instances in a pass; got 5",
    ),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("options", "message"), REFUSED, ids=[r[1] for r in REFUSED])
def test_arguments_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Identity(**options).check()


def test_wirings_must_divide_the_share_of_each_process(monkeypatch):
    """96 instances in two processes are 48 each, which 32 draws cannot share."""
    Identity(method="reinforce", batch=96, wirings=32).check()
    Identity(method="reinforce", batch=96, wirings=8, accumulate=2, sweep=True).check()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="wirings"):
        Identity(method="reinforce", batch=96, wirings=32).check()


# What is planted.


def test_a_permutation_that_depends_on_the_seed_is_planted():
    args = Identity(size=16, target="permutation")
    matrices = [planted(args, seed) for seed in range(4)]
    for matrix in matrices:
        assert torch.equal(matrix @ matrix.T, torch.eye(16))
        assert set(matrix.unique().tolist()) == {0.0, 1.0}
    assert len({tuple(m.argmax(1).tolist()) for m in matrices}) == 4
    assert torch.equal(planted(args, 0), matrices[0])


@pytest.mark.parametrize("band", [0, 1, 3, 6])
def test_a_band_is_planted(band):
    args = Identity(size=7, target="band", band=band)
    distance = (torch.arange(7).unsqueeze(1) - torch.arange(7)).abs()
    assert torch.equal(planted(args, 0), (distance <= band).float())
    assert len(args.places(0)[0]) == (distance <= band).sum() == args.resolved().tuples
    assert torch.equal(planted(Identity(size=5), band), torch.eye(5))


@torch.no_grad()
def put(trial: IdentityTrial, places: Tensor) -> None:
    tuples_of(trial.layer).raw_means.copy_(trial.layer.raw_means_at(places))


# What is built.


@pytest.mark.parametrize("size", [2, 3, 5, 8, 100])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("target", TARGETS)
def test_a_step_of_every_kind(method, target, size):
    """Of what is accepted and resolved once, it changes every parameter."""
    args = Identity(size=size, method=method, target=target, device="cpu")
    args.check()
    assert args.resolved().resolved() == args.resolved()
    trial = args.resolved().build(0, CPU)
    before = [p.detach().clone() for p in trial.model.parameters()]
    loss = trial.loss(trial.model, 16, everything)
    assert loss.shape == ()
    assert loss.isfinite()
    trial.optimizer.zero_grad()
    loss.backward()
    trial.optimizer.step()
    trial.after_step()
    for was, now in zip(before, trial.model.parameters(), strict=True):
        assert now.isfinite().all()
        assert not torch.equal(was, now)


@pytest.mark.parametrize("method", METHODS)
def test_the_loss_is_the_error_of_the_share_of_the_batch(method):
    trial = build(method=method)
    torch.manual_seed(1)
    got = trial.loss(trial.model, 16, lambda x: x[4:8])
    torch.manual_seed(1)
    x = torch.randn(16, 8)[4:8]
    # REINFORCE has a wiring for each instance, sampled for all of them.
    noise = [torch.randn(16, 8, 2)[4:8]] if method == "reinforce" else []
    output: Any = trial.model(x, *noise)
    y = output[0].flatten(0, 1) if method == "reinforce" else output
    torch.testing.assert_close(got, (y - x).square().mean())


@pytest.mark.parametrize(
    ("values", "learned", "first"),
    [("fixed", False, {1.0}), ("ones", True, {1.0}), ("normal", True, None)],
)
@pytest.mark.parametrize("method", METHODS)
def test_values_decide_what_is_learned(method, values, learned, first):
    trial = build(method=method, values=values)
    source = tuples_of(trial.layer)
    names = {name for name, _ in source.named_parameters()}
    assert names == {"raw_means", "raw_variances"} | ({"values"} if learned else set())
    start = set(source.values.tolist())
    assert start == first if first else len(start) == 8


def test_methods_decide_what_is_built():
    for method, kind in (("sparse", SparseLayer), ("reinforce", ReinforceLayer)):
        trial = build(method=method)
        assert isinstance(trial.model, kind)
        assert (trial.rewire, trial.extras) == (None, {})
    trial = build(method="rewire", rewire_every=2)
    assert isinstance(trial.model, SparseLayer)
    assert trial.rewire is not None
    assert trial.rewire.every == 2
    assert trial.extras == {"rewire": trial.rewire}
    for _ in range(5):
        trial.after_step()
    assert trial.rewire.steps == 5
    assert trial.rewire.layers[0].ages.tolist() == [2] * 8


def test_all_methods_start_from_the_same_tuples():
    starts = [build(method=method, values="ones", seed=3).layer.state_dict() for method in METHODS]
    for state in starts[1:]:
        for name, tensor in starts[0].items():
            assert torch.equal(tensor, state[name]), name


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("values", ["fixed", "normal"])
@pytest.mark.parametrize("size", [8, 128])
def test_every_parameter_is_in_one_group(method, values, size):
    trial = build(method=method, values=values, size=size, lr=0.02)
    grouped = [p for group in trial.optimizer.param_groups for p in group["params"]]
    assert len({id(p) for p in grouped}) == len(grouped)
    assert {id(p) for p in grouped} == {id(p) for p in trial.model.parameters()}
    rates = {id(p): g["lr"] for g in trial.optimizer.param_groups for p in g["params"]}
    slow = 0.02 * 32 / 128 if method == "rewire" and size == 128 else 0.02
    source = tuples_of(trial.layer)
    assert rates.pop(id(source.raw_means)) == pytest.approx(slow)
    assert set(rates.values()) == {0.02}


# How it is judged.


def all_vectors(seed: int, size: int) -> Tensor:
    """The 10,000 vectors that every evaluation draws."""
    generator = torch.Generator().manual_seed(10**6 + seed)
    return torch.randn(10_000, size, generator=generator)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("target", TARGETS)
def test_the_error_is_that_of_the_rounded_matrix(method, target):
    """And of a band that of the expected matrix as well."""
    trial = build(2, method=method, target=target, values="normal")
    x = all_vectors(2, 8)
    metrics = trial.evaluate()
    errors = {"error": "rounded"} | ({"expected_error": "expected"} if target == "band" else {})
    assert metrics.keys() == {*errors, "found"}
    for name, mode in errors.items():
        wrong = matrix_of(trial.layer, mode=mode) - planted(trial.args, 2)
        assert metrics[name] == pytest.approx((x @ wrong.T).square().mean().item(), rel=1e-5)
        expected = (wrong.square().sum() / 8).item()  # the same for ever more vectors
        assert metrics[name] == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("target", TARGETS)
def test_found_is_the_share_of_ones_that_a_tuple_rounds_to(target):
    trial = build(1, target=target, size=6)
    places = torch.stack(trial.args.places(1), dim=-1)
    for right in (0, 2, len(places)):
        moved = places.clone()
        moved[right:] = places[:1] if right else torch.tensor([0, 5])
        in_target = {tuple(p) for p in moved.tolist()} & {tuple(p) for p in places.tolist()}
        put(trial, moved)
        metrics = trial.evaluate()
        assert metrics["found"] == pytest.approx(len(in_target) / len(places))
        assert (metrics["error"] < 1e-12) == (right == len(places))


@pytest.mark.parametrize("method", METHODS)
def test_judging_neither_uses_the_randomness_of_training_nor_changes_anything(method):
    trial = build(method=method)
    states = {name: t.clone() for name, t in trial.model.state_dict().items()}
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        results.append((trial.evaluate(), trial.snapshot(40)))
        assert torch.equal(torch.get_rng_state(), before)
    assert results[0][0] == results[1][0]
    pairs = ((results[0][1], results[1][1]), (states, trial.model.state_dict()))
    assert all(torch.equal(one[name], other[name]) for one, other in pairs for name in one)
    assert trial.model.training
    if trial.rewire is not None:
        assert (trial.rewire.layers[0].gradients == -1).all()


@pytest.mark.parametrize("at_once", [1000, 3000, 10_000, 20_000])
def test_an_evaluation_in_parts_is_the_same(monkeypatch, at_once):
    whole = build().evaluate()
    monkeypatch.setattr(identity, "_EVALUATION_ELEMENTS", 8 * at_once)
    trial, sizes = build(), []
    answer = trial.answer
    monkeypatch.setattr(trial, "answer", lambda x: (sizes.append(len(x)), answer(x))[1])
    got = trial.evaluate()
    assert sum(sizes) == 10_000
    assert max(sizes) == min(at_once, 10_000)
    assert got == {"found": whole["found"], "error": pytest.approx(whole["error"], rel=1e-6)}


def test_vectors_larger_than_a_part_are_evaluated_one_by_one(monkeypatch):
    monkeypatch.setattr(identity, "_EVALUATION_ELEMENTS", 3)
    monkeypatch.setattr(identity, "VECTORS", 5)
    assert math.isfinite(build().evaluate()["error"])


# What is kept for figures.


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tuples", [8, 5])
def test_snapshots_hold_the_tuples_and_a_draw(method, tuples):
    trial = build(method=method, tuples=tuples, values="normal")
    frame = trial.snapshot(10)
    wiring = trial.layer.wiring()._asdict()
    assert frame.keys() == {*wiring, "indices"}
    for name, tensor in wiring.items():
        assert torch.equal(frame[name], tensor)
    samples = 4 + trial.layer.local_samples + trial.layer.global_samples
    assert frame["indices"].shape == (tuples * samples, 2)
    assert frame["indices"].dtype == torch.int32
    assert frame["indices"].min() >= 0
    assert frame["indices"].max() < 8


def test_snapshots_draw_anew_at_every_step():
    trial = build()
    assert torch.equal(trial.snapshot(10)["indices"], trial.snapshot(10)["indices"])
    assert not torch.equal(trial.snapshot(10)["indices"], trial.snapshot(20)["indices"])
    other = build(1)
    assert not torch.equal(other.snapshot(10)["indices"], trial.snapshot(10)["indices"])


def test_snapshots_are_left_out_where_nobody_could_see_them():
    assert build(keep_wiring=False).snapshot(0) == {}
    assert build(size=65).snapshot(0) == {}
    assert build(size=64).snapshot(0) != {}
    assert build(size=9).constants()["shape"].tolist() == [9, 9]
