"""The pages for starting an experiment: the recipe list, the settings form and the cost estimate."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response
from starlette.concurrency import run_in_threadpool

from headtohead.config.recipe_catalog import TOPICS
from headtohead.errors import ConfigError, RequestError, ValidationIssue
from headtohead.web import settings_form as forms
from headtohead.web import training_process
from headtohead.web.experiment_folders import validate_new_experiment_name
from headtohead.web.pages.experiments import redirect_to_experiment
from headtohead.web.settings_form import TrainingRequest
from headtohead.web.site import AppContext, AppContextDep, parse_form_body, render_page

router = APIRouter(include_in_schema=False)
FormDataDep = Annotated[dict[str, str], Depends(parse_form_body)]


def start_requested_experiment(context: AppContext, request: TrainingRequest) -> str:
    """Validate a request of the start page or of the API, start the experiment, and return its name."""
    validate_new_experiment_name(request.name)
    validated_request = forms.validate_training_request(request, context.experiment_files_folder)
    arguments = validated_request.build_cli_arguments(context.experiment_files_folder)
    training_process.start_training_process(context.experiment_folders.root, validated_request.name, arguments)
    return validated_request.name


async def estimate_cost(context: AppContext, request: TrainingRequest) -> dict[str, Any]:
    """Return the estimated cost of each variant and of the whole experiment on this machine."""
    folder = context.experiment_files_folder
    validated_request = await run_in_threadpool(forms.validate_training_request, request, folder)
    return await context.estimator.estimate_cost(validated_request.build_cli_arguments(folder))


@router.get("/start")
def show_recipe_list(request: Request, context: AppContextDep) -> HTMLResponse:
    choices = forms.list_recipes(context.experiment_files_folder)
    return render_page(
        request, "choose.html", choices=choices, topics=TOPICS, folder=context.experiment_files_folder.name
    )


@router.get("/start/{recipe}")
async def show_form(request: Request, recipe: str, context: AppContextDep) -> Response:
    return await _render_form(
        request, context, {"recipe": recipe, "name": _suggest_free_name(context.experiment_folders.root, recipe)}
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
        training_request = forms.parse_training_request(
            fields, context.experiment_files_folder, context.estimator.get_form_schema()
        )
        if form_data.get("do") != "start":
            cost = await estimate_cost(context, training_request)
            return await _render_form(request, context, fields, estimate=cost)
        return redirect_to_experiment(await run_in_threadpool(start_requested_experiment, context, training_request))
    except ConfigError as error:
        return await _render_form(request, context, fields, error.issues)
    except RequestError as error:
        return await _render_form(
            request,
            context,
            fields,
            forms.parse_field_errors(str(error)) or [ValidationIssue("form", str(error))],
        )


async def _render_form(
    request: Request,
    context: AppContext,
    form_data: dict[str, str],
    issues: Iterable[ValidationIssue] = (),
    estimate: dict[str, Any] | None = None,
) -> HTMLResponse:
    """Render the page to start an experiment: the form with values, error messages and cost estimate."""
    recipe, schema, full = (
        form_data["recipe"],
        context.estimator.get_form_schema(),
        forms.is_box_checked(form_data, "full"),
    )
    groups = await run_in_threadpool(
        forms.build_form_fields, recipe, context.experiment_files_folder, schema, full=full
    )
    changed_fields = await run_in_threadpool(
        forms.find_changed_fields, form_data, context.experiment_files_folder, schema
    )
    field_names = ["name", *(field.name for group in groups.values() for field in group)]
    messages_by_field, form_messages = forms.assign_issues_to_fields(issues, field_names)
    return render_page(
        request,
        "form.html",
        recipe=recipe,
        about=forms.list_recipes(context.experiment_files_folder).get(recipe, {}),
        text=forms.read_recipe_text(recipe, context.experiment_files_folder),
        groups=groups,
        given=form_data,
        changed=changed_fields,
        full=full,
        by_field=messages_by_field,
        others=form_messages,
        estimate=estimate,
    )


def _suggest_free_name(root: Path, recipe: str) -> str:
    """Return a name to start a recipe under: the recipe's own, or the first of name-2, name-3, ... that is free."""
    base = recipe.removesuffix(".toml")
    existing_names = {entry.name for entry in os.scandir(root)}
    return next(
        name
        for name in (base, *(f"{base}-{number}" for number in range(2, len(existing_names) + 3)))
        if name not in existing_names
    )
