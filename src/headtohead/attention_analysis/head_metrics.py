"""Compute metrics of attention heads: what they attend to, induction scores, and the loss increase when ablated.

    entropy     entropy of a token's attention weights, in bits
    distance    mean distance to the attended tokens
    first, itself, previous, padding    weight on the first token, the token itself, the previous token, padding
    induction   weight on the token after the previous occurrence of the same token, on repeated random tokens (Olsson
                et al. 2022, arXiv:2209.11895); `control` is the weight on the same positions without repetition
    rise        loss increase when the head's output is set to 0 (Michel et al. 2019, arXiv:1905.10650)

Means are over tokens that are neither padding nor the first of their text, which has no previous token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headtohead import rng
from headtohead.attention_analysis.maps import AttentionMaps
from headtohead.data.tokenization.tokenizers import TokenizerProtocol
from headtohead.errors import ModelError
from headtohead.experiment.schemas import HeadMeasures
from headtohead.nn.layer import TransformerLayer
from headtohead.nn.parts.attention import MultiHeadAttention
from headtohead.nn.parts.merge import Merge
from headtohead.nn.protocol import ModelOutput
from headtohead.nn.transformer import Transformer

ATTENTION_METRICS = ("entropy", "distance", "first", "itself", "previous", "padding")
"""metrics that are means over tokens, in the order of computation"""
INDUCTION_LENGTH = 64
"""tokens per sequence of the induction test"""
INDUCTION_THRESHOLD = 0.2
"""smallest difference between induction and control at which a head counts as an induction head"""
NEGLIGIBLE_LOSS_INCREASE = 0.01
"""in nats, about 1 % of perplexity; heads with a smaller loss increase are idle"""
OUTPUT_PROJECTION_PATTERN = re.compile(
    r"(?:^|\.)(?:attn\.c_proj|attention\.output\.dense|self_attn\.o_proj|self_attn\.out_proj|attention\.out_lin"
    r"|attention\.dense|attn\.out_proj|attention\.out_proj)$"
)
"""names of the attention output projection in transformers models"""

BatchWeights = Float[Tensor, "batch heads query key"]
BatchMask = Bool[Tensor, "batch length"]


@runtime_checkable
class BatchLike(Protocol):
    """The fields of a batch from which head metrics are computed."""

    @property
    def input_ids(self) -> Tensor: ...

    @property
    def attention_mask(self) -> Tensor | None: ...


def compute_text_head_metrics(maps: AttentionMaps) -> list[HeadMeasures]:
    """Return the metrics of every head for the attention maps of one text."""
    attention_mask = torch.from_numpy(maps.attention_mask)[None]
    heads = []
    for layer, weights in zip(maps.layer_numbers, maps.weights_by_layer, strict=True):
        totals, num_tokens = _sum_metrics_over_tokens(torch.from_numpy(weights)[None], attention_mask)
        heads += _average_layer_metrics(layer, maps.head_numbers, totals, num_tokens)
    return heads


def compute_batch_head_metrics(model: nn.Module, batches: Iterable[BatchLike]) -> list[HeadMeasures]:
    """Return the metrics of every head, averaged over `batches`; layers and heads are counted from 1."""
    totals_by_layer: list[Tensor] = []
    total_tokens = 0
    for batch in batches:
        attentions = compute_batch_attentions(model, batch.input_ids, batch.attention_mask)
        attention_mask = (
            torch.ones_like(batch.input_ids, dtype=torch.bool)
            if batch.attention_mask is None
            else batch.attention_mask.bool()
        )
        for layer, weights in enumerate(attentions):
            totals, num_tokens = _sum_metrics_over_tokens(weights, attention_mask)
            if layer == len(totals_by_layer):
                totals_by_layer.append(torch.zeros_like(totals))
            totals_by_layer[layer] += totals
        total_tokens += num_tokens
    return [
        head
        for layer, totals in enumerate(totals_by_layer)
        for head in _average_layer_metrics(layer + 1, range(1, totals.shape[1] + 1), totals, total_tokens)
    ]


@torch.no_grad()
def compute_batch_attentions(
    model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Return a batch's attention weights for head metrics: per layer, shape (batch, heads, query, key)."""
    output: ModelOutput = model(input_ids, attention_mask, output_attentions=True)
    if not output.attentions:
        raise ModelError("the model returns no attention maps")
    return output.attentions


