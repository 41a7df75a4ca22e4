"""The kernels of `soft_sort`; imported only where Triton is installed."""
