"""Run, verify and read experiments."""
