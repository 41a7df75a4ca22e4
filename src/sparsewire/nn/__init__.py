"""Thin modules that own parameters and call `sparsewire.ops`."""
