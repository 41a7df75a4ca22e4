"""A package, for its files have the names of files in `tests/ops`."""
