"""Experiments on disk: experiment files, run folders with their schemas and provenance, the journal and findings."""
