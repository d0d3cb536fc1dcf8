"""The public names for writing parts: the base class of each slot, the contexts, and `register_part`."""

from headtohead.data.order import Order, OrderContext, TrainingItems
from headtohead.nn.parts.attention import Attention, AttentionParts, MultiHeadAttention
from headtohead.nn.parts.base import AttentionImplementation, Invariant, ModelSizes, Part
from headtohead.nn.parts.block import Block, TwoNormBlock
from headtohead.nn.parts.context import ForwardContext, TrainingContext
from headtohead.nn.parts.embedding import Embedding, EmbeddingStep
from headtohead.nn.parts.feedforward import FeedForward
from headtohead.nn.parts.init import Init, LayerRole
from headtohead.nn.parts.merge import Merge
from headtohead.nn.parts.norm import Norm
from headtohead.nn.parts.output import Output, OutputStep
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.parts.pool import Pool
from headtohead.nn.parts.position import Position
from headtohead.nn.parts.projection import Projection, ProjectionStep
from headtohead.nn.parts.registry import register_part
from headtohead.nn.parts.stack import Stack
from headtohead.nn.protocol import ModelOutput
from headtohead.training.parts.average import Average
from headtohead.training.parts.objective import Objective, compute_cross_entropy, select_predictions
from headtohead.training.parts.optimizer import Optimizer, TrainableParameter, UpdateContext
from headtohead.training.parts.schedule import Schedule

__all__ = [
    "Attention",
    "AttentionImplementation",
    "AttentionParts",
    "Average",
    "Block",
    "Embedding",
    "EmbeddingStep",
    "FeedForward",
    "ForwardContext",
    "Init",
    "Invariant",
    "LayerRole",
    "Merge",
    "ModelOutput",
    "ModelSizes",
    "MultiHeadAttention",
    "Norm",
    "Objective",
    "Optimizer",
    "Order",
    "OrderContext",
    "Output",
    "OutputStep",
    "Part",
    "Pattern",
    "Pool",
    "Position",
    "Projection",
    "ProjectionStep",
    "Schedule",
    "Stack",
    "TrainableParameter",
    "TrainingContext",
    "TrainingItems",
    "TwoNormBlock",
    "UpdateContext",
    "compute_cross_entropy",
    "register_part",
    "select_predictions",
]
