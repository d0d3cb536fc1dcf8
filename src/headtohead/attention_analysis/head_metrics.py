"""Attention head metrics.

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
from headtohead.data.tokenizers import TokenizerProtocol
from headtohead.errors import ModelError
from headtohead.experiment.schemas import HeadMeasures
from headtohead.nn.parts.merge import Merge
from headtohead.nn.protocol import ModelOutput
from headtohead.nn.transformer import Transformer

ATTENTION_MEASURES = ("entropy", "distance", "first", "itself", "previous", "padding")
INDUCTION_LENGTH = 64
"""tokens per row of the induction test"""
INDUCTION_THRESHOLD = 0.2
"""a head copies if induction exceeds control by this much"""
NEGLIGIBLE_LOSS_INCREASE = 0.01
"""nats, about 1 % of perplexity; heads with a smaller loss increase are idle"""
OUTPUT_PROJECTION_PATTERN = re.compile(
    r"(?:^|\.)(?:attn\.c_proj|attention\.output\.dense|self_attn\.o_proj|self_attn\.out_proj|attention\.out_lin"
    r"|attention\.dense|attn\.out_proj|attention\.out_proj)$"
)
"""names of the attention output projection in transformers models"""

BatchWeights = Float[Tensor, "batch heads query key"]
BatchMask = Bool[Tensor, "batch length"]


@runtime_checkable
class BatchLike(Protocol):
    """The batch fields that metrics use."""

    @property
    def input_ids(self) -> Tensor: ...

    @property
    def attention_mask(self) -> Tensor | None: ...


def measure_maps(maps: AttentionMaps) -> list[HeadMeasures]:
    """Return the metrics for one text's maps, one row per head."""
    real = torch.from_numpy(maps.real)[None]
    rows = []
    for number, weights in zip(maps.layer_numbers, maps.layers, strict=True):
        totals, count = _sum_measures(torch.from_numpy(weights)[None], real)
        rows += _build_head_measures(number, maps.head_numbers, totals, count)
    return rows


def measure_heads(model: nn.Module, batches: Iterable[BatchLike]) -> list[HeadMeasures]:
    """Return every head's metrics over these batches; layers and heads are counted from 1."""
    sums: list[Tensor] = []
    counts = 0
    for batch in batches:
        maps = compute_attentions(model, batch.input_ids, batch.attention_mask)
        mask = batch.attention_mask
        real = torch.ones_like(batch.input_ids, dtype=torch.bool) if mask is None else mask.bool()
        for layer, weights in enumerate(maps):
            totals, count = _sum_measures(weights, real)
            if layer == len(sums):
                sums.append(torch.zeros_like(totals))
            sums[layer] += totals
        counts += count
    return [
        row
        for layer, totals in enumerate(sums)
        for row in _build_head_measures(layer + 1, range(1, totals.shape[1] + 1), totals, counts)
    ]


@torch.no_grad()
def compute_attentions(model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, ...]:
    """Return the attention weights for a batch, one tensor per layer."""
    output: ModelOutput = model(input_ids, attention_mask, output_attentions=True)
    if not output.attentions:
        raise ModelError("the model returns no attention maps")
    return output.attentions


def _build_head_measures(layer: int, heads: Iterable[int], totals: Tensor, count: int) -> list[HeadMeasures]:
    """Return each head's means; None if no tokens were counted or a mean is not finite."""
    means = (totals / count if count else totals * math.nan).T.tolist()
    return [
        HeadMeasures.model_validate(
            {"layer": layer, "head": head} | dict(zip(ATTENTION_MEASURES, map(to_finite_or_none, values), strict=True))
        )
        for head, values in zip(heads, means, strict=True)
    ]


def to_finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _sum_measures(weights: BatchWeights, attention_mask: BatchMask) -> tuple[Float[Tensor, "measures heads"], int]:
    """Return the sum of each metric over the counted tokens, and the number of those tokens."""
    positions = attention_mask.long().cumsum(1) - 1
    is_counted = attention_mask & (positions > 0)
    distances = (positions[:, :, None] - positions[:, None, :])[:, None]
    is_key = attention_mask[:, None, None, :]
    masks = {
        "first": is_key & (positions == 0)[:, None, None, :],
        "itself": is_key & (distances == 0),
        "previous": is_key & (distances == 1),
        "padding": ~is_key,
    }
    values = {
        "entropy": torch.special.entr(weights.clamp_min(0)).sum(-1) / np.log(2),
        "distance": (weights * distances.abs() * is_key).sum(-1),
        **{name: (weights * mask).sum(-1) for name, mask in masks.items()},
    }
    totals = [(values[name].double() * is_counted[:, None]).sum((0, 2)) for name in ATTENTION_MEASURES]
    return torch.stack(totals), int(is_counted.sum())


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
        score, control = (to_finite_or_none(float(values[head.layer - 1, head.head - 1])) for values in scores)
        induction = {"induction": score, "control": control, "copies": is_induction_head(score, control)}
        extended_heads.append(head.model_copy(update=induction))
    return extended_heads


