"""The paper's network with fused blocks computes what the plain one does."""

import pytest
import torch

from sparsewire.nn.source_network import SourceNetwork
from sparsewire_lab.attention.convnet import ConvNet, FusedPair


@pytest.mark.parametrize("sides", [(100, 100), (32, 48)], ids=str)
def test_fused_blocks_agree_with_plain_ones(sides):
    plain = SourceNetwork(channels=1, outputs=4, grid=(2, 3)).double()
    net = ConvNet(channels=1, outputs=4, grid=(2, 3)).double()
    net.load_state_dict(plain.state_dict())
    assert all(type(pair) is FusedPair for pair in net.features)
    x = torch.rand(2, 1, *sides, dtype=torch.float64)
    torch.testing.assert_close(net(x), plain(x))
    gradients = [
        torch.autograd.grad(n(x).square().sum(), list(n.parameters())) for n in (net, plain)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)
