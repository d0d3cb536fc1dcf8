"""Saving, loading, inference and audits of trained and pretrained models."""
