"""A model's attention maps: extraction, checks, head metrics and pictures."""
