"""Rewiring: wasted tuples move to places with large sampled gradients. Not in the paper."""

from sparsewire.rewire.layer import LayerRewiring
from sparsewire.rewire.rewire import Rewire
from sparsewire.rewire.wasted import find_keepers

__all__ = ["LayerRewiring", "Rewire", "find_keepers"]
