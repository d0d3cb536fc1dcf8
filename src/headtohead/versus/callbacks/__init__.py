"""Training framework callbacks that record evidence for `h2h versus`, replacing manual calls to `headtohead.record()`."""
