"""One table entry per architecture of transformers: its configuration fields and tensors, and their counterparts."""
