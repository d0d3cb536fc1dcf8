"""Corpora: sources, splits, tokenizers, the token cache and deterministic batches."""
