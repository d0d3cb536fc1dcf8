"""Experiments on disk: loading experiment files, run folders, findings and saved models."""
