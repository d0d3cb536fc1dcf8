"""Transformers composed of swappable parts: the model, its KV cache, initialisation and FLOP counts."""
