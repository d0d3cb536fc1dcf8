"""Experiments on disk: loading experiment files, run folders and their schemas, and the journal."""
