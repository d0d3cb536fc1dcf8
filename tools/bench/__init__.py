"""Benchmarks: ratios between our code and other libraries, measured alternately in one run; the best round counts.

    make bench                          all benchmarks; tables, JSON and a chart in runs/bench; about 80 minutes
    make bench ARGS="training step"     some benchmarks
    make bench ARGS="--short"           few steps and seeds, to check that everything runs; the numbers are meaningless
    make bench ARGS="--rounds 9"        more rounds: less noise on a busy machine
    make bench ARGS="--docs"            also write docs/performance.md with its numbers and its chart

A benchmark is a module of this package with a function that yields measurements and tables; `benchmarks.py` lists all.
`peer_training.py` (training with other libraries) and `isolated.py` (memory, start-up) run in child processes.
"""
