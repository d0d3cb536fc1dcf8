"""Tasks as objects: what each one reads, predicts, trains on and reports. See docs/tasks.md."""
