"""The swappable parts of a transformer: one module per slot, with its base class and the built-in parts."""

from headtohead.nn.parts.attention import Attention, AttentionContext, LayerKVCache, MultiHeadAttention
from headtohead.nn.parts.base import AttentionImplementation, Invariant, ModelSizes, Part
from headtohead.nn.parts.block import Block
from headtohead.nn.parts.feedforward import FeedForward
from headtohead.nn.parts.merge import Merge
from headtohead.nn.parts.norm import Norm
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.parts.pool import Pool
from headtohead.nn.parts.position import Position
from headtohead.nn.parts.projection import Projection
from headtohead.nn.parts.registry import register_part

__all__ = [
    "Attention",
    "AttentionContext",
    "AttentionImplementation",
    "Block",
    "FeedForward",
    "Invariant",
    "LayerKVCache",
    "Merge",
    "ModelSizes",
    "MultiHeadAttention",
    "Norm",
    "Part",
    "Pattern",
    "Pool",
    "Position",
    "Projection",
    "register_part",
]
