"""The presentation model (`Table`, `Chart`, `Section`) and its renderers. Does not import torch."""
