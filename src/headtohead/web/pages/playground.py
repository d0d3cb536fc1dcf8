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
from headtohead.web.models.catalog import FINAL_CHECKPOINT, ModelCatalog
from headtohead.web.models.client import await_unless_disconnected
from headtohead.web.pages.api import router as common
from headtohead.web.pages.attention import CatalogDep, ModelClientDep, ModelKey, UnicodeText
from headtohead.web.site import render_page

MAX_PROMPT_LENGTH = 4000
MAX_NEW_TOKENS = 200
MAX_MODELS = 3
MAX_STRATEGIES = 6
MAX_SEED = 2**31 - 1
EXAMPLE_PROMPT = "the people will"

STRATEGY_OPTIONS: tuple[tuple[str, str | None, float, float, float, float], ...] = (
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
DEFAULT_STRATEGIES = ("greedy", "top-p")

router = APIRouter(include_in_schema=False)
api_router = APIRouter(prefix="/api/playground", tags=["models"], responses=common.responses)


class PromptRequest(BaseModel):
    """A prompt."""

    model_config = ConfigDict(extra="forbid")
    prompt: UnicodeText = Field(max_length=MAX_PROMPT_LENGTH)
    chat: bool = Field(default=False, description="as a turn of a chat, for models that were trained for it")


class GenerationRequest(PromptRequest):
    """What is to be written: every model with every strategy."""

    models: list[ModelKey] = Field(min_length=1, max_length=MAX_MODELS)
    strategies: list[Annotated[UnicodeText, Field(min_length=1, max_length=200)]] = Field(
        min_length=1, max_length=MAX_STRATEGIES, description="as on the command line: top-p=0.9"
    )
    tokens: int = Field(default=40, ge=1, le=MAX_NEW_TOKENS)
    seed: int = Field(default=0, ge=0, le=MAX_SEED)


class NextTokenRequest(PromptRequest):
    """A place in a text."""

    model: ModelKey
    made: list[Annotated[int, Field(strict=True, ge=0, lt=2**31)]] = Field(
        default=[], max_length=MAX_NEW_TOKENS, description="tokens that were written after the prompt"
    )


@router.get("/playground")
def show_playground_page(request: Request, catalog: CatalogDep, model: str = "") -> HTMLResponse:
    return render_page(
        request,
        "playground.html",
        groups=catalog.list_by_group(generative_only=True),
        chosen=model,
        strategies=STRATEGY_OPTIONS,
        checked=DEFAULT_STRATEGIES,
        prompt=EXAMPLE_PROMPT,
        longest=MAX_PROMPT_LENGTH,
        most_tokens=MAX_NEW_TOKENS,
        most_seed=MAX_SEED,
        most_models=MAX_MODELS,
    )


@api_router.post("/next")
async def predict_next_token(
    request: Request, body: NextTokenRequest, catalog: CatalogDep, model_client: ModelClientDep
) -> dict[str, Any]:
    """The likeliest tokens that may come next, with their logits, and all others as one heap: the logarithm of their
    weight at each of `temperatures`."""
    named = await run_in_threadpool(_get_generative_model, catalog, body.model)
    question = {"what": "next", "model": named, "prompt": body.prompt, "chat": body.chat, "made": body.made}
    answer = await model_client.answer(request, question)
    return {key: value for key, value in answer.items() if key != "event"}


@api_router.post("/write")
async def generate_texts(
    request: Request, body: GenerationRequest, catalog: CatalogDep, model_client: ModelClientDep
) -> StreamingResponse:
    """Texts as they are written, a line of JSON for each token. Whoever goes away stops the writing."""
    if len(set(body.models)) < len(body.models):
        raise RequestError("models: one is given twice")
    named = [await run_in_threadpool(_get_generative_model, catalog, key) for key in body.models]
    answers = model_client.ask({"what": "write", **body.model_dump(exclude={"models"}), "models": named})
    try:
        first = await await_unless_disconnected(
            request, anext(answers)
        )  # what is wrong is said before anything is sent
    except BaseException:
        await answers.aclose()
        raise
    return StreamingResponse(_stream_json_lines(first, answers), media_type="application/x-ndjson")


def _get_generative_model(catalog: ModelCatalog, key: str) -> dict[str, Any]:
    found = catalog.find(key)
    if not found.can_generate:
        raise RequestError(f"{found.name}: writes no text; take a language model")
    return found.at(FINAL_CHECKPOINT)


async def _stream_json_lines(
    first_response: dict[str, Any], responses: AsyncGenerator[dict[str, Any]]
) -> AsyncIterator[bytes]:
    async with aclosing(responses):
        try:
            yield _encode_json_line(first_response)
            async for answer in responses:
                yield _encode_json_line(answer)
            yield _encode_json_line({"event": "done"})
        except (RequestError, HTTPException) as error:  # too late for a status
            words = error.detail if isinstance(error, HTTPException) else str(error)
            yield _encode_json_line({"event": "failed", "message": words})


def _encode_json_line(response: dict[str, Any]) -> bytes:
    return json.dumps(response).encode() + b"\n"
