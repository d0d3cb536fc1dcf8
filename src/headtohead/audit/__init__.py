"""Checks on models, on data and on parts that decide whether a score can be trusted."""
