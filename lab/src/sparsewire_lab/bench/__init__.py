"""`sparsewire bench`: times, memory and accuracy of every engine, beside what the machine can do.

`command.py` reads the arguments, `runner.py` decides what can run and keeps the record, and a
process of its own (`worker.py`, `perform.py`) does the work, so that nothing that breaks there
takes the rest with it.
"""
