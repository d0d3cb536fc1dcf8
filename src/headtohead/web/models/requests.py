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
from headtohead.experiment.open_model import Opened
from headtohead.generation import trace
from headtohead.generation.detokenizer import prompt_ids
from headtohead.generation.generate import watch
from headtohead.generation.request import decoder_of
from headtohead.generation.session import Reader
from headtohead.generation.strategies import Strategy
from headtohead.generation.strategy_parsing import label, read_strategies
from headtohead.pretrained.loading import load_pretrained
from headtohead.pretrained.weights import find
from headtohead.training.checkpoints import load_tensors, read_weights
from headtohead.web.models.catalog import AFTER, BEFORE

MOST_BYTES = 2 << 30
"""of all models together, as float32"""
MOST_KEPT = 8
MOST_CELLS = 1 << 24
"""weights in all maps of a model on a text"""
MOST_TEXTS = 8
"""written side by side"""
MOST_BEAMS = 8
MOST_CANDIDATES = 16
"""of contrastive search"""
TOP = 300
"""tokens that are told apart in what may come next"""
TEMPERATURES = tuple(round(0.05 * i, 2) for i in range(1, 41))
"""at which the weight of all others is told"""
Json = dict[str, Any]


@dataclass
class Kept:
    """A model that is loaded."""

    opened: Opened
    size: int
    users: int = 0


