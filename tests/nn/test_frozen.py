"""Frozen layers: the map of the layer in evaluation, as plain tensors, in files and exported."""

import copy
import io
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import DTYPES, assert_same, pairs, seeded
from tests.nn.dense import (
    KINDS,
    apply_dense,
    empty_like,
    input_for,
    matrix_of,
    of_every_kind,
    random_input,
    set_raw,
    trained,
)
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from sparsewire import FrozenLayer, SparseLayer
from sparsewire.nn import places


@pytest.fixture(autouse=True)
def _as_large_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute small products, too, as those of large layers."""
    monkeypatch.setattr(places, "SMALL_PRODUCTS", 0)


# The same map.


@pairs(
    kind=list(KINDS),
    prefix=[(), (3,), (2, 3), (0,)],
    features=[0, 1, 2],
    dtype=DTYPES,
    converted=[False, True],
)
def test_equals_the_layer_in_evaluation(kind, prefix, features, dtype, converted):
    """Values that meet are added in advance, and rounded to the dtype of the layer."""
    layer = trained(kind, features=features)
    layer = layer.to(dtype) if converted else layer
    x = input_for(layer, *prefix, dtype=dtype)
    frozen, tolerance = layer.freeze(), max(4 * torch.finfo(dtype).eps, 1e-5)
    y = frozen(x)
    assert y.dtype == dtype
    assert frozen.values.dtype == (dtype if converted else torch.float32)
    torch.testing.assert_close(y, layer(x), rtol=tolerance, atol=tolerance)


@of_every_kind
def test_all_forms_agree_with_the_forward_pass(kind):
    """Its elements are in order, without repeats or zeros."""
    frozen = trained(kind).freeze()
    frozen.bias = None
    matrix = matrix_of(frozen)
    shape = (*frozen.out_shape, *frozen.in_shape)
    assert frozen.coo().shape == frozen.dense().shape == shape
    assert frozen.coo().is_coalesced()
    torch.testing.assert_close(frozen.dense().reshape(matrix.shape), matrix)
    torch.testing.assert_close(frozen.coo().to_dense(), frozen.dense())
    assert frozen.csr().layout == torch.sparse_csr
    torch.testing.assert_close(frozen.csr().to_dense(), matrix)
    torch.testing.assert_close(frozen.dense()[tuple(frozen.indices.T)], frozen.values)
    flat = frozen.rows * input_for(frozen).numel() + frozen.cols
    assert (flat.diff() > 0).all()
    assert frozen.values.all()
    assert 0 < len(flat) <= matrix.numel()


def test_values_that_meet_are_added_and_those_that_cancel_dropped():
    layer = SparseLayer((5,), (3,), tuples=5, edge="clamp", schedule=None)
    places = [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.5, 0.5], [0.5, 0.5]]
    set_raw(layer, places, values=[1.0, 2.0, 3.0, 4.0, -4.0])
    frozen = layer.freeze()
    assert frozen.rows.tolist() == [0, 2]
    assert frozen.cols.tolist() == [4, 0]
    assert frozen.values.tolist() == [5.0, 1.0]
    assert frozen.indices.tolist() == [[0, 4], [2, 0]]


@pytest.mark.parametrize(("in_shape", "out_shape"), [((), (4,)), ((4,), ())], ids=str)
def test_a_single_number_in_or_out(in_shape, out_shape):
    layer = SparseLayer(in_shape, out_shape, tuples=3, seed=0).eval()
    frozen, x = layer.freeze(), input_for(layer, 2)
    torch.testing.assert_close(frozen(x), layer(x))
    torch.testing.assert_close(frozen(x), apply_dense(frozen.dense(), x, len(out_shape)))


def test_freezing_takes_a_snapshot_with_gradients_for_the_input_alone():
    layer = trained("free")
    assert not layer.freeze().training
    frozen, x = layer.train().freeze(), input_for(layer, 3)
    assert frozen.training
    expected = layer(x, mode="rounded").detach()
    assert layer.training
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    torch.testing.assert_close(frozen(x), expected)
    assert list(frozen.parameters()) == []
    assert not frozen(x).requires_grad
    assert not any(buffer.requires_grad for buffer in frozen.buffers())
    frozen(x.requires_grad_()).sum().backward()
    torch.testing.assert_close(x.grad, frozen.dense().sum(0).expand(3, 5))


def test_sizes_left_open_are_settled():
    layer = SparseLayer((None, 3), (4,), tuples=6, seed=0).eval()
    for size in (2, 7):
        x = random_input(5, size, 3, dtype=torch.float32)
        frozen = layer.freeze(in_shape=(size, 3))
        assert frozen.in_shape == (size, 3)
        torch.testing.assert_close(frozen(x), layer(x))


# Training.


@pairs(
    kind=["free", "high rank", "template", "convolution"],
    features=[0, 1, 2],
    prefix=[(), (3,), (2, 5)],
    small=[0, 2**14],
)
def test_derivatives_of_a_trainable_layer_are_exact(kind, features, prefix, small, monkeypatch):
    monkeypatch.setattr(places, "SMALL_PRODUCTS", small)
    frozen = trained(kind, features=features).double().freeze(trainable=True)
    x = input_for(frozen, *prefix, dtype=torch.float64).requires_grad_()
    names, parameters = zip(*frozen.named_parameters(), strict=True)
    assert names == ("values", "bias")

    def call(x: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(frozen, dict(zip(names, parameters, strict=True)), x)

    assert gradcheck(call, (x, *parameters))
    assert gradgradcheck(call, (x, *parameters))


@pairs(dtype=[torch.float16, torch.bfloat16], small=[0, 2**14])
def test_gradients_of_short_floats_are_computed_in_float32(dtype, small, monkeypatch):
    monkeypatch.setattr(places, "SMALL_PRODUCTS", small)
    frozen = trained("free").freeze(trainable=True)
    x, grad = (torch.randn(90, n, generator=seeded(n)).to(dtype) for n in (5, 4))
    frozen(x.requires_grad_()).backward(grad)
    assert frozen.values.grad is not None
    assert isinstance(frozen.bias, nn.Parameter)
    elements = (grad.float().T @ x.detach().float())[frozen.rows, frozen.cols]
    torch.testing.assert_close(frozen.values.grad, elements)
    torch.testing.assert_close(frozen.bias.grad, grad.float().sum(0))
    torch.testing.assert_close(x.grad, (grad.float() @ frozen.dense().detach()).to(dtype))


def test_all_forms_of_a_trainable_layer_have_gradients():
    frozen = trained("free").freeze(trainable=True)
    for matrix in (frozen.dense(), frozen.coo().to_dense(), frozen.csr().to_dense()):
        (gradient,) = torch.autograd.grad(matrix.square().sum(), frozen.values)
        torch.testing.assert_close(gradient, 2 * frozen.values.detach())


def test_values_are_learned_at_fixed_places():
    """Least squares, whose solution is known."""
    true = trained("free").freeze()
    frozen = empty_like(true, trainable=True)
    zero = {"values": torch.zeros_like(true.values), "bias": torch.zeros(4)}
    frozen.load_state_dict({**true.state_dict(), **zero})
    optimizer = torch.optim.LBFGS(frozen.parameters(), line_search_fn="strong_wolfe")
    x = input_for(frozen, 30)

    def loss() -> float:
        optimizer.zero_grad()
        error = (frozen(x) - true(x)).square().mean()
        error.backward()
        return error.item()

    for _ in range(5):
        optimizer.step(loss)
    assert_same(frozen.state_dict(), true.state_dict(), rtol=1e-3, atol=1e-3)


# Copies and export.


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))])
def test_copies_are_equal(copied, trainable):
    frozen = trained("convolution").freeze(trainable=trainable)
    x = input_for(frozen, 3)
    expected, other = frozen(x), copied(frozen)
    assert torch.equal(other(x), expected)
    assert len(list(other.parameters())) == 2 * trainable


def test_the_repr_says_what_matters():
    shapes = r"in_shape=\(5,\), out_shape=\(4,\)"
    text = repr(trained("free").freeze())
    assert re.match(rf"FrozenLayer\({shapes}, nonzero=\d, bias=True\)", text)
    assert "trainable=True" in repr(trained("free").freeze(trainable=True))


def exported(frozen: FrozenLayer) -> dict[str, Any]:
    """Arguments of the exporters: an example, and a batch of any size."""
    return {"args": (input_for(frozen, 3),), "dynamic_shapes": {"x": {0: torch.export.Dim("b")}}}


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch 2.11 loading
@pytest.mark.parametrize("kind", ["free", "high rank", "template", "convolution"])
def test_an_exported_program_gives_the_same_for_any_batch(kind):
    layer = trained(kind, features=1 if kind == "template" else 0)
    frozen = layer.freeze(trainable=kind == "free").eval()
    file = io.BytesIO()
    torch.export.save(torch.export.export(frozen, **exported(frozen)), file)
    file.seek(0)
    program = torch.export.load(file).module()
    for batch in (1, 3, 8):
        x = input_for(frozen, batch)
        torch.testing.assert_close(program(x), frozen(x))


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_onnx_gives_the_same_for_any_batch(trainable: bool, tmp_path: Path):
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    runtime = pytest.importorskip("onnxruntime")
    frozen = trained("high rank").freeze(trainable=trainable).eval()
    program = torch.onnx.export(frozen, dynamo=True, verbose=False, **exported(frozen))
    assert program is not None
    program.save(tmp_path / "frozen.onnx")
    session = runtime.InferenceSession(tmp_path / "frozen.onnx", providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    for batch in (1, 3, 8):
        x = input_for(frozen, batch)
        (y,) = session.run(None, {entry.name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(y), frozen(x).detach())
