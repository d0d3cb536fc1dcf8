"""Callbacks for training frameworks that record evidence for `h2h versus`, as `headtohead.record()` does by hand."""
