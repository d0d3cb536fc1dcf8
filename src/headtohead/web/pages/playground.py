"""The playground page: side-by-side generation with several models and strategies, and next-token distributions."""

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
from headtohead.web.models.client import await_model_response
from headtohead.web.pages.api import router as common
from headtohead.web.pages.attention import ModelKey, UnicodeText
from headtohead.web.site import AppContextDep, render_page

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
"""strategy, its option, and the option's default, minimum, maximum and step"""
DEFAULT_STRATEGIES = ("greedy", "top-p")

router = APIRouter(include_in_schema=False)
api_router = APIRouter(prefix="/api/playground", tags=["models"], responses=common.responses)


class PromptRequest(BaseModel):
    """A prompt."""

    model_config = ConfigDict(extra="forbid")
    prompt: UnicodeText = Field(max_length=MAX_PROMPT_LENGTH)
    chat: bool = Field(default=False, description="apply the chat template of the model")


class GenerationRequest(PromptRequest):
    """A request to generate text with every combination of the given models and strategies."""

    models: list[ModelKey] = Field(min_length=1, max_length=MAX_MODELS)
    strategies: list[Annotated[UnicodeText, Field(min_length=1, max_length=200)]] = Field(
        min_length=1, max_length=MAX_STRATEGIES, description="in command-line syntax: top-p=0.9"
    )
    max_new_tokens: int = Field(default=40, ge=1, le=MAX_NEW_TOKENS)
    seed: int = Field(default=0, ge=0, le=MAX_SEED)


class NextTokenRequest(PromptRequest):
    """A position in a text: after the prompt and the tokens generated so far."""

    model: ModelKey
    generated_ids: list[Annotated[int, Field(strict=True, ge=0, lt=2**31)]] = Field(
        default=[], max_length=MAX_NEW_TOKENS, description="tokens generated after the prompt"
    )


@router.get("/playground")
def show_playground_page(request: Request, context: AppContextDep, model: str = "") -> HTMLResponse:
    """Show the form for generating text with several models and decoding strategies."""
    return render_page(
        request,
        "playground.html",
        groups=context.model_catalog.list_models_by_group(generative_only=True),
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
async def predict_next_token(request: Request, body: NextTokenRequest, context: AppContextDep) -> dict[str, Any]:
    """Return the most likely next tokens that the playground shows, with their logits.

    The remaining tokens are summarized by the log of their total weight at each of the `temperatures`.
    """
    model = await run_in_threadpool(_get_generative_model, context.model_catalog, body.model)
    message = {"action": "next", **body.model_dump(), "model": model}
    response = await context.model_process.call(request, message)
    return {key: value for key, value in response.items() if key != "event"}


@api_router.post("/generate")
async def generate_texts(request: Request, body: GenerationRequest, context: AppContextDep) -> StreamingResponse:
    """Stream the texts that the playground generates, one JSON line per token, until the client disconnects."""
    if len(set(body.models)) < len(body.models):
        raise RequestError("models: duplicate model")
    models = [await run_in_threadpool(_get_generative_model, context.model_catalog, key) for key in body.models]
    responses = context.model_process.submit({"action": "generate", **body.model_dump(), "models": models})
    try:
        # Errors in the request must be raised before the response starts.
        first_response = await await_model_response(request, anext(responses))
    except BaseException:
        await responses.aclose()
        raise
    return StreamingResponse(_stream_generation_events(first_response, responses), media_type="application/x-ndjson")


def _get_generative_model(catalog: ModelCatalog, key: str) -> dict[str, Any]:
    """Return the load request for a model in the playground; raise RequestError if it cannot generate text."""
    entry = catalog.find_model(key)
    if not entry.can_generate:
        raise RequestError(f"{entry.name} is not a language model")
    return entry.to_load_request(FINAL_CHECKPOINT)


async def _stream_generation_events(
    first_response: dict[str, Any], responses: AsyncGenerator[dict[str, Any]]
) -> AsyncIterator[bytes]:
    """Yield the tokens that the playground's models generate as JSON lines.

    A final line reports success or failure.
    """
    async with aclosing(responses):
        try:
            yield _encode_json_line(first_response)
            async for response in responses:
                yield _encode_json_line(response)
            yield _encode_json_line({"event": "done"})
        except (RequestError, HTTPException) as error:  # the status line has already been sent
            message = error.detail if isinstance(error, HTTPException) else str(error)
            yield _encode_json_line({"event": "failed", "message": message})


def _encode_json_line(response: dict[str, Any]) -> bytes:
    return json.dumps(response).encode() + b"\n"
