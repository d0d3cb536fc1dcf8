"""Hyperparameter search: points, samplers, pruning, selection bias and their presentation."""
