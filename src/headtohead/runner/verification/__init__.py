"""Verify experiments: recompute the reported numbers from the saved runs, or retrain the runs."""
