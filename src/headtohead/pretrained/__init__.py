"""Pretrained models: locating and checking weights, tokenizers, classification heads, LoRA, layer-dropped students."""
