"""Running, verifying and reading whole experiments."""
