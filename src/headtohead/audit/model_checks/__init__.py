"""Checks of a model, trained or not; one module per property."""
