"""Plan, run, verify and read whole experiments."""
