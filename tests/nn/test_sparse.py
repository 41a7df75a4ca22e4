"""The free layer against dense layers whose weights are built without it."""

import itertools
from typing import Any

import pytest
import torch
from tests.helpers import assert_same, sampled_layer, seeded
from tests.nn.dense import (
    KINDS,
    MODES,
    apply_dense,
    filled,
    gradients_of,
    matrix_of,
    points_of,
    random_input,
    tuples_of,
    weights_of,
    weights_over,
    window_points,
)

from sparsewire import Wiring, fan_in

SHAPES = [
    ((5,), (4,)),
    ((4,), (2, 3)),
    ((2, 3), (3,)),
    ((2, 1, 2), (2, 2)),
    ((1,), (6,)),
    ((), (5,)),
    ((5,), ()),
]

in_all_shapes = pytest.mark.parametrize(("in_shape", "out_shape"), SHAPES, ids=str)

# Against the dense layer.


@pytest.mark.filterwarnings("ignore:. tuples compete for")  # of the smallest shapes
@pytest.mark.parametrize(("density", "degrees"), [("gaussian", None), ("student", 2.5)])
@in_all_shapes
def test_all_tuples_enumerated_equal_the_dense_layer(in_shape, out_shape, density, degrees):
    space = (*out_shape, *in_shape)
    options: dict[str, Any] = {"window": space, "kernel": density, "degrees": degrees or 1.0}
    layer = sampled_layer(in_shape, out_shape, tuples=6, seed=0, **options).double()
    everything = list(itertools.product(*map(range, space)))
    dense = weights_over(layer.wiring(), [everything], space, degrees)
    x = random_input(3, *in_shape)
    expected = apply_dense(dense, x, len(out_shape))
    torch.testing.assert_close(layer(x, mode="expected"), expected)


@pytest.mark.parametrize("context", [1, 2, 3, 6])
@pytest.mark.parametrize("spans", [(1, 1), (3, 2), (2, 7)], ids=str)
def test_expected_enumerates_the_window(spans, context):
    layer = sampled_layer((7,), (5,), tuples=6, context=context, window=spans, seed=0).double()
    wiring = layer.wiring()
    contexts = [window_points(means, (5, 7), spans) for means in wiring.means.split(context)]
    dense = weights_over(wiring, contexts, (5, 7))
    torch.testing.assert_close(matrix_of(layer, mode="expected"), dense)


def test_the_window_is_the_region_if_not_given():
    spans = {"window": (2, 3)}, {"region": (2, 3)}, {"window": (2, 3), "region": (4, 1)}
    layers = (KINDS["free"](**each) for each in spans)
    given, *others = (matrix_of(layer, mode="expected") for layer in layers)
    assert all(torch.equal(other, given) for other in others)


@in_all_shapes
def test_one_draw_equals_the_dense_matrix_of_that_draw(in_shape, out_shape):
    space = (*out_shape, *in_shape)
    layer = sampled_layer(in_shape, out_shape, tuples=6, context=3, seed=0).double()
    draw = layer.sample(generator=seeded(1))
    x = random_input(3, *in_shape)
    expected = apply_dense(weights_of(draw, space), x, len(out_shape))
    torch.testing.assert_close(layer(x, generator=seeded(1)), expected)


@pytest.mark.parametrize("context", [1, 2, 3, 6])
@pytest.mark.parametrize(("density", "degrees"), [("gaussian", None), ("student", 1.0)])
def test_a_draw_deals_values_out_over_the_distinct_tuples_of_each_context(
    context, density, degrees
):
    """The same integer tuples, context by context and repeats once, with SciPy's densities."""
    space = (4, 4)
    layer = sampled_layer((4,), (4,), tuples=6, context=context, kernel=density, seed=0).double()
    draw = layer.sample(generator=seeded(1))
    contexts = points_of(draw.indices)
    assert len(contexts) == 6 // context
    assert any(len(points) < draw.indices.shape[-2] for points in contexts), "no repeats to remove"
    expected = weights_over(layer.wiring(), contexts, space, degrees)
    torch.testing.assert_close(weights_of(draw, space), expected)


@pytest.mark.filterwarnings("ignore:. tuples compete for")  # of the smallest shapes
@in_all_shapes
def test_rounded_puts_every_value_at_the_nearest_index(in_shape, out_shape):
    layer = sampled_layer(in_shape, out_shape, tuples=9, seed=0).double().eval()
    means, _, values = layer.wiring()
    nearest = [[round(coordinate) for coordinate in mean] for mean in means.tolist()]
    dense = filled(nearest, values.tolist(), (*out_shape, *in_shape))
    x = random_input(3, *in_shape)
    torch.testing.assert_close(layer(x), apply_dense(dense, x, len(out_shape)))


