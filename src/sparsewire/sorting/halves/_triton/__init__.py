"""The kernels of `halves`; imported only where Triton is installed."""
