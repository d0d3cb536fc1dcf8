"""Attention: a model, a text, and the maps of all heads; two models beside each other; before and after training."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from headtohead.web.models.catalog import AFTER, Catalog, Named
from headtohead.web.models.client import Models, models_of
from headtohead.web.pages.api import router as common
from headtohead.web.request_guard import POLICY
from headtohead.web.site import page

MOST_TEXT = 4000
EXAMPLE = "the people will build new schools and honor the law"

router = APIRouter(include_in_schema=False)
api = APIRouter(prefix="/api", tags=["models"], responses=common.responses)


def catalog_of(request: Request) -> Catalog:
    found: Catalog = request.app.state.catalog
    return found


def is_unicode(text: str) -> str:
    """Half a character cannot be read by any tokenizer."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("is no Unicode text") from None
    return text


Known = Annotated[Catalog, Depends(catalog_of)]
Asked = Annotated[Models, Depends(models_of)]
Text = Annotated[str, AfterValidator(is_unicode)]
Key = Annotated[Text, Field(max_length=800, description="a model's key, as /api/models gives it")]


class Look(BaseModel):
    """What is to be looked at."""

    model_config = ConfigDict(extra="forbid")
    model: Key
    against: Key | None = Field(default=None, description="another model, to stand beside the first")
    at: Text = Field(default=AFTER, max_length=64, description="of a run: before, after, or one of its checkpoints")
    text: Text = Field(min_length=1, max_length=MOST_TEXT)


@router.get("/attention")
def show(request: Request, known: Known, model: str = "", text: str = "") -> HTMLResponse:
    answer = page(
        request,
        "attention_form.html",
        groups=known.every(),
        chosen=model,
        text=text[:MOST_TEXT] or EXAMPLE,
        longest=MOST_TEXT,
    )
    # The maps are those of the report, whose figures (the width of padding, shades) stand in style attributes.
    answer.headers["content-security-policy"] = f"{POLICY}; style-src-attr 'unsafe-inline'"
    return answer


@api.get("/models")
def list_models(known: Known) -> list[dict[str, Any]]:
    """The models that can be looked at and played with."""
    return [described(one) for group in known.every().values() for one in group]


def described(one: Named) -> dict[str, Any]:
    return {"key": one.key, "name": one.name, "writes": one.writes, "moments": [name for name, _ in one.moments]}


@api.post("/attention")
async def look(request: Request, asked: Look, known: Known, models: Asked) -> dict[str, Any]:
    """The attention of a model on a text: `found` as data, `html` as the page shows it."""
    question = await run_in_threadpool(_question, known, asked)
    answer = await models.answer(request, question)
    return {"html": answer["html"], "found": answer["found"]}


def _question(known: Catalog, asked: Look) -> dict[str, Any]:
    """With two models, a moment that the second does not have is taken to be the end."""
    named = [known.find(asked.model).at(asked.at)]
    if asked.against:
        other = known.find(asked.against)
        named.append(other.at(asked.at if asked.at in dict(other.moments) else AFTER))
    return {"what": "attention", "models": named, "text": asked.text}