@pytest.mark.parametrize("mode", MODES)
def test_variance_to_zero_equals_the_rounded_layer(mode):
    options: dict[str, Any] = {"variance_scale": 0.0, "variance_floor": 1e-9}
    layer = sampled_layer((7,), (6,), tuples=9, seed=0, **options).double()
    x = random_input(4, 7)
    torch.testing.assert_close(layer(x, mode=mode), layer(x, mode="rounded"))


# Values and bias.


def test_a_factor_lets_variances_fall_to_their_floor():
    layer = sampled_layer((6,), (7,), tuples=5, variance_floor=0.3, seed=0)
    free = layer.wiring().variances
    layer.variance_factor = torch.ones(())
    torch.testing.assert_close(layer.wiring().variances, free)
    layer.variance_factor.zero_()
    assert (layer.wiring().variances == torch.tensor(0.3)).all()
    assert not any("factor" in name for name in layer.state_dict())


@pytest.mark.parametrize("numbers", [[0, 1, 1, 2, 0, 2], [0] * 6], ids=str)
def test_shared_values_gather_the_gradients_of_their_tuples(numbers):
    numbers = torch.tensor(numbers)
    shared, single = KINDS["free"](share_values=numbers).double(), KINDS["free"]().double()
    state = shared.state_dict()
    del state["value_of"]
    single.load_state_dict({**state, "source.values": state["source.values"][numbers]})
    x = random_input(4, 5)
    outputs = [layer(x, generator=seeded(1)) for layer in (shared, single)]
    assert torch.equal(*outputs)
    gathered = gradients_of(shared, outputs[0].square().sum())
    separate = gradients_of(single, outputs[1].square().sum())
    sums = torch.zeros(len(numbers.unique())).double()
    summed = sums.index_add(0, numbers, separate["source.values"])
    assert_same(gathered, {**separate, "source.values": summed})


@pytest.mark.parametrize(
    ("fine", "options", "message"),
    [
        ({"tuples": 16}, {"tuples": 17}, "17 tuples compete for 16 places"),
        ({"tuples": 40, "context": 8}, {"tuples": 40, "context": 20}, "20 tuples compete for 16"),
        (
            {"template": fan_in((4,), (4,), 4)},
            {"template": fan_in((4,), (4,), 5)},
            "5 tuples compete for 4 places",
        ),
    ],
)
def test_more_tuples_than_places_are_warned_of(fine, options, message):
    assert sampled_layer((4,), (4,), **fine)(torch.ones(2, 4)).shape == (2, 4)
    with pytest.warns(UserWarning, match=f"^{message}"):
        layer = sampled_layer((4,), (4,), **options)
    assert layer(torch.ones(2, 4)).shape == (2, 4)


@pytest.mark.parametrize("features", [0, 2])
def test_bias_is_added_to_every_output(features):
    options: dict[str, Any] = {"tuples": 6, "seed": 0, "features": features}
    plain, biased = (sampled_layer((5,), (4, 2), bias=b, **options).eval() for b in (False, True))
    x = random_input(3, 5, *[2] * features, dtype=torch.float32)
    assert torch.equal(biased(x), plain(x))
    bias = random_input(4, 2, dtype=torch.float32)
    biased.load_state_dict({**biased.state_dict(), "bias": bias})
    shift = bias.view(4, 2, *[1] * features).expand_as(plain(x))
    torch.testing.assert_close(biased(x), plain(x) + shift)
    gradient = gradients_of(biased, biased(x, mode="expected").sum())["bias"]
    torch.testing.assert_close(gradient, torch.full((4, 2), 3.0 * 2**features))


@pytest.mark.parametrize(("edge", "mean"), [("sigmoid", 3.1092), ("clamp", 4.0), ("wrap", 1.0)])
def test_an_edge_bounds_means_that_are_far_out(edge, mean):
    layer = sampled_layer((5,), (5,), tuples=1, edge=edge)
    torch.nn.init.constant_(tuples_of(layer).raw_means, 1.25)
    torch.testing.assert_close(layer.wiring().means, torch.full((1, 2), mean), atol=1e-3, rtol=0)


# Templates.


def test_a_templated_layer_equals_a_layer_for_each_output():
    """A column that is fixed is a layer of its own, with a smaller space."""
    template = fan_in((3,), (5, 2), tuples=2)
    layer = sampled_layer((5, 2), (3,), template=template, window=(5, 2), seed=0).double()
    pairs = zip(*(tensor.split(2) for tensor in layer.wiring()), strict=True)
    places = list(itertools.product(range(5), range(2)))
    rows = [weights_over(Wiring(*pair), [places], (5, 2)).flatten() for pair in pairs]
    torch.testing.assert_close(matrix_of(layer, mode="expected"), torch.stack(rows))
