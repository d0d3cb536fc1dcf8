"""From parts to a model: tokens in, logits (and, if asked, attention maps) out."""

from .cache import Cache, Store
from .count import Count, count
from .create import create, initialise, tensor_hashes
from .drawing import drawing
from .finetuned import FineTuned
from .own import OwnModel
from .protocol import Decoder, Model, Output
from .students import Learner
from .transformer import Transformer

__all__ = [
    "Cache",
    "Count",
    "Decoder",
    "FineTuned",
    "Learner",
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
