"""What the model process does: maps of a text, what may come next, texts written side by side. Each is a generator of
answers. Models stay loaded, the last few, within a bound of memory."""

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
from headtohead.experiment import model_io
from headtohead.experiment.open_model import ModelBundle
from headtohead.generation import trace
from headtohead.generation.detokenizer import encode_prompt
from headtohead.generation.generate import trace_generation
from headtohead.generation.request import resolve_decoder
from headtohead.generation.session import DecodingSession
from headtohead.generation.strategies import Strategy
from headtohead.generation.strategy_parsing import format_strategy, parse_strategies
from headtohead.pretrained.loading import load_pretrained
from headtohead.pretrained.weights import locate_weights
from headtohead.training.checkpoints import load_tensors, read_weights
from headtohead.web.models.catalog import FINAL_CHECKPOINT, INITIAL_CHECKPOINT

MAX_CACHE_BYTES = 2 << 30
"""of all models together, as float32"""
MAX_CACHED_MODELS = 8
MAX_ATTENTION_WEIGHTS = 1 << 24
"""weights in all maps of a model on a text"""
MAX_PARALLEL_GENERATIONS = 8
"""written side by side"""
MAX_BEAMS = 8
MAX_CONTRASTIVE_CANDIDATES = 16
"""of contrastive search"""
MAX_LISTED_TOKENS = 300
"""tokens that are told apart in what may come next"""
TEMPERATURE_GRID = tuple(round(0.05 * i, 2) for i in range(1, 41))
"""at which the weight of all others is told"""
JsonDict = dict[str, Any]


@dataclass
class CachedModel:
    """A model that is loaded."""

    opened: ModelBundle
    size: int
    active_users: int = 0


