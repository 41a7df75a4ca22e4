"""The paper's experiments, one file each, to be read from top to bottom."""
