"""Networks that give numbers their keys: built as in the papers, and read digit by digit."""

from typing import Any

import pytest
import torch
from tests.helpers import seeded
from torch import Tensor, nn

from sparsewire_lab.sorting.networks import ConvTriple, KeyNetwork, WideKeyNetwork

KINDS: dict[str, type[nn.Module]] = {"paper": KeyNetwork, "wide": WideKeyNetwork}
of_every_kind = pytest.mark.parametrize("kind", KINDS)


def make(kind: str, places: int = 2, **options: Any) -> Any:
    torch.manual_seed(0)
    return KINDS[kind](places, **options)


def some_numbers(*shape: int) -> Tensor:
    """Noise, some of it brighter: before training, keys hardly tell pictures apart otherwise."""
    ink = torch.rand(*shape, 1, 1, generator=seeded(2))
    return ink * torch.rand(*shape, 28, 28, generator=seeded(1))


def ready(kind: str, places: int = 2) -> Any:
    """In evaluation, with statistics of such pictures."""
    model = make(kind, places)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 1.0
    with torch.no_grad():
        model(some_numbers(30, places))
    return model.eval()


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


# How they are built.


@pytest.mark.parametrize("places", [1, 3, 6])
def test_the_paper_s_network_has_the_layers_of_its_table(places):
    """Convolutions, the last of three without biases, then normalisation, then linear layers."""
    blocks = 0
    for before, after in ((1, 16), (16, 64), (64, 128)):
        convolutions = (9 * before * after + after) + (9 * after * after + after) + 9 * after**2
        blocks += convolutions + 2 * after
    assert blocks == 457_168
    linear = (1152 * 256 + 256) + (256 * 128 + 128) + (128 * 8 + 8)
    model = make("paper", places)
    triple = [nn.Conv2d] * 3 + [nn.BatchNorm2d]
    assert [[type(layer) for layer in block.children()] for block in model.read[:3]] == [triple] * 3
    assert [type(layer) for layer in model.read[4::2]] == [nn.Linear] * 3
    assert [type(layer) for layer in model.read[5::2]] == [nn.ReLU] * 2
    assert [type(layer) for layer in model.key] == [nn.Linear, nn.ReLU, nn.Linear]
    assert count(model.read) == blocks + linear
    assert count(model.key) == (8 * places * 256 + 256) + (256 + 1)


@pytest.mark.parametrize(("places", "width"), [(1, 4), (2, 11), (4, 25), (5, 32)])
def test_the_wide_network_has_so_many_parameters(places, width):
    """28 rows become 24, 12, 8 and 4; columns 28 k − 4, half, − 4, half."""
    model = make("wide", places)
    assert [c.kernel_size for c in (model.first, model.second)] == [(5, 5)] * 2
    linear = (64 * 4 * width * 64 + 64) + (64 + 1)
    assert count(model) == (25 * 32 + 32) + (25 * 32 * 64 + 64) + linear


def test_a_block_does_what_its_layers_do_one_by_one():
    """Activations follow the convolutions, normalisation the third activation, then the pool."""
    torch.manual_seed(0)
    block, x = ConvTriple(2, 5), torch.randn(3, 2, 7, 6, generator=seeded(3))
    again = nn.Sequential(
        block.first, nn.ReLU(), block.second, nn.ReLU(), block.third, nn.ReLU(), nn.BatchNorm2d(5),
        nn.MaxPool2d(2),
    )  # fmt: skip
    torch.testing.assert_close(block(x), again(x))
    torch.testing.assert_close(block.norm.running_mean, again[6].running_mean)
    torch.testing.assert_close(block.norm.running_var, again[6].running_var)
    torch.testing.assert_close(block.eval()(x), again.eval()(x))


def test_dropout_comes_between_the_last_two_layers_where_it_was_asked_for():
    model = make("paper", dropout=0.25)
    assert [type(layer) for layer in model.key] == [nn.Linear, nn.ReLU, nn.Dropout, nn.Linear]
    assert model.key[2].p == 0.25
    x = some_numbers(2, 3, 2)
    model(x)  # statistics
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