class Shelf:
    """Loaded models: the one that was not used for longest goes first, and none that is in use."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self.kept: dict[tuple[str, str, int], Kept] = {}

    @contextmanager
    def take(self, named: Json) -> Iterator[Opened]:
        """A model, for as long as it is used."""
        key, size = _measured(named)
        kept = self.kept.pop(key, None)
        if kept is None:
            self._make_room(size)
            kept = Kept(_load(named), size)
        self.kept[key] = kept  # the last is the one used most recently
        kept.users += 1
        try:
            yield kept.opened
        finally:
            kept.users -= 1

    def _make_room(self, size: int) -> None:
        if size > self.most_bytes:
            raise ModelError(f"this model takes {size >> 20:,} MB, and there is room for {self.most_bytes >> 20:,} MB")
        for key, kept in list(self.kept.items()):
            if len(self.kept) < MOST_KEPT and self._total() + size <= self.most_bytes:
                return
            if not kept.users:
                del self.kept[key]
        if self._total() + size > self.most_bytes:
            raise RequestError("the models that are in use take all the room; ask again when they are free")

    def _total(self) -> int:
        return sum(kept.size for kept in self.kept.values())


def _measured(named: Json) -> tuple[tuple[str, str, int], int]:
    """What a model is known by, with the time of its last change; and its size in bytes."""
    if not named["run"]:
        return (named["place"], AFTER, 0), 4 * find(named["place"]).parameters
    about = (Path(named["place"]) / "model.safetensors").stat()
    return (named["place"], named["at"], about.st_mtime_ns), about.st_size


def _load(named: Json) -> Opened:
    if not named["run"]:
        return load_pretrained(named["place"])
    place, at = Path(named["place"]), named["at"]
    opened = model_io.load(place, initial=at == BEFORE)
    if at not in (BEFORE, AFTER):
        load_tensors(opened.model, read_weights(place / at / "model.safetensors"), at)
    return replace(opened, folder=Path(named["label"]))  # it goes by its label, wherever it lies


SHELF = Shelf()


def begin(asked: Json) -> Iterator[Json]:
    """The answers to a request."""
    return {"attention": attention, "next": next_token, "write": write}[asked["what"]](asked)


# ---- attention


def attention(asked: Json) -> Iterator[Json]:
    """The maps of one model on a text, or of two and their difference, as a piece of a page and as data."""
    with ExitStack() as used:
        models = [used.enter_context(SHELF.take(one)) for one in asked["models"]]
        for one in models:
            _check_cells(one, asked["text"])
        found = api.attention(models[0], asked["text"], against=models[1] if len(models) > 1 else None)
    yield {"event": "maps", "html": page.inner(found.sheet), "found": found.as_row()}


@torch.no_grad()
def _check_cells(opened: Opened, text: str) -> None:
    ids = opened.tokenizer.encode(text)[: opened.model.context]
    if len(ids) < 2:
        return
    heads = sum(one.shape[1] for one in opened.model(torch.tensor([ids[:2]]), None, maps=True).maps or ())
    if heads * len(ids) ** 2 > MOST_CELLS:
        most = math.isqrt(MOST_CELLS // heads)
        raise RequestError(f"a text of {len(ids):,} tokens: with {heads:,} heads, at most {most:,} can be shown")


# ---- what may come next


def next_token(asked: Json) -> Iterator[Json]:
    """The likeliest tokens after a prompt and the beginning of a continuation, with their logits, and the rest as one
    heap: a browser can work out from it what every temperature, k and p would keep."""
    with SHELF.take(asked["model"]) as opened:
        model, tokenizer = decoder_of(opened)
        ids = prompt_ids(tokenizer, asked["prompt"], chat=asked["chat"])
        made = asked["made"]
        if any(one >= tokenizer.vocab_size for one in made):
            raise RequestError("made: there is no such token in the model's vocabulary")
        logits = Reader(model, [[*ids, *made]]).logits[0].float()
        before = tokenizer.decode([*ids, *made][-40:])
        yield {"event": "next", "before": before, **spread(logits, tokenizer)}


def spread(logits: torch.Tensor, tokenizer: Any) -> Json:
    """Logits as plain values, the likeliest first and relative to it."""
    if not bool(torch.isfinite(logits.max())):
        raise ModelError("the model's logits are not numbers")
    top = logits.topk(min(TOP, len(logits)))
    rest = torch.ones_like(logits, dtype=torch.bool)
    rest[top.indices] = False
    others = logits[rest].double() - float(top.values[0])
    return {
        "vocabulary": len(logits),
        "ids": top.indices.tolist(),
        "tokens": [trace.shown(tokenizer, one) for one in top.indices.tolist()],
        "logits": [round(one, 4) for one in (top.values - top.values[0]).tolist()],
        "temperatures": TEMPERATURES,
        "others": [_log_sum(others / t) for t in TEMPERATURES],
    }


def _log_sum(values: torch.Tensor) -> float | None:
    found = float(torch.logsumexp(values, 0)) if len(values) else -math.inf
    return round(found, 5) if math.isfinite(found) else None


# ---- texts, side by side


def write(asked: Json) -> Iterator[Json]:
    """Every model with every strategy, a token of each in turn."""
    strategies = read_strategies(",".join(asked["strategies"]))
    for one in strategies.values():
        _check_search(one)
    if len(asked["models"]) * len(strategies) > MOST_TEXTS:
        raise RequestError(
            f"{len(asked['models'])} models with {len(strategies)} strategies are more than {MOST_TEXTS} texts"
        )
    with ExitStack() as used:
        models = [(named["label"], used.enter_context(SHELF.take(named))) for named in asked["models"]]
        pairs = [(name, opened, strategy) for name, opened in models for strategy in strategies.values()]
        columns = [{"model": name, "strategy": label(one), "note": trace.note(one)} for name, _, one in pairs]
        yield {"event": "begin", "columns": columns}
        writers = deque(_writer(at, opened, one, asked) for at, (_, opened, one) in enumerate(pairs))
        while writers:
            writer = writers.popleft()
            if (told := next(writer, None)) is not None:
                yield told
                writers.append(writer)


def _writer(column: int, opened: Opened, strategy: Strategy, asked: Json) -> Iterator[Json]:
    options = {"max_new_tokens": asked["tokens"], "seed": asked["seed"], "chat": asked["chat"]}
    try:
        for moment in watch(opened, asked["prompt"], strategy, **options):
            told = {"event": "token", "column": column, "text": moment.text, "ended": moment.ended, "slid": moment.slid}
            yield told | trace.step(opened.tokenizer, moment, strategy)
    except HeadToHeadError as error:
        yield {"event": "wrong", "column": column, "message": str(error)}


def _check_search(strategy: Strategy) -> None:
    limits: Sequence[tuple[str, str, int]] = (
        ("beam", "beams", MOST_BEAMS),
        ("contrastive", "k", MOST_CANDIDATES),
    )
    for name, option, most in limits:
        if strategy.name == name and strategy.option(option) > most:
            raise RequestError(f"{name}: {option} is at most {most} here, not {strategy.option(option)}")
