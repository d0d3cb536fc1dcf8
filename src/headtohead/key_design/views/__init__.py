"""Pictures, pages and terminal output for designed queries and keys. Does not import torch."""
