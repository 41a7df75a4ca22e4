"""The command `sparsewire`, one module for each subcommand."""
