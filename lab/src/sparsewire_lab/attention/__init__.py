"""The attention experiment: glimpses on cluttered canvases, and its baselines."""
