"""Request handlers in the model process: attention maps, next-token logits, and side-by-side generation.

Each handler is a generator that yields responses. Recently used models stay loaded, up to a memory limit.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headtohead.attention_analysis import api, page
from headtohead.errors import HeadToHeadError, ModelError, RequestError
from headtohead.generation import trace
from headtohead.generation.detokenizer import encode_prompt
from headtohead.generation.request import resolve_decoder
from headtohead.generation.session import DecodingSession
from headtohead.generation.strategies import Strategy
from headtohead.generation.strategy_parsing import format_strategy, parse_strategies
from headtohead.pretrained.loading import load_pretrained
from headtohead.pretrained.weights import locate_weights
from headtohead.saved_models import model_io
from headtohead.saved_models.open_model import ModelBundle
from headtohead.training.checkpoints import load_tensors, read_weights
from headtohead.web.models.catalog import FINAL_CHECKPOINT, INITIAL_CHECKPOINT

MAX_CACHE_BYTES = 2 << 30
"""total size of loaded models, as float32"""
MAX_CACHED_MODELS = 8
MAX_ATTENTION_WEIGHTS = 1 << 24
"""attention weights of one model on one text"""
MAX_PARALLEL_GENERATIONS = 8
MAX_BEAMS = 8
MAX_CONTRASTIVE_CANDIDATES = 16
MAX_LISTED_TOKENS = 300
"""next tokens that are listed individually"""
TEMPERATURE_GRID = tuple(round(0.05 * i, 2) for i in range(1, 41))
"""temperatures at which the total weight of all other tokens is reported"""
JsonDict = dict[str, Any]


@dataclass
class CachedModel:
    """A loaded model in the cache."""

    bundle: ModelBundle
    size_bytes: int
    active_users: int = 0


class ModelCache:
    """Least-recently-used cache of loaded models. Models in use are never evicted."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.cached_models: dict[tuple[str, str, int], CachedModel] = {}

    @contextmanager
    def acquire(self, load_request: JsonDict) -> Iterator[ModelBundle]:
        """Yield a model and keep it loaded while it is in use."""
        key, size = _compute_cache_key_and_size(load_request)
        cached = self.cached_models.pop(key, None)
        if cached is None:
            self._evict_until_fits(size)
            cached = CachedModel(_load_model(load_request), size)
        self.cached_models[key] = cached  # reinsert as the most recently used
        cached.active_users += 1
        try:
            yield cached.bundle
        finally:
            cached.active_users -= 1

    def _evict_until_fits(self, size_bytes: int) -> None:
        """Remove idle models, least recently used first, until `size_bytes` more fit into the cache."""
        if size_bytes > self.max_bytes:
            raise ModelError(f"this model needs {size_bytes >> 20:,} MB; the limit is {self.max_bytes >> 20:,} MB")
        for key, cached in list(self.cached_models.items()):
            if (
                len(self.cached_models) < MAX_CACHED_MODELS
                and self._compute_total_bytes() + size_bytes <= self.max_bytes
            ):
                return
            if not cached.active_users:
                del self.cached_models[key]
        if self._compute_total_bytes() + size_bytes > self.max_bytes:
            raise RequestError("models in use occupy all memory; try again when they are free")

    def _compute_total_bytes(self) -> int:
        return sum(cached.size_bytes for cached in self.cached_models.values())


def _compute_cache_key_and_size(load_request: JsonDict) -> tuple[tuple[str, str, int], int]:
    """Return a cache key, which includes the weights' modification time, and the size in bytes."""
    if not load_request["run"]:
        return (load_request["place"], FINAL_CHECKPOINT, 0), 4 * locate_weights(load_request["place"]).num_parameters
    stat = (Path(load_request["place"]) / "model.safetensors").stat()
    return (load_request["place"], load_request["checkpoint"], stat.st_mtime_ns), stat.st_size


def _load_model(load_request: JsonDict) -> ModelBundle:
    """Load a pretrained model, or a checkpoint from a run."""
    if not load_request["run"]:
        return load_pretrained(load_request["place"])
    folder, checkpoint = Path(load_request["place"]), load_request["checkpoint"]
    bundle = model_io.load(folder, use_initial_weights=checkpoint == INITIAL_CHECKPOINT)
    if checkpoint not in (INITIAL_CHECKPOINT, FINAL_CHECKPOINT):
        load_tensors(bundle.model, read_weights(folder / checkpoint / "model.safetensors"), checkpoint)
    return replace(bundle, folder=Path(load_request["label"]))  # pages show the label instead of the path


