"""The swappable pieces of a transformer: one file a slot, the contract first, then the built-ins."""

from .attention import Attention, Memory, Sight
from .block import Block
from .contract import Law, Part, Road, Sizes
from .feedforward import FeedForward
from .merge import Merge
from .norm import Norm
from .pattern import Pattern
from .pool import Pool
from .position import Position
from .projection import Projection
from .registry import (
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
