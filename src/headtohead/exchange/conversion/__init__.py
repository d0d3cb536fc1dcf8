"""Conversion of models in memory, between transformers models and transformers of parts."""
