"""The model that the arguments of the attention experiment describe."""

from typing import TYPE_CHECKING, Any

from torch import nn

from sparsewire.nn.frames import COUNTS
from sparsewire.nn.glimpse import Glimpse
from sparsewire.nn.source_network import grid_for
from sparsewire_lab.attention.convnet import ConvNet
from sparsewire_lab.attention.finder import Finder
from sparsewire_lab.attention.models import GlimpseClassifier, ReinforceGlimpse, SpatialTransformer

if TYPE_CHECKING:
    from sparsewire_lab.attention.experiment import Attention


def make_model(args: "Attention") -> nn.Module:
    """Return the model that the arguments describe, resolved, before training."""
    side, factor = args.canvas or 100, args.reduce or 1
    image, size = (1, side, side), args.size or 32

    def source(outputs: int, cover: float | None = args.cover or 0.8) -> nn.Module:
        """What looks at the whole canvas, perhaps at a smaller one."""
        if args.source == "finder" and args.model != "convnet":
            net: nn.Module = Finder(1, args.glimpses, cover=cover)
        else:
            net = ConvNet(1, outputs, grid_for([side // factor] * 2))
        return nn.Sequential(nn.AvgPool2d(factor), net) if factor > 1 else net

    if args.model == "convnet":
        return source(10)
    head: dict[str, Any] = {
        "head": args.head,
        "dropout": args.dropout or 0.0,
        "width": args.width or 32,
    }
    if args.model == "reinforce":
        head |= {"deviation": args.deviation, "squash": args.source != "finder"}
        chosen = source(2 * args.glimpses, cover=None)
        return ReinforceGlimpse(image, size, args.glimpses, source=chosen, **head)
    frame: dict[str, Any] = {
        "frame": args.frame,
        "bound": args.squash,
        "cover": args.cover or 0.8,
        "source": source(args.glimpses * COUNTS[args.frame]),
    }
    if args.model == "transformer":
        return SpatialTransformer(image, size, **frame, **head)
    look = Glimpse(
        image,
        size,
        args.glimpses,
        **frame,
        local_samples=32 if args.local_samples is None else args.local_samples,
        global_samples=16 if args.global_samples is None else args.global_samples,
        region=min(args.region or 8, side),
        variance_scale=0.1 if args.scale is None else args.scale,
        variance_floor=0.1 if args.floor is None else args.floor,
    )
    return GlimpseClassifier(look, **head)
