"""Networks that read a number and return a key to sort it by."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsewire.annotations import Float
from sparsewire.checks import check_count
from sparsewire_lab.kernels import conv, conv_relu, pool_relu, relu_norm_pool

_FEATURES = 8
_WIDE = 6  # layers that read digits, up to the first linear one: the bulk of the arithmetic


class KeyNetwork(nn.Module):
    """The paper's key network: the same convolutions for each digit, then an MLP.

    Three blocks of three convolutions, of 16, 64 and 128 channels, each with batch normalisation
    and a pool at its end; linear layers of 256, 128 and 8; then 256 and 1 for all digits together.

    Args:
        places: Digits of a number.
        dropout: Share of the MLP's hidden layer that is dropped in training; the paper has none.
        tanh: Whether tanh is applied to the features of a digit, which makes them depend on the
            digit more than on how it is written; the paper does not.

    Examples:
        >>> KeyNetwork(places=3)(torch.rand(2, 4, 3, 28, 28)).shape  # sets, numbers
        torch.Size([2, 4])
    """

    def __init__(self, places: int = 3, *, dropout: float = 0.0, tanh: bool = False) -> None:
        super().__init__()
        check_count("places", places, least=1)
        self.read = nn.Sequential(
            ConvTriple(1, 16),
            ConvTriple(16, 64),
            ConvTriple(64, 128),
            nn.Flatten(),
            nn.Linear(128 * 3 * 3, 256),
            nn.ReLU(),
            nn.Linear(256, 128),
            nn.ReLU(),
            nn.Linear(128, _FEATURES),
            *([nn.Tanh()] if tanh else []),
        )
        between = [nn.ReLU(), nn.Dropout(dropout)] if dropout else [nn.ReLU()]
        self.key = nn.Sequential(nn.Linear(_FEATURES * places, 256), *between, nn.Linear(256, 1))

    def forward(self, x: Float[Tensor, "*b p h w"]) -> Float[Tensor, "*b"]:
        """Return the key of each number, given as pictures of its digits."""
        return self.judge(self.digits(x))

    def digits(self, x: Float[Tensor, "*b h w"]) -> Float[Tensor, "*b f"]:
        """Return the features of each digit; in evaluation they do not depend on the others."""
        hidden = self.read[:_WIDE](x.reshape(-1, 1, *x.shape[-2:]))
        # A thousand keys in order need more than the eight bits of bfloat16 under autocast.
        with torch.autocast(x.device.type, enabled=False):
            features = self.read[_WIDE:](hidden.to(self.key[0].weight.dtype))
        return features.view(*x.shape[:-2], _FEATURES)

    def judge(self, features: Float[Tensor, "*b p f"]) -> Float[Tensor, "*b"]:
        """Return the key of each number, given the features of its digits."""
        with torch.autocast(features.device.type, enabled=False):
            return self.key(features.flatten(-2)).squeeze(-1)


class ConvTriple(nn.Module):
    """Three 3 × 3 convolutions with ReLU, batch normalisation, and a pool that halves the image.

    Args:
        before: Channels of the input.
        after: Channels of all three.
    """

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        # No bias, as in the paper: a normalisation follows.
        self.third = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(after)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d i j"]:
        """Return the features of an image."""
        for layer in (self.first, self.second):
            assert layer.bias is not None
            x = conv_relu(x, layer.weight, layer.bias)
        return relu_norm_pool(conv(x, self.third.weight), self.norm, 2)


class WideKeyNetwork(nn.Module):
    """The network of the four-digit protocol: one picture of the number, two convolutions.

    Convolutions of 5 × 5 with 32 and 64 channels, each with a pool, then linear layers of 64 and 1.

    Args:
        places: Digits of a number, side by side.

    Examples:
        >>> WideKeyNetwork(places=4)(torch.rand(2, 5, 4, 28, 28)).shape
        torch.Size([2, 5])
    """

    def __init__(self, places: int = 4) -> None:
        super().__init__()
        check_count("places", places, least=1)
        width = ((28 * places - 4) // 2 - 4) // 2
        self.first = nn.Conv2d(1, 32, 5)
        self.second = nn.Conv2d(32, 64, 5)
        self.hidden = nn.Linear(64 * 4 * width, 64)
        self.key = nn.Linear(64, 1)

    def forward(self, x: Float[Tensor, "*b p h w"]) -> Float[Tensor, "*b"]:
        """Return the key of each number, given as pictures of its digits."""
        *batch, places, height, width = x.shape
        wide = x.transpose(-3, -2).reshape(-1, 1, height, places * width)
        for layer in (self.first, self.second):
            assert layer.bias is not None
            # ReLU and max pool commute.
            wide = pool_relu(conv(wide, layer.weight, padding=0), layer.bias, 2)
        with torch.autocast(x.device.type, enabled=False):
            hidden = F.relu(self.hidden(wide.flatten(1).to(self.key.weight.dtype)))
            return self.key(hidden).view(batch)
