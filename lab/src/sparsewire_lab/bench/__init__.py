"""`sparsewire bench`: times, memory and accuracy of every engine, beside what the machine can do.

`sparsewire_lab.cli.bench` reads the arguments and adds to the record, `runner.py` decides what can
run, and a process of its own (`worker.py`, `perform.py`) does the work: what breaks ends only that.
"""
