"""`python -m sparsewire` is the command `sparsewire`."""

import sys

from sparsewire.cli import main

if __name__ == "__main__":
    sys.exit(main())
