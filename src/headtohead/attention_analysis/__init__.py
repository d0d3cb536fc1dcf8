"""Attention maps of a model: extraction, checks, head metrics and pictures."""
