"""Request handlers in the model process: attention maps, next-token logits, and side-by-side generation.

Each handler is a generator that yields responses.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from headtohead.attention_analysis import page
from headtohead.attention_analysis.analysis import analyze_attention
from headtohead.errors import HeadToHeadError, ModelError, RequestError
from headtohead.generation import trace
from headtohead.generation.job import resolve_decoder
from headtohead.generation.prompt_encoding import encode_prompt
from headtohead.generation.session import DecodingSession
from headtohead.generation.strategies import Strategy
from headtohead.generation.strategy_parsing import format_strategy, parse_strategies
from headtohead.saved_models.open_model import ModelBundle
from headtohead.web.models.model_cache import MODEL_CACHE

MAX_ATTENTION_WEIGHTS = 1 << 24
"""attention weights of one model on one text"""
MAX_PARALLEL_GENERATIONS = 8
MAX_BEAMS = 8
MAX_CONTRASTIVE_CANDIDATES = 16
MAX_LISTED_TOKENS = 300
"""next tokens that are listed individually"""
NUM_PRECEDING_TOKENS = 40
"""tokens before the next one that the playground shows"""
TEMPERATURE_GRID = tuple(round(0.05 * i, 2) for i in range(1, 41))
"""temperatures at which the total weight of all other tokens is reported"""
JsonDict = dict[str, Any]


def dispatch_request(request: JsonDict) -> Iterator[JsonDict]:
    """Yield the responses of the handler for a request's action."""
    handlers = {
        "attention": compute_attention_maps,
        "next": compute_next_token_logits,
        "generate": generate_side_by_side,
    }
    return handlers[request["action"]](request)


def compute_attention_maps(request: JsonDict) -> Iterator[JsonDict]:
    """Yield one model's maps, or two models' maps and their difference, as HTML and as data."""
    with ExitStack() as stack:
        models = [stack.enter_context(MODEL_CACHE.acquire(model)) for model in request["models"]]
        for model in models:
            _check_attention_size(model, request["text"])
        compare_to = models[1] if len(models) > 1 else None
        analysis = analyze_attention(models[0], request["text"], compare_to=compare_to)
    yield {"event": "maps", "html": page.render_body(analysis), "analysis": analysis.to_dict()}


