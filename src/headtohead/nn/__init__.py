"""Transformers composed of swappable parts: the model, its KV cache, fast decoding and initialization."""
