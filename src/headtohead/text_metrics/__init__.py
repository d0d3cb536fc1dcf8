"""Metrics of generated text: n-gram metrics (diversity, repetition, similarity, copying) and ROUGE."""
