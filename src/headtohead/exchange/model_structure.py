"""A neutral description of a transformer, between a transformers configuration and a model configuration of parts.

`ModelStructure` lists the properties in which the architectures of transformers differ. Architectures read and write it
(`exchange.architectures`); `exchange.conversion` turns it into parts and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

OutputHead = Literal["linear", "mlm-head", "none"]
BlockKind = Literal["pre", "post", "reordered", "sandwich", "parallel"]
PositionKind = Literal["none", "learned", "rope", "alibi", "relative"]


class QueryKeyNorm(NamedTuple):
    """Options of the part `qk-norm`."""

    norm: str = "rms"
    over: str = "head"
    scale: str = "shared"
    bias: bool = False
    eps: float = 1e-6


class ExpertOptions(NamedTuple):
    """Options of the part `gated-experts`."""

    experts: int
    active: int
    alpha: float
    limit: float


@dataclass(frozen=True, kw_only=True)
class ModelStructure:
    """What a transformer computes, apart from its weights."""

    vocab_size: int
    width: int
    """hidden size"""
    num_layers: int
    num_heads: int
    head_dim: int
    num_key_heads: int
    """number of key and value heads"""
    feedforward_size: int
    """hidden size of the feed-forward layers"""
    context: int
    """maximum input length; the size of the position table for learned positions, otherwise advisory"""
    is_causal: bool = True
    output_head: OutputHead = "linear"
    """`none`: the model returns hidden states"""
    tie_word_embeddings: bool = False

    embedding_width: int | None = None
    """width of the embedding table if it differs from `width`"""
    embedding_scale: float = 1.0
    embedding_norm: bool = False

    position: PositionKind = "rope"
    rope_bases: tuple[float, ...] = (10000.0,)
    """base of each layer, or one base for all layers"""
    rope_fraction: float = 1.0
    """fraction of the head dimension that is rotated"""
    rope_frequencies: tuple[float, ...] | None = None
    """rotation angles per token, where they are not powers of a base"""
    alibi_slopes: tuple[float, ...] | None = None
    """slope of each head; None for the slopes of the paper"""
    relative_buckets: int = 32
    relative_max_distance: int = 128
    """buckets and maximum distance of relative position biases"""
    window_sizes: tuple[int | None, ...] = ()
    """sliding window of each layer, including the token itself; empty if no layer has one"""

    norm: Literal["layer", "rms"] = "rms"
    norm_eps: float = 1e-6
    norm_bias: bool = False
    block: BlockKind = "pre"
    separate_norms: bool = False
    """whether attention and feed-forward layer of a parallel block have their own norms"""
    first_attention_norm: bool = True
    """whether the first layer normalizes the input of its attention"""
    final_norm: bool = True
    residual_scale: float = 1.0
    """factor of each residual branch. Import multiplies the output matrices by it, so that no part is needed."""

    query_bias: bool = False
    """bias of queries, keys and values"""
    attention_output_bias: bool = False
    qk_norm: QueryKeyNorm | None = None
    query_scale: float = 1.0
    """factor of the queries in addition to 1 / sqrt(head_dim)"""
    attention_softcap: float | None = None
    attention: Literal["composed", "sinks", "differential"] = "composed"
    attention_norm_eps: float | None = None
    """epsilon of the norm in differential attention"""

    experts: ExpertOptions | None = None
    is_gated: bool = True
    """whether the feed-forward layer has a gate, as SwiGLU does"""
    activation: str = "silu"
    feedforward_bias: bool = False

    output_bias: bool = False
    output_scale: float = 1.0
    output_softcap: float | None = None
    mlm_head_activation: str = "gelu"
    mlm_head_hidden_bias: bool = True
    mlm_head_norm_bias: bool = True
    mlm_head_eps: float = 1e-12

    @property
    def rotary_dim(self) -> int:
        """Number of dimensions of a head that are rotated."""
        return 2 * int(self.head_dim * self.rope_fraction / 2)