@torch.no_grad()
def test_features_pass_through_tanh_where_it_was_asked_for():
    plain, bounded = make("paper").eval(), make("paper", tanh=True).eval()
    x = 20 * some_numbers(3, 2)
    torch.testing.assert_close(bounded.digits(x), plain.digits(x).tanh())
    assert sum(p.numel() for p in bounded.parameters()) == count(plain)


# What they return.


@of_every_kind
@pytest.mark.parametrize("batch", [(), (1,), (5,), (2, 3), (1, 2, 2)], ids=str)
@pytest.mark.parametrize("places", [1, 2, 4])
@torch.no_grad()
def test_there_is_one_key_for_each_number(places, batch, kind):
    model = ready(kind, places)
    keys = model(some_numbers(*batch, places))
    assert keys.shape == batch
    assert keys.dtype == torch.float32
    assert keys.unique().numel() == keys.numel()
    one_by_one = [model(x) for x in some_numbers(*batch, places).reshape(-1, places, 28, 28)]
    torch.testing.assert_close(keys.flatten(), torch.stack(one_by_one), rtol=1e-4, atol=1e-5)


@of_every_kind
def test_double_precision_stays_and_numbers_without_digits_are_refused(kind):
    assert ready(kind).double()(some_numbers(3, 2).double()).dtype == torch.float64
    with pytest.raises(ValueError, match=r"^places must be at least 1; got 0$"):
        KINDS[kind](0)


@torch.no_grad()
def test_every_digit_is_read_by_the_same_weights():
    """The key is that of the features of all digits, one after the other."""
    model = ready("paper", 3)
    x = some_numbers(4, 3)
    features = [model.read(x[:, place].unsqueeze(1)) for place in range(3)]
    assert [f.shape for f in features] == [(4, 8)] * 3
    torch.testing.assert_close(model(x), model.key(torch.cat(features, dim=1))[:, 0])
    # Which digit is where does count.
    assert ((model(x) - model(x[:, [1, 2, 0]])).abs() > 1e-4).all()


@torch.no_grad()
def test_the_wide_network_reads_digits_side_by_side():
    model = ready("wide", 3)
    x = some_numbers(4, 3)
    side_by_side = torch.cat([x[:, 0], x[:, 1], x[:, 2]], dim=-1)
    assert side_by_side.shape == (4, 28, 84)
    want = nn.Sequential(
        model.first, nn.ReLU(), nn.MaxPool2d(2), model.second, nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), model.hidden, nn.ReLU(), model.key,
    )(side_by_side.unsqueeze(1))[:, 0]  # fmt: skip
    torch.testing.assert_close(model(x), want)


# How they learn.


@of_every_kind
@pytest.mark.parametrize("places", [1, 3])
def test_every_parameter_and_every_digit_gets_a_gradient(kind, places):
    model, x = make(kind, places), some_numbers(4, 3, places).requires_grad_()
    keys = model(x)
    keys.mul(torch.randn(keys.shape, generator=seeded(2))).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name
    assert x.grad is not None
    assert x.grad.flatten(3).any(-1).all()


@of_every_kind
def test_keys_are_in_full_precision_where_the_rest_is_not(kind):
    """Half precision has 8 bits: what needs more cannot have come from it."""
    model, seen = ready(kind), []
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    for layer in (linear[0], linear[-1]):
        layer.register_forward_hook(lambda _, inputs, output: seen.append(inputs[0]))
    x = some_numbers(8, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        keys = model(x)
    convolved, hidden = seen
    assert torch.equal(convolved, convolved.bfloat16().float())
    for found in (hidden, keys):
        assert found.dtype == torch.float32
        assert not torch.equal(found, found.bfloat16().float())
    torch.testing.assert_close(keys, model(x), rtol=0, atol=0.05)
    keys.sum().backward()
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}
