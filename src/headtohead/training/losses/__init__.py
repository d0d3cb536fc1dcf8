"""Losses computed from hidden states in chunks, without all logits: cross entropy, and distillation from a teacher."""
