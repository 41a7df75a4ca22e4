"""What `eval()` says of a layer whose evaluation differs from its training."""

import warnings

import pytest
import torch

import sparsewire as sw


def trained(layer: sw.SparseLayer) -> sw.SparseLayer:
    layer(torch.randn(3, *(n or 1 for n in layer.in_shape))).sum().backward()
    return layer


def wide(**options: object) -> sw.SparseLayer:
    return sw.SparseLayer((50,), (50,), 40, schedule=None, seed=0, **options)  # type: ignore


def crowded() -> sw.SparseLayer:
    layer = sw.SparseLayer((50,), (50,), 40, seed=0)
    with torch.no_grad():
        layer.source.pace.places[:25] = 0.5  # type: ignore
    return layer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (wide, r"SparseLayer may not evaluate as .* kept \d% of a value in training"),
        (crowded, r"SparseLayer may not evaluate as .*: 60% of 40 wires share a place"),
    ],
)
def test_eval_warns_once_and_says_what_to_do(make, message):
    layer = trained(make())
    with pytest.warns(UserWarning, match=message):
        layer.eval()
    trained(layer.train()).eval()


@pytest.mark.parametrize(
    "make",
    [
        lambda: sw.SparseLayer((50,), (50,), 40, seed=0),
        lambda: wide(evaluation="sampled"),
        lambda: wide(train_mode="straight-through"),
        lambda: sw.SparseLayer((None,), (50,), 40, schedule=None),
        lambda: sw.SparseLinear(50, 20, density=0.1),
    ],
)
def test_what_evaluates_as_it_was_trained_is_left_alone(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wide().eval()  # was not trained
        trained(make()).eval()
