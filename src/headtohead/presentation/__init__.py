"""The presentation model (`Table`, `Chart`, `Section`) and its renderers. Imports no torch."""
