"""Compare our results with published figures and claims."""
