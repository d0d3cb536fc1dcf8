"""Checks on a model, trained or not; one module per property."""
