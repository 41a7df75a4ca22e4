"""The kernels of `contract`; imported only where Triton is installed."""