def _average_layer_metrics(
    layer: int, head_numbers: Iterable[int], totals: Tensor, num_tokens: int
) -> list[HeadMeasures]:
    """Return the head metrics of a layer as means over tokens; None without tokens or if a mean is not finite.

    `totals` has shape (metrics, heads).
    """
    means_by_head = (totals / num_tokens if num_tokens else totals * math.nan).T.tolist()
    return [
        HeadMeasures.model_validate(
            {"layer": layer, "head": head} | dict(zip(ATTENTION_METRICS, map(to_finite_or_none, means), strict=True))
        )
        for head, means in zip(head_numbers, means_by_head, strict=True)
    ]


def to_finite_or_none(value: float) -> float | None:
    """Return a metric's value, or None (null in JSON) if it is not finite."""
    return value if math.isfinite(value) else None


def _sum_metrics_over_tokens(
    weights: BatchWeights, attention_mask: BatchMask
) -> tuple[Float[Tensor, "metrics heads"], int]:
    """Return the sum of each head metric over the counted tokens, and the number of those tokens."""
    positions = attention_mask.long().cumsum(1) - 1
    counted_mask = attention_mask & (positions > 0)
    distances = (positions[:, :, None] - positions[:, None, :])[:, None]
    key_mask = attention_mask[:, None, None, :]
    key_masks_by_metric = {
        "first": key_mask & (positions == 0)[:, None, None, :],
        "itself": key_mask & (distances == 0),
        "previous": key_mask & (distances == 1),
        "padding": ~key_mask,
    }
    metrics_by_token = {
        "entropy": torch.special.entr(weights.clamp_min(0)).sum(-1) / np.log(2),
        "distance": (weights * distances.abs() * key_mask).sum(-1),
        **{name: (weights * mask).sum(-1) for name, mask in key_masks_by_metric.items()},
    }
    totals = [(metrics_by_token[name].double() * counted_mask[:, None]).sum((0, 2)) for name in ATTENTION_METRICS]
    return torch.stack(totals), int(counted_mask.sum())


# ---- induction heads


def add_induction_scores(
    heads: Sequence[HeadMeasures], model: nn.Module, context: int, tokenizer: TokenizerProtocol
) -> list[HeadMeasures]:
    """Return a decoder's head metrics extended by the induction score, its control and whether the head copies."""
    special_ids = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id)
    length = min(context, INDUCTION_LENGTH)
    scores = compute_induction_scores(model, tokenizer.vocab_size, length=length, special_ids=special_ids)
    extended_heads = []
    for head in heads:
        score, control = (
            to_finite_or_none(float(head_scores[head.layer - 1, head.head - 1])) for head_scores in scores
        )
        induction = {"induction": score, "control": control, "copies": is_induction_head(score, control)}
        extended_heads.append(head.model_copy(update=induction))
    return extended_heads


def compute_induction_scores(
    model: nn.Module,
    vocab_size: int,
    *,
    length: int,
    num_sequences: int = 4,
    special_ids: Iterable[int | None] = (),
    seed: int = 0,
) -> tuple[Float[np.ndarray, "layers heads"], Float[np.ndarray, "layers heads"]]:
    """Return (score, control) of every head on sequences of `length` random tokens whose second half repeats the first.

    The control is measured on sequences without repetition.
    """
    half_length = length // 2
    ordinary_ids = [token_id for token_id in range(vocab_size) if token_id not in set(special_ids)]
    if half_length < 2 or len(ordinary_ids) < 2 * half_length:
        attentions = compute_batch_attentions(model, torch.tensor([ordinary_ids[:1] or [0]]))
        heads_per_layer = np.array([weights.shape[1] for weights in attentions])
        undefined_scores = np.full((len(heads_per_layer), int(heads_per_layer.max())), np.nan)
        return undefined_scores, undefined_scores
    random_ids = _sample_distinct_tokens(ordinary_ids, 2 * half_length, num_sequences, seed)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    random_ids = random_ids.to(device)
    repeated_ids = random_ids[:, :half_length].repeat(1, 2)
    score, control = (
        _compute_induction_weights(compute_batch_attentions(model, input_ids), half_length)
        for input_ids in (repeated_ids, random_ids)
    )
    return score, control


