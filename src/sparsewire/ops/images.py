"""Pieces of small image networks, each one pass over memory where there are kernels.

The first layers of such a network are bound by memory: a 100 × 100 image with 32 channels is read
and written for the bias, for the activation and for the pool. Here a thin image (few channels) is
convolved with bias and activation in one go, and pool, bias and activation are one step. The plain
functions are the specification; kernels take their place on a GPU.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsewire._typing import Float
from sparsewire.ops._engines import uses_kernels

# Taps of a 3 × 3 window over this many channels, and one for the bias, fit into 32.
_THIN = 3
_WIDEST = 256  # channels that a kernel of `pool_relu` holds at once
_LARGEST_POOL = 16  # the number of a pixel in its square fits into eight bits


def conv_relu(
    x: Float[Tensor, "b c h w"], weight: Float[Tensor, "d c 3 3"], bias: Float[Tensor, " d"]
) -> Float[Tensor, "b d h w"]:
    """Convolve with a padding of 1, and keep what is positive.

    Examples:
        >>> x, weight = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 3, 3)
        >>> conv_relu(x, weight, torch.tensor([-5.0]))[0, 0]
        tensor([[0., 1., 0.],
                [1., 4., 1.],
                [0., 1., 0.]])
    """
    if _thin(x, weight):
        from sparsewire.ops._triton import image_library

        dtype = _half(x) or torch.promote_types(x.dtype, weight.dtype)
        return image_library.thin_conv(x, weight, bias, dtype)
    # Pooling over single pixels is a bias and an activation.
    return pool_relu(F.conv2d(x, weight, padding=1), bias, 1)


def pool_relu(
    x: Float[Tensor, "b d h w"], bias: Float[Tensor, " d"], size: int
) -> Float[Tensor, "b d i j"]:
    """Take the largest of every size × size square, add the bias, and keep what is positive.

    Bias and activation do not change which is the largest, so that this is what a convolution with
    that bias, an activation and a pool would give, for a fraction of the work.

    Examples:
        >>> pool_relu(torch.tensor([[[[1.0, 2.0], [3.0, -1.0]]]]), torch.tensor([0.5]), 2)
        tensor([[[[3.5000]]]])
    """
    if _plain(x) and _pooled_by_kernel(x, size):
        from sparsewire.ops._triton import image_library

        return image_library.pool_relu(x, bias, size)[0]
    largest = F.max_pool2d(x, size) if size > 1 else x
    return F.relu(largest + bias.to(x.dtype)[:, None, None])


def _thin(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel of thin images takes these: data, which need no gradient."""
    wide = weight.shape[0]
    return (
        _plain(x)
        and x.shape[1] <= _THIN
        and 16 <= wide <= _WIDEST
        and wide & (wide - 1) == 0
        and wide * x.numel() < 2**31
        and not x.requires_grad
        and x.is_contiguous()
    )


def _pooled_by_kernel(x: Tensor, size: int) -> bool:
    """Whether the kernel of the pool takes this image: channels innermost, and squares inside."""
    return (
        x.shape[1] <= _WIDEST
        and size <= min(_LARGEST_POOL, *x.shape[2:])
        and x.is_contiguous(memory_format=torch.channels_last)
    )


def _plain(x: Tensor) -> bool:
    """Whether kernels compute on such a tensor, and no transform of torch.func is at work."""
    return (
        torch._C._functorch.peek_interpreter_stack() is None  # pyright: ignore
        and 0 < x.numel() < 2**31
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and uses_kernels(x.device)
    )


def _half(x: Tensor) -> torch.dtype | None:
    """The dtype of autocast, where it is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
