"""Checks of models, data and parts that decide whether a score can be trusted."""
