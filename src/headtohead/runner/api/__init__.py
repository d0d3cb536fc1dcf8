"""The Python API for whole experiments: define one, run it, and read its results."""
