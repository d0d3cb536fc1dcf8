"""Saved models: save, load, predict with and audit a trained or pretrained model."""