@torch.no_grad()
def _check_attention_size(bundle: ModelBundle, text: str) -> None:
    """Raise RequestError if the attention maps that a request asks for would hold too many weights."""
    token_ids = bundle.tokenizer.encode(text)[: bundle.model.context]
    if len(token_ids) < 2:
        return
    attentions = bundle.model(torch.tensor([token_ids[:2]]), None, output_attentions=True).attentions
    num_heads = sum(layer.shape[1] for layer in attentions or ())
    if num_heads * len(token_ids) ** 2 > MAX_ATTENTION_WEIGHTS:
        max_tokens = math.isqrt(MAX_ATTENTION_WEIGHTS // num_heads)
        raise RequestError(f"text too long: {len(token_ids):,} tokens; at most {max_tokens:,} with {num_heads:,} heads")


def compute_next_token_logits(request: JsonDict) -> Iterator[JsonDict]:
    """Yield the logits of the most likely next tokens and the total weight of all remaining tokens.

    From these, the browser computes which tokens any given temperature, k and p would keep.
    """
    with MODEL_CACHE.acquire(request["model"]) as bundle:
        model, tokenizer = resolve_decoder(bundle)
        prompt_ids = encode_prompt(tokenizer, request["prompt"], use_chat_template=request["chat"])
        generated_ids = request["generated_ids"]
        if any(token_id >= tokenizer.vocab_size for token_id in generated_ids):
            raise RequestError("generated_ids: token outside the model's vocabulary")
        token_ids = [*prompt_ids, *generated_ids]
        logits = DecodingSession(model, [token_ids]).logits[0].float()
        preceding_text = tokenizer.decode(token_ids[-NUM_PRECEDING_TOKENS:])
        yield {"event": "next", "before": preceding_text, **summarize_next_token_logits(logits, tokenizer)}


def summarize_next_token_logits(logits: torch.Tensor, tokenizer: Any) -> JsonDict:
    """Return what the playground's request shows of next-token logits, (vocab,), as plain Python values.

    The logits of the most likely tokens are relative to the largest one, in descending order. All other tokens are
    summarized by the log of their total weight at each temperature.
    """
    if not bool(torch.isfinite(logits.max())):
        raise ModelError("the model returned non-finite logits")
    top = logits.topk(min(MAX_LISTED_TOKENS, len(logits)))
    is_unlisted = torch.ones_like(logits, dtype=torch.bool)
    is_unlisted[top.indices] = False
    other_logits = logits[is_unlisted].double() - float(top.values[0])
    return {
        "vocabulary": len(logits),
        "ids": top.indices.tolist(),
        "tokens": [trace.get_token_text(tokenizer, token_id) for token_id in top.indices.tolist()],
        "logits": [round(logit, 4) for logit in (top.values - top.values[0]).tolist()],
        "temperatures": TEMPERATURE_GRID,
        "others": [_compute_logsumexp(other_logits / temperature) for temperature in TEMPERATURE_GRID],
    }


def _compute_logsumexp(logits: torch.Tensor) -> float | None:
    """Return the log of the tokens' total weight, or None if there are no tokens, because JSON has no infinity."""
    logsumexp = float(torch.logsumexp(logits, 0)) if len(logits) else -math.inf
    return round(logsumexp, 5) if math.isfinite(logsumexp) else None


def generate_side_by_side(request: JsonDict) -> Iterator[JsonDict]:
    """Yield tokens from every model with every strategy, one from each in turn."""
    strategies = parse_strategies(",".join(request["strategies"]))
    for strategy in strategies.values():
        _check_strategy_limits(strategy)
    if len(request["models"]) * len(strategies) > MAX_PARALLEL_GENERATIONS:
        raise RequestError(
            f"{len(request['models'])} models x {len(strategies)} strategies; at most {MAX_PARALLEL_GENERATIONS} texts"
        )
    with ExitStack() as stack:
        models = [(model["label"], stack.enter_context(MODEL_CACHE.acquire(model))) for model in request["models"]]
        columns = [(label, bundle, strategy) for label, bundle in models for strategy in strategies.values()]
        column_headers = [
            {
                "model": label,
                "strategy": format_strategy(strategy),
                "note": trace.explain_missing_distribution(strategy),
            }
            for label, _, strategy in columns
        ]
        yield {"event": "start", "columns": column_headers}
        streams = deque(
            _stream_generation(index, bundle, strategy, request) for index, (_, bundle, strategy) in enumerate(columns)
        )
        while streams:
            stream = streams.popleft()
            if (event := next(stream, None)) is not None:
                yield event
                streams.append(stream)


def _stream_generation(
    column_index: int, bundle: ModelBundle, strategy: Strategy, request: JsonDict
) -> Iterator[JsonDict]:
    """Yield one event per token generated for one column, or an error event."""
    options = {
        "max_new_tokens": request["max_new_tokens"],
        "seed": request["seed"],
        "use_chat_template": request["chat"],
    }
    try:
        for step in trace.trace_generation(bundle, request["prompt"], strategy, **options):
            event = {
                "event": "token",
                "column": column_index,
                "text": step.text,
                "ended": step.finish_reason,
                "has_overflowed": step.has_overflowed,
            }
            yield event | trace.build_trace_record(bundle.tokenizer, step, strategy)
    except HeadToHeadError as error:
        yield {"event": "error", "column": column_index, "message": str(error)}


def _check_strategy_limits(strategy: Strategy) -> None:
    """Raise RequestError if the decoding strategy of a request exceeds the web app's limits."""
    limits: Sequence[tuple[str, str, int]] = (
        ("beam", "beams", MAX_BEAMS),
        ("contrastive", "k", MAX_CONTRASTIVE_CANDIDATES),
    )
    for name, option, limit in limits:
        if strategy.name == name and strategy.get_option(option) > limit:
            raise RequestError(f"{name}: {option} must be at most {limit} here, got {strategy.get_option(option)}")
