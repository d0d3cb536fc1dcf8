"""Corpus tokenizers, and limits on untrusted ones."""
