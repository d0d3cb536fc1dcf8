"""Findings of a comparison: verdicts, warnings, observations and the noise of a command."""
