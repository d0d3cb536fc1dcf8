"""Compare our results with published scores and claims. `tables` shows them in a report."""
