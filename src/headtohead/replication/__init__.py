"""Compare our results with published scores and claims."""
