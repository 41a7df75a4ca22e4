"""What all experiments share: one loop, checkpoints, records, and runs that can be restarted."""