def compute_induction_scores(
    model: nn.Module,
    vocab_size: int,
    *,
    length: int,
    num_rows: int = 4,
    special_ids: Iterable[int | None] = (),
    seed: int = 0,
) -> tuple[Float[np.ndarray, "layers heads"], Float[np.ndarray, "layers heads"]]:
    """Return (score, control) for every head on rows of repeated random tokens, `length` tokens in total."""
    half = length // 2
    ordinary_ids = [item for item in range(vocab_size) if item not in set(special_ids)]
    if half < 2 or len(ordinary_ids) < 2 * half:
        shape = np.array([item.shape[1] for item in compute_attentions(model, torch.tensor([ordinary_ids[:1] or [0]]))])
        undefined = np.full((len(shape), int(shape.max())), np.nan)
        return undefined, undefined
    tokens = _sample_distinct_tokens(ordinary_ids, 2 * half, num_rows, seed)
    tokens = tokens.to(next((p.device for p in model.parameters()), torch.device("cpu")))
    repeated = tokens[:, :half].repeat(1, 2)
    score, control = (_compute_induction_weights(compute_attentions(model, ids), half) for ids in (repeated, tokens))
    return score, control


def _sample_distinct_tokens(token_ids: Sequence[int], length: int, num_rows: int, seed: int) -> Tensor:
    """Sample rows of distinct random tokens, so that there is only one position to copy from."""
    generator = torch.Generator().manual_seed(rng.derive_seed(seed, "look", "induction"))
    orders = [torch.randperm(len(token_ids), generator=generator)[:length] for _ in range(num_rows)]
    return torch.tensor(token_ids)[torch.stack(orders)]


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
        heads = args[0].clone()
        if isinstance(module, Merge):
            heads[:, head] = 0
        else:
            head_dim = heads.shape[-1] // _get_head_count(model)
            heads[..., head * head_dim : (head + 1) * head_dim] = 0
        return (heads, *args[1:])

    hook = module.register_forward_pre_hook(zero_head)
    try:
        yield
    finally:
        hook.remove()


def _find_head_output_module(model: nn.Module, layer: int) -> nn.Module:
    """Return the module whose input contains the separate heads: our merge, or other models' output projection."""
    if isinstance(model, Transformer):
        merges: list[nn.Module] = [
            submodule for submodule in model.layers[layer].modules() if isinstance(submodule, Merge)
        ]
        if len(merges) == 1:
            return merges[0]
        raise ModelError(f"attention = {model.model_config.attention.kind!r} has no merge: its heads cannot be ablated")
    projections: list[nn.Module] = [
        module for name, module in model.named_modules() if OUTPUT_PROJECTION_PATTERN.search(name)
    ]
    if layer >= len(projections):
        raise ModelError("cannot ablate heads: the attention output projection of this model is unknown")
    return projections[layer]


def _get_head_count(model: nn.Module) -> int:
    """Return the number of attention heads in a transformers model's config."""
    for module in model.modules():
        config = getattr(module, "config", None)  # transformers models
        heads = getattr(config, "num_attention_heads", None)
        if isinstance(heads, int):
            return heads
    raise ModelError("cannot ablate heads: the number of heads of this model is unknown")


def compute_ablated_losses(
    model: nn.Module, heads: Sequence[HeadMeasures], compute_losses: Callable[[], Float[np.ndarray, " rows"]]
) -> Float[np.ndarray, "heads rows"]:
    """Return each row's loss with each head ablated in turn."""
    losses = []
    for head in heads:
        with ablate_head(model, head.layer - 1, head.head - 1):
            losses.append(compute_losses())
    return np.stack(losses)


def is_induction_head(score: float | None, control: float | None) -> bool | None:
    """Return whether the head copies, or None if it was not tested."""
    return None if score is None or control is None else bool(score - control >= INDUCTION_THRESHOLD)


def is_idle_head(loss_interval: Sequence[float] | None) -> bool | None:
    """Return whether the loss increase's entire confidence interval is negligible, or None if it is unknown."""
    return None if loss_interval is None else max(map(abs, loss_interval)) < NEGLIGIBLE_LOSS_INCREASE
