"""Checks on a corpus; one module per property."""
