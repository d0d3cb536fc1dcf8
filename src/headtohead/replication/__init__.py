"""Compare our results with published scores and claims. `claims_table` and `published_table` show them in a report."""
