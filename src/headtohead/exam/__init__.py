"""The machinery of the exam that every part must pass; `headtohead.testing` is its public face."""
