"""From parts to a model: tokens in, logits (and, if asked, attention maps) out."""

from .cache import Cache, Store
from .count import Count, count
from .create import create, drawing, initialise, tensor_hashes
from .own import OwnModel
from .protocol import Decoder, Model, Output
from .transformer import Transformer

__all__ = [
    "Cache",
    "Count",
    "Decoder",
    "Model",
    "Output",
    "OwnModel",
    "Store",
    "Transformer",
    "count",
    "create",
    "drawing",
    "initialise",
    "tensor_hashes",
]
