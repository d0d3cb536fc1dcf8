"""Attention: a model, a text, and the maps of all heads; two models beside each other; before and after training."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from headtohead.web.models.catalog import FINAL_CHECKPOINT, CatalogEntry, ModelCatalog
from headtohead.web.models.client import ModelProcessClient, get_model_client
from headtohead.web.pages.api import router as common
from headtohead.web.request_guard import CONTENT_SECURITY_POLICY
from headtohead.web.site import render_page

MAX_TEXT_LENGTH = 4000
EXAMPLE_TEXT = "the people will build new schools and honor the law"

router = APIRouter(include_in_schema=False)
api_router = APIRouter(prefix="/api", tags=["models"], responses=common.responses)


def get_catalog(request: Request) -> ModelCatalog:
    found: ModelCatalog = request.app.state.catalog
    return found


def validate_unicode(text: str) -> str:
    """Half a character cannot be read by any tokenizer."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("is no Unicode text") from None
    return text


CatalogDep = Annotated[ModelCatalog, Depends(get_catalog)]
ModelClientDep = Annotated[ModelProcessClient, Depends(get_model_client)]
UnicodeText = Annotated[str, AfterValidator(validate_unicode)]
ModelKey = Annotated[UnicodeText, Field(max_length=800, description="a model's key, as /api/models gives it")]


class AttentionRequest(BaseModel):
    """What is to be looked at."""

    model_config = ConfigDict(extra="forbid")
    model: ModelKey
    against: ModelKey | None = Field(default=None, description="another model, to stand beside the first")
    at: UnicodeText = Field(
        default=FINAL_CHECKPOINT, max_length=64, description="of a run: before, after, or one of its checkpoints"
    )
    text: UnicodeText = Field(min_length=1, max_length=MAX_TEXT_LENGTH)


@router.get("/attention")
def show_attention_page(request: Request, catalog: CatalogDep, model: str = "", text: str = "") -> HTMLResponse:
    answer = render_page(
        request,
        "attention_form.html",
        groups=catalog.list_by_group(),
        chosen=model,
        text=text[:MAX_TEXT_LENGTH] or EXAMPLE_TEXT,
        longest=MAX_TEXT_LENGTH,
    )
    # The maps are those of the report, whose figures (the width of padding, shades) stand in style attributes.
    answer.headers["content-security-policy"] = f"{CONTENT_SECURITY_POLICY}; style-src-attr 'unsafe-inline'"
    return answer


@api_router.get("/models")
def list_models(catalog: CatalogDep) -> list[dict[str, Any]]:
    """The models that can be looked at and played with."""
    return [describe_model(one) for group in catalog.list_by_group().values() for one in group]


def describe_model(entry: CatalogEntry) -> dict[str, Any]:
    return {
        "key": entry.key,
        "name": entry.name,
        "writes": entry.can_generate,
        "moments": [name for name, _ in entry.checkpoints],
    }


@api_router.post("/attention")
async def compute_attention(
    request: Request, body: AttentionRequest, catalog: CatalogDep, model_client: ModelClientDep
) -> dict[str, Any]:
    """The attention of a model on a text: `found` as data, `html` as the page shows it."""
    question = await run_in_threadpool(_build_model_request, catalog, body)
    answer = await model_client.answer(request, question)
    return {"html": answer["html"], "found": answer["found"]}


def _build_model_request(catalog: ModelCatalog, body: AttentionRequest) -> dict[str, Any]:
    """With two models, a moment that the second does not have is taken to be the end."""
    named = [catalog.find(body.model).at(body.at)]
    if body.against:
        other = catalog.find(body.against)
        named.append(other.at(body.at if body.at in dict(other.checkpoints) else FINAL_CHECKPOINT))
    return {"what": "attention", "models": named, "text": body.text}
