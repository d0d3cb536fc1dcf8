"""Findings: what an experiment showed, assembled from its run folders. Imports no torch."""
