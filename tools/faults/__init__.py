"""Faults on purpose: real small experiments are disturbed in every way we know, and nothing may be lost or wrong.

    make faults                            every fault; 100 kills of processes, and ten of a cluster's machine
    make faults ARGS="--kills 20"          fewer
    make faults ARGS="--only bytes"        one fault; may be repeated
    make faults ARGS="--short"             what the tests run: a few kills and the cheap faults
    make faults ARGS="--docs"              also the table of docs/faults.md

A fault is a file of this folder with a function that yields what was seen; `families.py` names them all. `world.py` has
the experiments, `ledger.py` keeps account of what must not get lost. The exit code is 1 if anything was lost or wrong.
"""
