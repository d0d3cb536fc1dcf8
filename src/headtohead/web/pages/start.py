"""Starting an experiment: a recipe is chosen, its settings are changed in a form, and its cost is shown first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import psutil
from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response
from starlette.concurrency import run_in_threadpool

from headtohead.config import loading
from headtohead.errors import Fault, RequestError, SpecError
from headtohead.web import settings_form as forms
from headtohead.web import training_process
from headtohead.web.estimates import Estimates, total
from headtohead.web.pages.experiments import back_to, filled_in
from headtohead.web.settings_form import Asked
from headtohead.web.site import Site, page, site_of

router = APIRouter(include_in_schema=False)
Here = Annotated[Site, Depends(site_of)]
Filled = Annotated[dict[str, str], Depends(filled_in)]


def estimates_of(request: Request) -> Estimates:
    found: Estimates = request.app.state.estimates
    return found


Costs = Annotated[Estimates, Depends(estimates_of)]


def begin(site: Site, asked: Asked) -> str:
    """Start it; its name."""
    training_process.check_name(asked.name)
    checked = forms.checked(asked, site.files)
    training_process.start(site.folders.root, checked.name, checked.arguments(site.files))
    return checked.name


async def cost(site: Site, costs: Estimates, asked: Asked) -> dict[str, Any]:
    """What it would cost: each variant, and all of it on this machine."""
    checked = await run_in_threadpool(forms.checked, asked, site.files)
    plan = await costs.estimate(checked.arguments(site.files))
    recipe = forms.source(checked.recipe, site.files)
    experiment = loading.parse(recipe, checked.settings, full=checked.full, quick=checked.quick)
    return {**plan, "total": total(plan, experiment.most_seeds, _workers())}


def _workers() -> int:
    """Trials at once, as `h2h run` chooses them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, int(psutil.virtual_memory().available >> 30)))


@router.get("/start")
def choose(request: Request, site: Here) -> HTMLResponse:
    return page(request, "choose.html", choices=forms.choices(site.files), folder=site.files.name)


@router.get("/start/{recipe}")
async def show_form(request: Request, recipe: str, site: Here, costs: Costs) -> Response:
    return await _form(request, site, costs, {"recipe": recipe, "name": _free_name(site.folders.root, recipe)})


@router.post("/start/{recipe}")
async def send_form(request: Request, recipe: str, site: Here, costs: Costs, filled: Filled) -> Response:
    """Estimate or start, whichever button was pressed, or show the values of the other setting; with an error, the form
    again with what was filled in."""
    given = {**filled, "recipe": recipe}
    if filled.get("do") == "show":
        return await _form(request, site, costs, given)
    try:
        asked = forms.asked(given, site.files, costs.schema())
        if filled.get("do") != "start":
            found = await cost(site, costs, asked)
            return await _form(request, site, costs, given, estimate=found)
        return back_to(await run_in_threadpool(begin, site, asked))
    except SpecError as error:
        return await _form(request, site, costs, given, error.faults)
    except RequestError as error:
        return await _form(request, site, costs, given, forms.faults_in(str(error)) or [Fault("form", str(error))])


async def _form(
    request: Request,
    site: Site,
    costs: Estimates,
    given: dict[str, str],
    faults: Any = (),
    estimate: dict[str, Any] | None = None,
) -> HTMLResponse:
    recipe, schema, full = given["recipe"], costs.schema(), forms.is_ticked(given, "full")
    groups = await run_in_threadpool(forms.fields, recipe, site.files, schema, full=full)
    changed = await run_in_threadpool(forms.changed, given, site.files, schema)
    names = ["name", *(field.name for group in groups.values() for field in group)]
    by_field, others = forms.places(faults, names)
    return page(
        request,
        "form.html",
        recipe=recipe,
        about=forms.choices(site.files).get(recipe, {}),
        text=forms.text_of(recipe, site.files),
        groups=groups,
        given=given,
        changed=changed,
        full=full,
        by_field=by_field,
        others=others,
        estimate=estimate,
    )


def _free_name(root: Path, recipe: str) -> str:
    """The recipe's name, or the first of name-2, name-3, ... that is not taken."""
    base = recipe.removesuffix(".toml")
    taken = {entry.name for entry in os.scandir(root)}
    return next(name for name in (base, *(f"{base}-{n}" for n in range(2, len(taken) + 3))) if name not in taken)
