"""Checks of a corpus; one module per property."""
