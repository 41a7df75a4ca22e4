"""Kernels of image networks; imported only where Triton is installed."""
