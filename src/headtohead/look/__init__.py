"""Looking into attention.

maps        the maps of a model on a text, as arrays
checks      whether they are what they seem: rows that sum to 1, nothing on padding, triangle, band
measures    what each head does, in numbers: entropy, distance, shares, copying, what it is worth
design      queries and keys by hand
"""
