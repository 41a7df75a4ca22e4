"""Whole models: their linear and convolutional layers made sparse, their sparse layers frozen."""

from collections.abc import Callable, Collection, Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from sparsewire.annotations import Float
from sparsewire.checks import check_range
from sparsewire.nn.hyper import HyperLayer
from sparsewire.nn.sparse import SparseLinear

Pair = tuple[int, int]


class SparseConv2d(nn.Module):
    """A sparse `nn.Conv2d` that learns which channels and offsets each output channel reads.

    It reads every window of the image as the input of a `SparseLinear` whose inputs are arranged
    as (in_channels, height, width) of the kernel.

    Args:
        in_channels: Channels of the image.
        out_channels: Channels of the output.
        kernel_size: Height and width of the kernel.
        stride: Step between windows.
        padding: Zeros around the image; `"same"` keeps its size, where the stride is 1.
        dilation: Step between the inputs of a window.
        **options: Arguments of `SparseLinear`: `density` or `fan_in`, `bias`, `schedule`, …

    Examples:
        >>> import sparsewire as sw
        >>> layer = sw.SparseConv2d(3, 8, kernel_size=7, padding="same", density=0.05)
        >>> layer(torch.randn(2, 3, 20, 24)).shape
        torch.Size([2, 8, 20, 24])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Pair,
        stride: int | Pair = 1,
        padding: int | Pair | str = 0,
        dilation: int | Pair = 1,
        **options: Any,
    ) -> None:
        super().__init__()
        # Sizes are checked and completed as those of the layer whose place this takes.
        sizes = kernel_size, stride, padding, dilation
        like = nn.Conv2d(in_channels, out_channels, *sizes, device="meta")
        self.kernel_size: Any = like.kernel_size
        self.stride: Any = like.stride
        self.dilation: Any = like.dilation
        reach = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        ends = {"same": [(n // 2, n - n // 2) for n in reach], "valid": [(0, 0), (0, 0)]}
        given: Any = like.padding
        by_axis = ends[given] if isinstance(given, str) else [(n, n) for n in given]
        self.padding = [n for pair in reversed(by_axis) for n in pair]
        window = in_channels, *self.kernel_size
        count = window[0] * window[1] * window[2]
        self.linear: nn.Module = SparseLinear(count, out_channels, in_shape=window, **options)

    def forward(self, x: Float[Tensor, "b channels h w"]) -> Float[Tensor, "b out h2 w2"]:
        """Transform a batch of images."""
        if x.dim() != 4:
            raise ValueError(f"x must have shape (b, channels, h, w); got {tuple(x.shape)}")
        x = F.pad(x, self.padding)
        places = [
            (n - d * (k - 1) - 1) // s + 1
            for n, k, d, s in zip(
                x.shape[2:], self.kernel_size, self.dilation, self.stride, strict=True
            )
        ]
        windows = F.unfold(x, self.kernel_size, self.dilation, stride=self.stride)
        return self.linear(windows.mT).mT.unflatten(-1, places)


def sparsify(
    module: nn.Module,
    density: float,
    *,
    keep: Collection[str] | None = None,
    report: Callable[[str], object] | None = print,
    **options: Any,
) -> nn.Module:
    """Replace the `nn.Linear` and `nn.Conv2d` layers of a model by sparse ones, in place.

    The sparse layers are new: they have the sizes, bias, device and dtype of those they replace,
    and none of their weights. Make the optimiser afterwards.

    Args:
        module: The model. If it is such a layer itself, use what is returned.
        density: Share of each weight that is not zero.
        keep: Names of layers that stay as they are, as in `named_modules`; the last linear layer
            if not given.
        report: Called with a line for each layer; None for silence.
        **options: More arguments of `SparseLinear`, such as `schedule` or `seed`.

    Examples:
        >>> import sparsewire as sw
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 10))
        >>> model = sw.sparsify(model, density=0.05)
        0: Linear(64, 300) has 900 wires for 19,200 weights
        2: Linear(300, 10) stays
    """
    check_range("density", density, 0.0, 1.0)
    found = {name: m for name, m in _modules(module) if type(m) in (nn.Linear, nn.Conv2d)}
    if keep is None:
        keep = [name for name, m in found.items() if type(m) is nn.Linear][-1:]
    if unknown := set(keep) - found.keys():
        raise ValueError(
            f"keep must name linear and convolutional layers, some of {', '.join(found)}; "
            f"got {', '.join(sorted(unknown))}"
        )
    made: dict[int, nn.Module] = {}
    for name, old in found.items():
        new = None if name in keep else made.get(id(old)) or _sparse(old, density, options)
        if report is not None:
            report(f"{name or 'module'}: {_told(old, new)}")
        if new is not None:
            made[id(old)] = new
            module = _replace(module, name, new)
    return module


def freeze(module: nn.Module, *, trainable: bool = False) -> nn.Module:
    """Replace the sparse layers of a model by their frozen form, in place.

    Layers whose wiring depends on the input stay as they are.

    Args:
        module: The model. If it is such a layer itself, use what is returned.
        trainable: Whether values and biases can still be learned.

    Examples:
        >>> import sparsewire as sw
        >>> from torch import nn
        >>> model = nn.Sequential(sw.SparseLinear(64, 30, density=0.1), nn.ReLU())
        >>> sw.freeze(model.eval())
        Sequential(
          (0): FrozenLayer(in_shape=(64,), out_shape=(30,), nonzero=180, bias=True)
          (1): ReLU()
        )
    """
    frozen: dict[int, nn.Module] = {}
    for name, old in list(_modules(module)):
        if isinstance(old, HyperLayer) and not old.adaptive:
            new = frozen.get(id(old)) or old.freeze(trainable=trainable)
            frozen[id(old)] = new
            module = _replace(module, name, new)
    return module


def _modules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return module.named_modules(remove_duplicate=False)


def _sparse(old: nn.Module, density: float, options: dict[str, Any]) -> nn.Module | None:
    """Return the sparse layer that takes the place of a layer, if there is one."""
    weight: Any = old.weight
    options = {"bias": old.bias is not None, "density": density} | options
    options |= {"device": weight.device, "dtype": weight.dtype}
    if isinstance(old, nn.Linear):
        return SparseLinear(old.in_features, old.out_features, **options).train(old.training)
    if not isinstance(old, nn.Conv2d) or old.groups != 1 or old.padding_mode != "zeros":
        return None
    sizes: Any = old.kernel_size, old.stride, old.padding, old.dilation
    new = SparseConv2d(old.in_channels, old.out_channels, *sizes, **options)
    return new.train(old.training)


def _told(old: nn.Module, new: nn.Module | None) -> str:
    weight: Any = old.weight
    sizes = ", ".join(str(n) for n in reversed(weight.shape[:2]))
    what = f"{type(old).__name__}({sizes})"
    if new is None:
        return f"{what} stays"
    linear: Any = getattr(new, "linear", new)
    wires = linear.fan_in * linear.out_features
    return f"{what} has {wires:,} wires for {weight.numel():,} weights"


def _replace(module: nn.Module, name: str, new: nn.Module) -> nn.Module:
    if not name:
        return new
    parent, _, child = name.rpartition(".")
    setattr(module.get_submodule(parent), child, new)
    return module
