"""Published figures and claims beside our own results."""