MODEL_CACHE = ModelCache()


def dispatch_request(request: JsonDict) -> Iterator[JsonDict]:
    """Yield the responses to a request."""
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
        analysis = api.analyze_attention(models[0], request["text"], compare_to=compare_to)
    yield {"event": "maps", "html": page.render_body(analysis), "analysis": analysis.to_dict()}


@torch.no_grad()
def _check_attention_size(bundle: ModelBundle, text: str) -> None:
    """Raise RequestError if the text's attention maps would hold too many weights."""
    ids = bundle.tokenizer.encode(text)[: bundle.model.context]
    if len(ids) < 2:
        return
    attentions = bundle.model(torch.tensor([ids[:2]]), None, output_attentions=True).attentions
    num_heads = sum(layer.shape[1] for layer in attentions or ())
    if num_heads * len(ids) ** 2 > MAX_ATTENTION_WEIGHTS:
        max_tokens = math.isqrt(MAX_ATTENTION_WEIGHTS // num_heads)
        raise RequestError(f"text too long: {len(ids):,} tokens; at most {max_tokens:,} with {num_heads:,} heads")


def compute_next_token_logits(request: JsonDict) -> Iterator[JsonDict]:
    """Yield the logits of the most likely next tokens and the total weight of all remaining tokens.

    From these, the browser computes which tokens any given temperature, k and p would keep.
    """
    with MODEL_CACHE.acquire(request["model"]) as bundle:
        model, tokenizer = resolve_decoder(bundle)
        ids = encode_prompt(tokenizer, request["prompt"], use_chat_template=request["chat"])
        generated_ids = request["generated_ids"]
        if any(token >= tokenizer.vocab_size for token in generated_ids):
            raise RequestError("generated_ids: token outside the model's vocabulary")
        logits = DecodingSession(model, [[*ids, *generated_ids]]).logits[0].float()
        before = tokenizer.decode([*ids, *generated_ids][-40:])
        yield {"event": "next", "before": before, **summarize_logits(logits, tokenizer)}


def summarize_logits(logits: torch.Tensor, tokenizer: Any) -> JsonDict:
    """Return the logits relative to the largest one, in descending order, as plain Python values."""
    if not bool(torch.isfinite(logits.max())):
        raise ModelError("the model returned non-finite logits")
    top = logits.topk(min(MAX_LISTED_TOKENS, len(logits)))
    is_unlisted = torch.ones_like(logits, dtype=torch.bool)
    is_unlisted[top.indices] = False
    other_logits = logits[is_unlisted].double() - float(top.values[0])
    return {
        "vocabulary": len(logits),
        "ids": top.indices.tolist(),
        "tokens": [trace.format_token(tokenizer, token) for token in top.indices.tolist()],
        "logits": [round(logit, 4) for logit in (top.values - top.values[0]).tolist()],
        "temperatures": TEMPERATURE_GRID,
        "others": [_compute_logsumexp(other_logits / t) for t in TEMPERATURE_GRID],
    }


def _compute_logsumexp(logits: torch.Tensor) -> float | None:
    value = float(torch.logsumexp(logits, 0)) if len(logits) else -math.inf
    return round(value, 5) if math.isfinite(value) else None


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
        pairs = [(name, bundle, strategy) for name, bundle in models for strategy in strategies.values()]
        columns = [
            {
                "model": name,
                "strategy": format_strategy(strategy),
                "note": trace.explain_missing_distribution(strategy),
            }
            for name, _, strategy in pairs
        ]
        yield {"event": "start", "columns": columns}
        streams = deque(
            _stream_generation(index, bundle, strategy, request) for index, (_, bundle, strategy) in enumerate(pairs)
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
            yield event | trace.build_step_record(bundle.tokenizer, step, strategy)
    except HeadToHeadError as error:
        yield {"event": "error", "column": column_index, "message": str(error)}


def _check_strategy_limits(strategy: Strategy) -> None:
    """Raise RequestError if a decoding strategy exceeds the web app's limits."""
    limits: Sequence[tuple[str, str, int]] = (
        ("beam", "beams", MAX_BEAMS),
        ("contrastive", "k", MAX_CONTRASTIVE_CANDIDATES),
    )
    for name, option, limit in limits:
        if strategy.name == name and strategy.get_option(option) > limit:
            raise RequestError(f"{name}: {option} must be at most {limit} here, got {strategy.get_option(option)}")
