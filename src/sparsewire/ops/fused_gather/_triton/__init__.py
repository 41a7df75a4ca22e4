"""The kernels of `fused_gather`; imported only where Triton is installed."""
