"""Fault injection: disturb real small experiments in every known way and check that nothing is lost or wrong.

    make faults                            all faults; 100 kills of processes, and ten of a cluster node
    make faults ARGS="--kills 20"          fewer kills
    make faults ARGS="--only bytes"        one fault; may be repeated
    make faults ARGS="--short"             as in the tests: a few kills and the cheap faults
    make faults ARGS="--docs"              also write the table of docs/faults.md

A fault is a module of this package with a function that yields outcomes; `fault_list.py` lists all. `workspace.py`
writes the experiments, `run_monitor.py` records results that must not get lost. The exit code is 1 if anything was lost
or wrong.
"""
