"""Training: the loop and its checkpoints.

Its sub-packages are task objectives, losses, optimization, the parts of training, hardware and data parallelism.
"""
