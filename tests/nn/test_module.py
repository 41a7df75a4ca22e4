"""Layers as PyTorch modules: copies, files, dtypes, autocast, poisoned memory."""

import copy
import io
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import assert_same, sampled_layer, seeded
from tests.nn.dense import (
    KINDS,
    MODES,
    Look,
    gradients_of,
    input_for,
    random_input,
    randomise,
)
from torch import Tensor, nn

from sparsewire import HyperLayer, Wiring
from sparsewire.ops import contract_reference, mark_repeats, spread_reference

LAYERS: dict[str, Callable[..., HyperLayer]] = {
    **KINDS,
    "adaptive": lambda **options: HyperLayer(Look((5,), 6, 2), (5,), (4,), **options),
}

of_every_kind = pytest.mark.parametrize("kind", LAYERS)


def outputs(
    layer: HyperLayer, dtype: torch.dtype = torch.float32, x: Tensor | None = None
) -> dict[str, Tensor]:
    """The output in every mode, by name."""
    x = input_for(layer, 3, dtype=dtype) if x is None else x
    return {mode: layer(x, mode=mode, generator=seeded(1)) for mode in MODES}


# Copies and files.


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
@of_every_kind
def test_copies_are_equal_and_independent(kind, copied):
    layer = LAYERS[kind](bias=True)
    layer(input_for(layer, 3)).sum().backward()
    expected = {name: tensor.detach().clone() for name, tensor in outputs(layer).items()}
    other = copied(layer)
    assert_same(outputs(other), expected, rtol=0, atol=0)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    assert_same(outputs(layer), expected, rtol=0, atol=0)
    assert not torch.equal(outputs(other)["rounded"], expected["rounded"])


@of_every_kind
def test_the_state_goes_through_a_file(kind):
    layer = randomise(LAYERS[kind](bias=True))
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = LAYERS[kind](bias=True)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert_same(outputs(other), outputs(layer), rtol=0, atol=0)


def test_the_state_holds_raw_numbers_and_what_they_belong_to():
    layer = KINDS["shared values"](bias=True, context=3)
    names = {"source.raw_means", "source.raw_variances", "source.values"}
    assert set(layer.state_dict()) == names | {"bias", "value_of"}
    assert set(KINDS["template"]().state_dict()) == names | {"layout.table"}
    assert set(KINDS["fixed values"]().state_dict()) == names


@pytest.mark.parametrize(
    ("kind", "key", "name"),
    [("template", "layout.table", "template"), ("shared values", "value_of", "share_values")],
)
def test_the_state_of_another_template_is_refused(kind, key, name):
    layer, x = KINDS[kind](), input_for(KINDS[kind](), 3)
    before = layer(x, mode="rounded")
    state = {k: v + 1 if v.is_floating_point() else v for k, v in layer.state_dict().items()}
    for other in (state[key].flip(0), state[key][1:]):
        with pytest.raises(ValueError, match=f"{name} must be the one that the state was saved"):
            layer.load_state_dict({**state, key: other})
    assert torch.equal(layer(x, mode="rounded"), before)
    layer.load_state_dict(state)
    assert not torch.equal(layer(x, mode="rounded"), before)


@pytest.mark.parametrize("in_shape", [(5, 4), (None, 4)], ids=str)
def test_the_state_of_another_shape_is_refused(in_shape):
    """The parameters fit any shape of the same rank; what they mean does not."""
    layer = sampled_layer(in_shape, (6,), tuples=6, seed=0)
    before = copy.deepcopy(layer.state_dict())
    for ins, outs in (((5, 3), (6,)), ((5, 4), (12,)), ((5,), (6, 4))):
        file = io.BytesIO()
        torch.save(nn.Sequential(sampled_layer(ins, outs, tuples=6)).state_dict(), file)
        file.seek(0)
        message = f"in_shape {in_shape} and out_shape (6,); got in_shape {ins} and out_shape {outs}"
        with pytest.raises(ValueError, match=re.escape(message)):
            nn.Sequential(layer).load_state_dict(torch.load(file, weights_only=True))
    assert_same(layer.state_dict(), before, rtol=0, atol=0)
    for state in (sampled_layer((5, 4), (6,), tuples=6, seed=1).state_dict(), dict(before)):
        layer.load_state_dict(state)
        assert_same(layer.state_dict(), state, rtol=0, atol=0)


@of_every_kind
def test_moving_to_a_device_moves_everything(kind):
    layer = LAYERS[kind](bias=True).to("meta")
    tensors = [*layer.parameters(), *layer.buffers()]
    assert all(tensor.is_meta for tensor in tensors)


