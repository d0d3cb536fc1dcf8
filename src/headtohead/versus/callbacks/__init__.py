"""Training framework callbacks that record evidence for `h2h versus`, replacing calls to `headtohead.record()`."""
