"""Checks of experiment files beyond single fields, and error messages with location and allowed values."""
