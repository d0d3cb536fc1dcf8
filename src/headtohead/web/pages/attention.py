"""The attention page: attention maps of every head for a given text, for one or two models at any checkpoint."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from headtohead.web.models.catalog import FINAL_CHECKPOINT, ModelCatalog, describe_model
from headtohead.web.pages.api import router as common
from headtohead.web.request_guard import CONTENT_SECURITY_POLICY
from headtohead.web.site import AppContextDep, render_page

MAX_TEXT_LENGTH = 4000
EXAMPLE_TEXT = "the people will build new schools and honor the law"

router = APIRouter(include_in_schema=False)
api_router = APIRouter(prefix="/api", tags=["models"], responses=common.responses)


def validate_unicode(text: str) -> str:
    """Reject lone surrogates in an attention request's text, because no tokenizer accepts them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("not valid Unicode") from None
    return text


UnicodeText = Annotated[str, AfterValidator(validate_unicode)]
ModelKey = Annotated[UnicodeText, Field(max_length=800, description="key of a model, from /api/models")]


class AttentionRequest(BaseModel):
    """A model, a text, and optionally a second model to compare it with."""

    model_config = ConfigDict(extra="forbid")
    model: ModelKey
    compare_to: ModelKey | None = Field(default=None, description="second model, shown next to the first")
    checkpoint: UnicodeText = Field(
        default=FINAL_CHECKPOINT, max_length=64, description="of a run: before, after, or the name of a checkpoint"
    )
    text: UnicodeText = Field(min_length=1, max_length=MAX_TEXT_LENGTH)


@router.get("/attention")
def show_attention_page(request: Request, context: AppContextDep, model: str = "", text: str = "") -> HTMLResponse:
    """Show the form for attention maps."""
    response = render_page(
        request,
        "attention_form.html",
        groups=context.model_catalog.list_models_by_group(),
        chosen=model,
        text=text[:MAX_TEXT_LENGTH] or EXAMPLE_TEXT,
        longest=MAX_TEXT_LENGTH,
    )
    # The maps use style attributes to set cell shades and the width of the padding.
    response.headers["content-security-policy"] = f"{CONTENT_SECURITY_POLICY}; style-src-attr 'unsafe-inline'"
    return response


@api_router.get("/models")
def list_models(context: AppContextDep) -> list[dict[str, Any]]:
    """Return all models."""
    return [describe_model(entry) for group in context.model_catalog.list_models_by_group().values() for entry in group]


@api_router.post("/attention")
async def compute_attention(request: Request, body: AttentionRequest, context: AppContextDep) -> dict[str, Any]:
    """Return a model's attention on a text as data (`analysis`) and as `html`."""
    message = await run_in_threadpool(_build_model_request, context.model_catalog, body)
    response = await context.model_process.call(request, message)
    return {"html": response["html"], "analysis": response["analysis"]}


def _build_model_request(catalog: ModelCatalog, body: AttentionRequest) -> dict[str, Any]:
    """Return the model-process request. If the second model lacks the checkpoint, its final weights are used."""
    models = [catalog.find_model(body.model).to_load_request(body.checkpoint)]
    if body.compare_to:
        second_model = catalog.find_model(body.compare_to)
        has_checkpoint = body.checkpoint in dict(second_model.checkpoints)
        models.append(second_model.to_load_request(body.checkpoint if has_checkpoint else FINAL_CHECKPOINT))
    return {"action": "attention", "models": models, "text": body.text}