class ModelCache:
    """Loaded models: the one that was not used for longest goes first, and none that is in use."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.kept: dict[tuple[str, str, int], CachedModel] = {}

    @contextmanager
    def take(self, load_request: JsonDict) -> Iterator[ModelBundle]:
        """A model, for as long as it is used."""
        key, size = _compute_cache_key_and_size(load_request)
        kept = self.kept.pop(key, None)
        if kept is None:
            self._evict_until_fits(size)
            kept = CachedModel(_load_model(load_request), size)
        self.kept[key] = kept  # the last is the one used most recently
        kept.active_users += 1
        try:
            yield kept.opened
        finally:
            kept.active_users -= 1

    def _evict_until_fits(self, size_bytes: int) -> None:
        if size_bytes > self.max_bytes:
            raise ModelError(
                f"this model takes {size_bytes >> 20:,} MB, and there is room for {self.max_bytes >> 20:,} MB"
            )
        for key, kept in list(self.kept.items()):
            if len(self.kept) < MAX_CACHED_MODELS and self._compute_total_bytes() + size_bytes <= self.max_bytes:
                return
            if not kept.active_users:
                del self.kept[key]
        if self._compute_total_bytes() + size_bytes > self.max_bytes:
            raise RequestError("the models that are in use take all the room; ask again when they are free")

    def _compute_total_bytes(self) -> int:
        return sum(kept.size for kept in self.kept.values())


def _compute_cache_key_and_size(load_request: JsonDict) -> tuple[tuple[str, str, int], int]:
    """What a model is known by, with the time of its last change; and its size in bytes."""
    if not load_request["run"]:
        return (load_request["place"], FINAL_CHECKPOINT, 0), 4 * locate_weights(load_request["place"]).num_parameters
    about = (Path(load_request["place"]) / "model.safetensors").stat()
    return (load_request["place"], load_request["at"], about.st_mtime_ns), about.st_size


def _load_model(load_request: JsonDict) -> ModelBundle:
    if not load_request["run"]:
        return load_pretrained(load_request["place"])
    place, at = Path(load_request["place"]), load_request["at"]
    opened = model_io.load(place, use_initial_weights=at == INITIAL_CHECKPOINT)
    if at not in (INITIAL_CHECKPOINT, FINAL_CHECKPOINT):
        load_tensors(opened.model, read_weights(place / at / "model.safetensors"), at)
    return replace(opened, folder=Path(load_request["label"]))  # it goes by its label, wherever it lies


MODEL_CACHE = ModelCache()


def dispatch_request(request: JsonDict) -> Iterator[JsonDict]:
    """The answers to a request."""
    return {"attention": compute_attention_maps, "next": compute_next_token_logits, "write": generate_side_by_side}[
        request["what"]
    ](request)


# ---- attention


def compute_attention_maps(request: JsonDict) -> Iterator[JsonDict]:
    """The maps of one model on a text, or of two and their difference, as a piece of a page and as data."""
    with ExitStack() as used:
        models = [used.enter_context(MODEL_CACHE.take(one)) for one in request["models"]]
        for one in models:
            _check_attention_size(one, request["text"])
        found = api.analyze_attention(models[0], request["text"], compare_to=models[1] if len(models) > 1 else None)
    yield {"event": "maps", "html": page.render_body(found.figure), "found": found.to_dict()}


@torch.no_grad()
def _check_attention_size(bundle: ModelBundle, text: str) -> None:
    ids = bundle.tokenizer.encode(text)[: bundle.model.context]
    if len(ids) < 2:
        return
    heads = sum(
        one.shape[1] for one in bundle.model(torch.tensor([ids[:2]]), None, output_attentions=True).attentions or ()
    )
    if heads * len(ids) ** 2 > MAX_ATTENTION_WEIGHTS:
        most = math.isqrt(MAX_ATTENTION_WEIGHTS // heads)
        raise RequestError(f"a text of {len(ids):,} tokens: with {heads:,} heads, at most {most:,} can be shown")


# ---- what may come next


def compute_next_token_logits(request: JsonDict) -> Iterator[JsonDict]:
    """The likeliest tokens after a prompt and the beginning of a continuation, with their logits, and the rest as one
    heap: a browser can work out from it what every temperature, k and p would keep."""
    with MODEL_CACHE.take(request["model"]) as opened:
        model, tokenizer = resolve_decoder(opened)
        ids = encode_prompt(tokenizer, request["prompt"], use_chat_template=request["chat"])
        made = request["made"]
        if any(one >= tokenizer.vocab_size for one in made):
            raise RequestError("made: there is no such token in the model's vocabulary")
        logits = DecodingSession(model, [[*ids, *made]]).logits[0].float()
        before = tokenizer.decode([*ids, *made][-40:])
        yield {"event": "next", "before": before, **summarize_logits(logits, tokenizer)}


def summarize_logits(logits: torch.Tensor, tokenizer: Any) -> JsonDict:
    """Logits as plain values, the likeliest first and relative to it."""
    if not bool(torch.isfinite(logits.max())):
        raise ModelError("the model's logits are not numbers")
    top = logits.topk(min(MAX_LISTED_TOKENS, len(logits)))
    rest = torch.ones_like(logits, dtype=torch.bool)
    rest[top.indices] = False
    others = logits[rest].double() - float(top.values[0])
    return {
        "vocabulary": len(logits),
        "ids": top.indices.tolist(),
        "tokens": [trace.format_token(tokenizer, one) for one in top.indices.tolist()],
        "logits": [round(one, 4) for one in (top.values - top.values[0]).tolist()],
        "temperatures": TEMPERATURE_GRID,
        "others": [_compute_logsumexp(others / t) for t in TEMPERATURE_GRID],
    }


def _compute_logsumexp(logits: torch.Tensor) -> float | None:
    found = float(torch.logsumexp(logits, 0)) if len(logits) else -math.inf
    return round(found, 5) if math.isfinite(found) else None


# ---- texts, side by side


def generate_side_by_side(request: JsonDict) -> Iterator[JsonDict]:
    """Every model with every strategy, a token of each in turn."""
    strategies = parse_strategies(",".join(request["strategies"]))
    for one in strategies.values():
        _check_strategy_limits(one)
    if len(request["models"]) * len(strategies) > MAX_PARALLEL_GENERATIONS:
        raise RequestError(
            f"{len(request['models'])} models with {len(strategies)} strategies are more than {MAX_PARALLEL_GENERATIONS} texts"  # noqa: E501
        )
    with ExitStack() as used:
        models = [(named["label"], used.enter_context(MODEL_CACHE.take(named))) for named in request["models"]]
        pairs = [(name, opened, strategy) for name, opened in models for strategy in strategies.values()]
        columns = [
            {"model": name, "strategy": format_strategy(one), "note": trace.explain_missing_distribution(one)}
            for name, _, one in pairs
        ]
        yield {"event": "begin", "columns": columns}
        writers = deque(_stream_generation(at, opened, one, request) for at, (_, opened, one) in enumerate(pairs))
        while writers:
            writer = writers.popleft()
            if (told := next(writer, None)) is not None:
                yield told
                writers.append(writer)


def _stream_generation(
    column_index: int, bundle: ModelBundle, strategy: Strategy, request: JsonDict
) -> Iterator[JsonDict]:
    options = {"max_new_tokens": request["tokens"], "seed": request["seed"], "use_chat_template": request["chat"]}
    try:
        for moment in trace_generation(bundle, request["prompt"], strategy, **options):
            told = {
                "event": "token",
                "column": column_index,
                "text": moment.text,
                "ended": moment.ended,
                "slid": moment.has_overflowed,
            }
            yield told | trace.build_step_record(bundle.tokenizer, moment, strategy)
    except HeadToHeadError as error:
        yield {"event": "wrong", "column": column_index, "message": str(error)}


def _check_strategy_limits(strategy: Strategy) -> None:
    limits: Sequence[tuple[str, str, int]] = (
        ("beam", "beams", MAX_BEAMS),
        ("contrastive", "k", MAX_CONTRASTIVE_CANDIDATES),
    )
    for name, option, most in limits:
        if strategy.name == name and strategy.get_option(option) > most:
            raise RequestError(f"{name}: {option} is at most {most} here, not {strategy.get_option(option)}")