def _sample_distinct_tokens(token_ids: Sequence[int], length: int, num_sequences: int, seed: int) -> Tensor:
    """Sample sequences of distinct tokens, so that a repeated token has exactly one earlier occurrence."""
    generator = torch.Generator().manual_seed(rng.derive_seed(seed, "look", "induction"))
    permutations = [torch.randperm(len(token_ids), generator=generator)[:length] for _ in range(num_sequences)]
    return torch.tensor(token_ids)[torch.stack(permutations)]


def _compute_induction_weights(
    attentions: Iterable[BatchWeights], half_length: int
) -> Float[np.ndarray, "layers heads"]:
    """Return the mean weight that second-half tokens put on the successor of the same token in the first half."""
    layer_scores = [
        weights[:, :, half_length:].diagonal(1, dim1=-2, dim2=-1).double().mean((0, -1)) for weights in attentions
    ]
    return np.stack([scores.cpu().numpy() for scores in layer_scores])


# ---- head ablation


@contextmanager
def ablate_head(model: nn.Module, layer: int, head: int) -> Iterator[None]:
    """Set one head's output to 0 inside the context; layer and head are counted from 0."""
    module = _find_head_output_module(model, layer)

    def zero_head(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Set the head's output to zero before it is merged or projected."""
        head_outputs = args[0].clone()
        if isinstance(module, Merge):
            head_outputs[:, head] = 0
        else:
            head_dim = head_outputs.shape[-1] // _get_num_heads(model)
            head_outputs[..., head * head_dim : (head + 1) * head_dim] = 0
        return (head_outputs, *args[1:])

    hook = module.register_forward_pre_hook(zero_head)
    try:
        yield
    finally:
        hook.remove()


def find_first_merge(layer: nn.Module) -> Merge | None:
    """Return the merge that is hooked to measure heads: its input contains them; None if there is none, or several."""
    if isinstance(layer, TransformerLayer) and isinstance(layer.attention, MultiHeadAttention):
        return layer.attention.merge
    merges = [module for module in layer.modules() if isinstance(module, Merge)]
    return merges[0] if len(merges) == 1 else None


def _find_head_output_module(model: nn.Module, layer: int) -> nn.Module:
    """Return the module to hook to ablate a head: its input contains the separate heads of the layer."""
    if isinstance(model, Transformer):
        merge = find_first_merge(model.layers[layer])
        if merge is not None:
            return merge
        raise ModelError(f"attention = {str(model.model_config.attention)!r} has no merge: its heads cannot be ablated")
    projections: list[nn.Module] = [
        module for name, module in model.named_modules() if OUTPUT_PROJECTION_PATTERN.search(name)
    ]
    if layer >= len(projections):
        raise ModelError("cannot ablate heads: the attention output projection of this model is unknown")
    return projections[layer]


def _get_num_heads(model: nn.Module) -> int:
    """Return the number of heads per layer in the config of a transformers model, to compute their metrics."""
    for module in model.modules():
        config = getattr(module, "config", None)  # transformers models
        num_heads = getattr(config, "num_attention_heads", None)
        if isinstance(num_heads, int):
            return num_heads
    raise ModelError("cannot ablate heads: the number of heads of this model is unknown")


def compute_ablated_losses(
    model: nn.Module, heads: Sequence[HeadMeasures], compute_losses: Callable[[], Float[np.ndarray, " losses"]]
) -> Float[np.ndarray, "heads losses"]:
    """Return the losses that `compute_losses` computes while each head is ablated, one head at a time."""
    losses = []
    for head in heads:
        with ablate_head(model, head.layer - 1, head.head - 1):
            losses.append(compute_losses())
    return np.stack(losses)


def is_induction_head(score: float | None, control: float | None) -> bool | None:
    """Return whether a head with these scores copies earlier tokens, or None if it was not tested."""
    return None if score is None or control is None else bool(score - control >= INDUCTION_THRESHOLD)


def is_idle_head(loss_interval: Sequence[float] | None) -> bool | None:
    """Return whether ablating a head has a negligible effect: the loss increase's whole interval is close to zero."""
    return None if loss_interval is None else max(map(abs, loss_interval)) < NEGLIGIBLE_LOSS_INCREASE
