"""The pages for starting an experiment: the recipe list, the settings form and the cost estimate."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response
from starlette.concurrency import run_in_threadpool

from headtohead.config.recipe_catalog import TOPICS
from headtohead.errors import ConfigError, RequestError, ValidationIssue
from headtohead.web import settings_form as forms
from headtohead.web import training_process
from headtohead.web.pages.experiments import parse_form, redirect_to_experiment
from headtohead.web.settings_form import TrainingRequest
from headtohead.web.site import AppContext, AppContextDep, render_page

router = APIRouter(include_in_schema=False)
FormDataDep = Annotated[dict[str, str], Depends(parse_form)]


def start_experiment(context: AppContext, request: TrainingRequest) -> str:
    """Start an experiment and return its name."""
    training_process.validate_name(request.name)
    checked = forms.validate_training_request(request, context.files)
    training_process.start(context.folders.root, checked.name, checked.build_cli_arguments(context.files))
    return checked.name


async def estimate_cost(context: AppContext, request: TrainingRequest) -> dict[str, Any]:
    """Return the estimated cost of each variant and of the whole experiment on this machine."""
    checked = await run_in_threadpool(forms.validate_training_request, request, context.files)
    return await context.estimator.estimate_cost(checked.build_cli_arguments(context.files))


@router.get("/start")
def show_recipe_list(request: Request, context: AppContextDep) -> HTMLResponse:
    choices = forms.list_recipes(context.files)
    return render_page(request, "choose.html", choices=choices, topics=TOPICS, folder=context.files.name)


@router.get("/start/{recipe}")
async def show_form(request: Request, recipe: str, context: AppContextDep) -> Response:
    return await _render_form(
        request, context, {"recipe": recipe, "name": _suggest_free_name(context.folders.root, recipe)}
    )


@router.post("/start/{recipe}")
async def submit_form(request: Request, recipe: str, context: AppContextDep, form_data: FormDataDep) -> Response:
    """Estimate the cost, start the experiment, or fill in the [full] values, depending on the button pressed.

    If there are errors, the form is shown again.
    """
    fields = {**form_data, "recipe": recipe}
    if form_data.get("do") == "show":
        return await _render_form(request, context, fields)
    try:
        training_request = forms.parse_training_request(fields, context.files, context.estimator.schema())
        if form_data.get("do") != "start":
            cost = await estimate_cost(context, training_request)
            return await _render_form(request, context, fields, estimate=cost)
        return redirect_to_experiment(await run_in_threadpool(start_experiment, context, training_request))
    except ConfigError as error:
        return await _render_form(request, context, fields, error.issues)
    except RequestError as error:
        return await _render_form(
            request,
            context,
            fields,
            forms.parse_error_output(str(error)) or [ValidationIssue("form", str(error))],
        )


async def _render_form(
    request: Request,
    context: AppContext,
    form_data: dict[str, str],
    errors: Any = (),
    estimate: dict[str, Any] | None = None,
) -> HTMLResponse:
    """Render the form for a new experiment with its values, errors and cost estimate."""
    recipe, schema, full = form_data["recipe"], context.estimator.schema(), forms.is_checked(form_data, "full")
    groups = await run_in_threadpool(forms.build_fields, recipe, context.files, schema, full=full)
    changed = await run_in_threadpool(forms.find_changed_fields, form_data, context.files, schema)
    names = ["name", *(field.name for group in groups.values() for field in group)]
    by_field, other_errors = forms.assign_errors_to_fields(errors, names)
    return render_page(
        request,
        "form.html",
        recipe=recipe,
        about=forms.list_recipes(context.files).get(recipe, {}),
        text=forms.read_recipe_text(recipe, context.files),
        groups=groups,
        given=form_data,
        changed=changed,
        full=full,
        by_field=by_field,
        others=other_errors,
        estimate=estimate,
    )


def _suggest_free_name(root: Path, recipe: str) -> str:
    """Return the recipe's name, or the first of name-2, name-3, ... that is not taken."""
    base = recipe.removesuffix(".toml")
    existing_names = {entry.name for entry in os.scandir(root)}
    return next(
        name
        for name in (base, *(f"{base}-{number}" for number in range(2, len(existing_names) + 3)))
        if name not in existing_names
    )
