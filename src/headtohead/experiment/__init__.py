"""Trials, run folders, findings and saved models."""
