"""What a head does, in numbers: how widely and how far it looks, at whom, whether it copies, and what it is worth.

entropy     how widely a token's weight is spread, in bits: 0 is one token, 3 are eight tokens alike
distance    how far away it looks, in tokens
first, itself, previous, padding    the share of weight on the first token, the token itself, the one before, padding
induction   the share on the token after the last time that the same token occurred, on random tokens shown twice
            (Olsson et al. 2022, arXiv:2209.11895); `control` is the share on the same places when the second half is
            new, which is what a head gets that goes by position alone
rise        how much the loss rises when the head is silenced: its output is set to 0 (Michel et al. 2019,
            arXiv:1905.10650)

Means are over tokens that are not padding and not the first of their text: the first has nobody before it, and in a
decoder no choice.
"""

from __future__ import annotations

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
from headtohead.errors import ModelError
from headtohead.nn.parts.merge import Merge
from headtohead.nn.protocol import ModelOutput
from headtohead.nn.transformer import Transformer

ATTENTION_MEASURES = ("entropy", "distance", "first", "itself", "previous", "padding")
INDUCTION_THRESHOLD = 0.2
"""a head copies when repetition draws so much more of its weight than position alone"""
NEGLIGIBLE_LOSS_INCREASE = 0.01
"""nats: a head does nothing when silencing it certainly changes the loss by less, 1 % of perplexity"""
OUTPUT_PROJECTION_PATTERN = re.compile(
    r"(?:^|\.)(?:attn\.c_proj|attention\.output\.dense|self_attn\.o_proj|self_attn\.out_proj|attention\.out_lin"
    r"|attention\.dense|attn\.out_proj|attention\.out_proj)$"
)
"""what the output projection of attention is called in the models of transformers"""

HeadMeasures = dict[str, Any]
BatchWeights = Float[Tensor, "batch heads query key"]
BatchMask = Bool[Tensor, "batch length"]


@runtime_checkable
class BatchLike(Protocol):
    """What is asked of a batch."""

    @property
    def input_ids(self) -> Tensor: ...

    @property
    def attention_mask(self) -> Tensor | None: ...


def measure_maps(maps: AttentionMaps) -> list[HeadMeasures]:
    """The measures of the maps of one text, a row for each head."""
    real = torch.from_numpy(maps.real)[None]
    found = []
    for number, weights in zip(maps.layer_numbers, maps.layers, strict=True):
        totals, count = _sum_measures(torch.from_numpy(weights)[None], real)
        found += _build_head_measures(number, maps.head_numbers, totals, count)
    return found


def measure_heads(model: nn.Module, batches: Iterable[BatchLike]) -> list[HeadMeasures]:
    """The measures of every head over these rows, layer by layer; layers and heads are counted from 1."""
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
    """The maps of a batch, a tensor for each layer."""
    output: ModelOutput = model(input_ids, attention_mask, output_attentions=True)
    if not output.attentions:
        raise ModelError("the model shows no attention maps")
    return output.attentions


def _build_head_measures(layer: int, heads: Iterable[int], totals: Tensor, count: int) -> list[HeadMeasures]:
    means = (totals / count).tolist() if count else [[None] * totals.shape[1]] * len(ATTENTION_MEASURES)
    values = (dict(zip(ATTENTION_MEASURES, one, strict=True)) for one in zip(*means, strict=True))
    return [{"layer": layer, "head": head, **value} for head, value in zip(heads, values, strict=True)]


def _sum_measures(weights: BatchWeights, attention_mask: BatchMask) -> tuple[Float[Tensor, "measures heads"], int]:
    """The sum of each measure over the tokens that count, and how many those are."""
    at = attention_mask.long().cumsum(1) - 1
    counted = attention_mask & (at > 0)
    apart = (at[:, :, None] - at[:, None, :])[:, None]
    key = attention_mask[:, None, None, :]
    places = {
        "first": key & (at == 0)[:, None, None, :],
        "itself": key & (apart == 0),
        "previous": key & (apart == 1),
        "padding": ~key,
    }
    each = {
        "entropy": torch.special.entr(weights.clamp_min(0)).sum(-1) / np.log(2),
        "distance": (weights * apart.abs() * key).sum(-1),
        **{name: (weights * where).sum(-1) for name, where in places.items()},
    }
    totals = [(each[name].double() * counted[:, None]).sum((0, 2)) for name in ATTENTION_MEASURES]
    return torch.stack(totals), int(counted.sum())


# ---- heads that copy


