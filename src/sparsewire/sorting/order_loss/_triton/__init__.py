"""The kernels of `order_loss`; imported only where Triton is installed."""
