"""Benchmarks as ratios in one run: contestants take turns several times, and the best of each counts.

    make bench                          every family, as tables, JSON and a picture in runs/bench: about 80 minutes
    make bench ARGS="training step"     some of them
    make bench ARGS="--short"           few steps and seeds: does it all work? The figures mean nothing
    make bench ARGS="--rounds 9"        more turns: steadier on a busy machine
    make bench ARGS="--docs"            also docs/performance.md with its figures and its picture

A family is a file of this folder with a function that yields findings and tables; `families.py` names them all. What is
done in a process of its own is in `peers.py` (trainings of other libraries) and `alone.py` (memory, start-up).
"""
