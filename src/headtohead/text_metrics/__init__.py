"""Metrics of generated text: diversity, repetition and ROUGE."""
