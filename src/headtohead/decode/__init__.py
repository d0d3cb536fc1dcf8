"""From logits to text: strategies, generation, and the comparison of what they write."""

from .generate import Continuation, Moment, Piece, SlidingWarning, continue_ids, generate, stream, watch
from .steps import distribution
from .strategies import Strategy, parse, strategy

__all__ = [
    "Continuation",
    "Moment",
    "Piece",
    "SlidingWarning",
    "Strategy",
    "continue_ids",
    "distribution",
    "generate",
    "parse",
    "strategy",
    "stream",
    "watch",
]
