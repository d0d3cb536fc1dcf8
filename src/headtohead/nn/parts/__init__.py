"""The swappable pieces of a transformer: one file a slot, the contract first, then the built-ins."""

from headtohead.nn.parts.attention import Attention, Memory, Sight
from headtohead.nn.parts.base import Law, Part, Road, Sizes
from headtohead.nn.parts.block import Block
from headtohead.nn.parts.feedforward import FeedForward
from headtohead.nn.parts.merge import Merge
from headtohead.nn.parts.norm import Norm
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.parts.pool import Pool
from headtohead.nn.parts.position import Position
from headtohead.nn.parts.projection import Projection
from headtohead.nn.parts.registry import (
    SLOTS,
    build,
    check,
    describe,
    find,
    listing,
    module_name,
    names,
    options,
    own_files,
    part,
    signature_words,
    types_of,
    use,
)

__all__ = [
    "SLOTS",
    "Attention",
    "Block",
    "FeedForward",
    "Law",
    "Memory",
    "Merge",
    "Norm",
    "Part",
    "Pattern",
    "Pool",
    "Position",
    "Projection",
    "Road",
    "Sight",
    "Sizes",
    "build",
    "check",
    "describe",
    "find",
    "listing",
    "module_name",
    "names",
    "options",
    "own_files",
    "part",
    "signature_words",
    "types_of",
    "use",
]
