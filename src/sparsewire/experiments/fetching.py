"""Whether MNIST is there, or would be fetched by the run that needs it."""

from pathlib import Path

from sparsewire.data import mnist


def mnist_to_fetch(folder: Path | None) -> str | None:
    """Say what would be fetched, and where to; None if all files are there."""
    try:
        mnist.collect(mnist.DIGESTS, folder, download=False)
    except RuntimeError:
        home = folder or mnist.cache_folder()
        return f"MNIST into {home} (sparsewire data mnist does so now)"
    return None
