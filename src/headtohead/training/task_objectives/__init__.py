"""What each task trains on and is scored by: one module per kind of task, and the evaluation pass."""
