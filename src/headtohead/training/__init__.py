"""Training: the loop, objectives, losses, optimizers, checkpoints, devices and data-parallel processes."""
