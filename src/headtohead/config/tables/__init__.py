"""The tables of an experiment file as pydantic models."""
