"""The kernels of `spread`; imported only where Triton is installed."""