def compute_induction_scores(
    model: nn.Module,
    vocab_size: int,
    *,
    length: int,
    num_rows: int = 4,
    special_ids: Iterable[int | None] = (),
    seed: int = 0,
) -> tuple[Float[np.ndarray, "layers heads"], Float[np.ndarray, "layers heads"]]:
    """(score, control) of every head on rows of random tokens shown twice, `length` tokens in all."""
    half = length // 2
    usual = [one for one in range(vocab_size) if one not in set(special_ids)]
    if half < 2 or len(usual) < 2 * half:
        shape = np.array([one.shape[1] for one in compute_attentions(model, torch.tensor([usual[:1] or [0]]))])
        nothing = np.full((len(shape), int(shape.max())), np.nan)
        return nothing, nothing
    drawn = _sample_distinct_tokens(usual, 2 * half, num_rows, seed)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    once, new = drawn[:, :half], drawn[:, half:]
    twice, control = torch.cat((once, once), 1).to(device), torch.cat((once, new), 1).to(device)
    return _compute_induction_weights(compute_attentions(model, twice), half), _compute_induction_weights(
        compute_attentions(model, control), half
    )


def _sample_distinct_tokens(token_ids: Sequence[int], length: int, num_rows: int, seed: int) -> Tensor:
    """Random tokens, none twice in a row of them, so that there is one place to copy from and no more."""
    generator = torch.Generator().manual_seed(rng.derive_seed(seed, "look", "induction"))
    orders = [torch.randperm(len(token_ids), generator=generator)[:length] for _ in range(num_rows)]
    return torch.tensor(token_ids)[torch.stack(orders)]


def _compute_induction_weights(
    attentions: Iterable[BatchWeights], half_length: int
) -> Float[np.ndarray, "layers heads"]:
    """The mean weight from each token of the second half on the one after the same token in the first."""
    found = [weights[:, :, half_length:].diagonal(1, dim1=-2, dim2=-1).double().mean((0, -1)) for weights in attentions]
    return np.stack([one.cpu().numpy() for one in found])


# ---- heads that are worth something


@contextmanager
def ablate_head(model: nn.Module, layer: int, head: int) -> Iterator[None]:
    """Inside, this head (counted from 0 here, as arrays are) puts out 0; nothing else changes."""
    place = _find_head_output_module(model, layer)

    def without(_module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        heads = given[0].clone()
        if isinstance(place, Merge):
            heads[:, head] = 0
        else:
            wide = heads.shape[-1] // _get_head_count(model)
            heads[..., head * wide : (head + 1) * wide] = 0
        return (heads, *given[1:])

    hook = place.register_forward_pre_hook(without)
    try:
        yield
    finally:
        hook.remove()


def _find_head_output_module(model: nn.Module, layer: int) -> nn.Module:
    """Where the heads of a layer are still apart: before the merge of ours, before the output projection of others."""
    if isinstance(model, Transformer):
        merges: list[nn.Module] = [one for one in model.layers[layer].modules() if isinstance(one, Merge)]
        if len(merges) == 1:
            return merges[0]
        raise ModelError(
            f"attention = {model.model_config.attention.kind!r} has no merge: its heads cannot be silenced"
        )
    found: list[nn.Module] = [
        module for name, module in model.named_modules() if OUTPUT_PROJECTION_PATTERN.search(name)
    ]
    if layer >= len(found):
        raise ModelError("it is not known where this model's heads are still apart: they cannot be silenced")
    return found[layer]


def _get_head_count(model: nn.Module) -> int:
    for module in model.modules():
        config = getattr(module, "config", None)  # as every model of transformers has it
        heads = getattr(config, "num_attention_heads", None)
        if isinstance(heads, int):
            return heads
    raise ModelError("it is not known how many heads this model has: they cannot be silenced")


def compute_loss_increases(
    model: nn.Module,
    num_layers: int,
    num_heads: int,
    compute_losses: Callable[[], Float[np.ndarray, " rows"]],
    baseline_losses: Float[np.ndarray, " rows"] | None = None,
) -> Float[np.ndarray, "layers heads rows"]:
    """How much each row's loss, as `score` gives it, rises above `whole` when each head is silenced."""
    baseline_losses = compute_losses() if baseline_losses is None else baseline_losses
    rises = np.zeros((num_layers, num_heads, len(baseline_losses)))
    for layer in range(num_layers):
        for head in range(num_heads):
            with ablate_head(model, layer, head):
                rises[layer, head] = compute_losses() - baseline_losses
    return rises


def is_induction_head(head_measures: HeadMeasures) -> bool | None:
    """Does this head copy? None when it was not tried."""
    if head_measures.get("induction") is None or head_measures.get("control") is None:
        return None
    return bool(head_measures["induction"] - head_measures["control"] >= INDUCTION_THRESHOLD)


def is_idle_head(head_measures: HeadMeasures) -> bool | None:
    """Does this head do nothing: is the whole interval of its loss rise too small to count? None when not known."""
    ends = head_measures.get("rise_interval")
    return None if ends is None else bool(max(map(abs, ends)) < NEGLIGIBLE_LOSS_INCREASE)
