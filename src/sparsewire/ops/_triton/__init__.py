"""Fused Triton kernels behind the stages, registered with `torch.library`; private.

`library.py` holds the operators. `sampling.py`, `duplicates.py`, `spread.py`, `contraction.py` and
`reading.py` launch the kernels of the stages of these names; those of `spread` lie in `packing.py`,
`normalising.py`, `dealing.py` and `pulling.py`. `density.py`, `draws.py`, `order.py` and `tiles.py`
hold what several kernels share. Imported only where Triton is installed.
"""
