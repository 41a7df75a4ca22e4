"""The method itself: a free layer learns the identity matrix from samples of its wiring."""

import pytest
import torch
from tests.helpers import sampled_layer


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_identity_is_learned(seed):
    torch.manual_seed(seed)
    options = {"values": 1.0, "learn_values": False, "local_samples": 1, "global_samples": 2}
    layer = sampled_layer((8,), (8,), tuples=8, seed=seed, **options)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02, fused=True)
    for _ in range(1_000):
        x = torch.randn(64, 8)
        loss = (layer(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x = torch.randn(10_000, 8)
    assert (layer.eval()(x) - x).square().mean() < 1e-3