def test_the_same_seed_gives_the_same_layer_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    first, same, other = (KINDS["free"](seed=seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert_same(first, same, rtol=0, atol=0)
    assert not torch.equal(first["source.raw_means"], other["source.raw_means"])
    torch.manual_seed(1)
    first = sampled_layer((5,), (4,), tuples=6).state_dict()
    assert not torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert_same(sampled_layer((5,), (4,), tuples=6).state_dict(), first, rtol=0, atol=0)


def test_the_repr_says_what_matters():
    text = repr(KINDS["student"](wirings=3, evaluation="expected", context=2))
    sizes = "in_shape=(5,), out_shape=(4,), local_samples=2, global_samples=8, context=2, wirings=3"
    source = "FreeTuples(tuples=6, rank=2, values=learned, edge=wrap)"
    choices = "kernel=student evaluation=expected"
    for part in ("SparseLayer(", *sizes.split(", "), *choices.split(), source):
        assert part in text
    assert "values=fixed" in repr(KINDS["fixed values"]())


# Precision.


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@of_every_kind
def test_inputs_and_layers_of_every_dtype(kind, dtype):
    """The output has the dtype of the input; in between, nothing is narrower than float32."""
    layer = LAYERS[kind](bias=True)
    if kind in KINDS and dtype != torch.float64:
        x = input_for(layer, 3).to(dtype)
        wide = {name: y.to(dtype) for name, y in outputs(layer, x=x.float()).items()}
        assert_same(outputs(layer, x=x), wide)
    single = outputs(layer)
    layer = layer.to(dtype)
    for mode, y in outputs(layer, dtype).items():
        assert y.dtype == dtype
        assert y.isfinite().all(), mode
        if dtype == torch.float64:
            torch.testing.assert_close(y.float(), single[mode], rtol=1e-4, atol=1e-5)
    gradients = gradients_of(layer, layer(input_for(layer, 3, dtype=dtype)).sum())
    assert all(g.dtype == dtype and g.isfinite().all() for g in gradients.values())


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_leaves_the_proportions_in_float32(kind):
    layer = KINDS[kind](bias=True)
    x = input_for(layer, 3)
    draw, y = layer.sample(generator=seeded(1)), layer(x, generator=seeded(1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast_draw, cast_y = layer.sample(generator=seeded(1)), layer(x, generator=seeded(1))
        narrow = layer(x.bfloat16(), generator=seeded(1))
    assert cast_draw.values.dtype == torch.float32
    assert_same(cast_draw._asdict(), draw._asdict(), rtol=0, atol=0)
    torch.testing.assert_close(cast_y, y)
    torch.testing.assert_close(narrow.float(), y, rtol=2e-2, atol=2e-2)


# Memory that nobody wrote, and other states of PyTorch.


def forward_and_backward(layer: HyperLayer, x: Tensor, **call: object) -> dict[str, Tensor]:
    y = layer(x, **call)
    return {"output": y, **gradients_of(layer, y.square().sum())}


@pytest.mark.parametrize("density", ["gaussian", "student"])
@pytest.mark.parametrize("context", [300, 20])
def test_a_layer_whose_work_is_done_in_parts_equals_the_specification(context, density):
    """Large enough for chunks of the table and of the products."""
    options: dict[str, Any] = {"context": context, "kernel": density, "seed": 0}
    layer = sampled_layer((63,), (61,), tuples=300, **options).double()
    x = random_input(37, 63)
    got = forward_and_backward(layer, x, generator=seeded(1))

    indices = layer.sample(generator=seeded(1)).indices
    wiring = Wiring(*(tensor.unflatten(0, (-1, context)) for tensor in layer.wiring()))
    shares = spread_reference(*wiring, indices, mark_repeats(indices, (61, 63)), density)
    y = contract_reference(indices.flatten(0, 1), shares.flatten(), x, (61,))
    want = {"output": y, **gradients_of(layer, y.square().sum())}
    assert_same(got, want)


@of_every_kind
def test_inference_mode_leaves_nothing_behind(kind):
    layer = LAYERS[kind](bias=True)
    x = input_for(layer, 3)
    expected = forward_and_backward(copy.deepcopy(layer), x, generator=seeded(1))
    with torch.inference_mode():
        inferred = outputs(layer)
    assert_same(inferred, outputs(layer), rtol=0, atol=0)
    assert all(y.is_inference() for y in inferred.values())
    assert_same(forward_and_backward(layer, x, generator=seeded(1)), expected, rtol=0, atol=0)
