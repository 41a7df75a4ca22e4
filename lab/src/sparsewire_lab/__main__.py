"""`python -m sparsewire_lab` is the command `sparsewire`."""

import sys

from sparsewire_lab.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
