"""Experiment files as frozen pydantic models, and the recipes shipped with the package. Imports no torch."""
