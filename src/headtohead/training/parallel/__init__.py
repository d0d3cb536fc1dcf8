"""The processes of a training run: a single one, or several with a part of each batch (torchrun)."""
