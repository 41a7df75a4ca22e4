"""The paper's networks, and the baselines that experiments are measured against."""

from sparsewire.models.attention import GlimpseClassifier, ReinforceGlimpse, SpatialTransformer
from sparsewire.models.reinforce import ReinforceLayer

__all__ = ["GlimpseClassifier", "ReinforceGlimpse", "ReinforceLayer", "SpatialTransformer"]
