"""Run trials in local workers, on a Ray cluster or under torchrun, and log them to experiment trackers."""
