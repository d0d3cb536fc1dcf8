"""Hyperparameter search: points, samplers, pruning, selection bias, and how they are presented."""
