"""The playground: models and strategies write side by side, token by token, with what there was to choose from."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from headtohead.errors import RequestError
from headtohead.web.models.catalog import AFTER, Catalog
from headtohead.web.models.client import unless_gone
from headtohead.web.pages.api import router as common
from headtohead.web.pages.attention import Asked, Key, Known, Text
from headtohead.web.site import page

MOST_PROMPT = 4000
MOST_TOKENS = 200
MOST_MODELS = 3
MOST_STRATEGIES = 6
MOST_SEED = 2**31 - 1
EXAMPLE = "the people will"

STRATEGIES: tuple[tuple[str, str | None, float, float, float, float], ...] = (
    ("greedy", None, 0, 0, 0, 0),
    ("sample", None, 0, 0, 0, 0),
    ("temperature", "temperature", 0.7, 0.05, 2, 0.05),
    ("top-k", "k", 50, 1, 1000, 1),
    ("top-p", "p", 0.9, 0.01, 1, 0.01),
    ("min-p", "p", 0.05, 0.01, 1, 0.01),
    ("typical", "p", 0.95, 0.01, 1, 0.01),
    ("beam", "beams", 4, 1, 8, 1),
    ("contrastive", "k", 4, 1, 16, 1),
)
"""name, its option, the value to begin with, the least, the most, and the step between"""
CHOSEN = ("greedy", "top-p")

router = APIRouter(include_in_schema=False)
api = APIRouter(prefix="/api/playground", tags=["models"], responses=common.responses)


class Prompted(BaseModel):
    """A prompt."""

    model_config = ConfigDict(extra="forbid")
    prompt: Text = Field(max_length=MOST_PROMPT)
    chat: bool = Field(default=False, description="as a turn of a chat, for models that were trained for it")


class Wanted(Prompted):
    """What is to be written: every model with every strategy."""

    models: list[Key] = Field(min_length=1, max_length=MOST_MODELS)
    strategies: list[Annotated[Text, Field(min_length=1, max_length=200)]] = Field(
        min_length=1, max_length=MOST_STRATEGIES, description="as on the command line: top-p=0.9"
    )
    tokens: int = Field(default=40, ge=1, le=MOST_TOKENS)
    seed: int = Field(default=0, ge=0, le=MOST_SEED)


class Next(Prompted):
    """A place in a text."""

    model: Key
    made: list[Annotated[int, Field(strict=True, ge=0, lt=2**31)]] = Field(
        default=[], max_length=MOST_TOKENS, description="tokens that were written after the prompt"
    )


@router.get("/playground")
def show(request: Request, known: Known, model: str = "") -> HTMLResponse:
    return page(
        request,
        "playground.html",
        groups=known.every(writing=True),
        chosen=model,
        strategies=STRATEGIES,
        checked=CHOSEN,
        prompt=EXAMPLE,
        longest=MOST_PROMPT,
        most_tokens=MOST_TOKENS,
        most_seed=MOST_SEED,
        most_models=MOST_MODELS,
    )


@api.post("/next")
async def next_token(request: Request, asked: Next, known: Known, models: Asked) -> dict[str, Any]:
    """The likeliest tokens that may come next, with their logits, and all others as one heap: the logarithm of their
    weight at each of `temperatures`."""
    named = await run_in_threadpool(_writer, known, asked.model)
    question = {"what": "next", "model": named, "prompt": asked.prompt, "chat": asked.chat, "made": asked.made}
    answer = await models.answer(request, question)
    return {key: value for key, value in answer.items() if key != "event"}


@api.post("/write")
async def write(request: Request, asked: Wanted, known: Known, models: Asked) -> StreamingResponse:
    """Texts as they are written, a line of JSON for each token. Whoever goes away stops the writing."""
    if len(set(asked.models)) < len(asked.models):
        raise RequestError("models: one is given twice")
    named = [await run_in_threadpool(_writer, known, key) for key in asked.models]
    answers = models.ask({"what": "write", **asked.model_dump(exclude={"models"}), "models": named})
    try:
        first = await unless_gone(request, anext(answers))  # what is wrong is said before anything is sent
    except BaseException:
        await answers.aclose()
        raise
    return StreamingResponse(_lines(first, answers), media_type="application/x-ndjson")


def _writer(known: Catalog, key: str) -> dict[str, Any]:
    found = known.find(key)
    if not found.writes:
        raise RequestError(f"{found.name}: writes no text; take a language model")
    return found.at(AFTER)


async def _lines(first: dict[str, Any], answers: AsyncGenerator[dict[str, Any]]) -> AsyncIterator[bytes]:
    async with aclosing(answers):
        try:
            yield _line(first)
            async for answer in answers:
                yield _line(answer)
            yield _line({"event": "done"})
        except (RequestError, HTTPException) as error:  # too late for a status
            words = error.detail if isinstance(error, HTTPException) else str(error)
            yield _line({"event": "failed", "message": words})


def _line(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode() + b"\n"
