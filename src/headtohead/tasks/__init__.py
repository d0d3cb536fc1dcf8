"""Tasks: each one loads its data, builds model, batches and objective, and decides what is evaluated. See
docs/how-to/tasks.md.
"""
