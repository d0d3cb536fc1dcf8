"""Two experiments side by side: verdicts, differing settings, scores and learning curves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse

from headtohead.config.experiment import Experiment
from headtohead.config.overlays import flatten_settings
from headtohead.errors import RequestError
from headtohead.experiment.schemas import Findings
from headtohead.presentation import number_format
from headtohead.presentation.table import Table, make_table, make_text_columns
from headtohead.report.sections.scores import build_scores_table
from headtohead.web.live.experiment_state import (
    MAX_SHOWN_ROWS,
    ExperimentState,
    JsonDict,
    downsample_curves,
)
from headtohead.web.pages.experiments import read_experiment_state
from headtohead.web.site import AppContext, AppContextDep, render_page

router = APIRouter(include_in_schema=False)
COMPARED_FIELDS = {"task", "primary", "equivalence_margin", "seeds", "data", "model", "training", "teacher"}
ALLOWED_DIFFERENCES = ("seeds", "variants.", "data.source")
"""settings that may differ between experiments with the same baseline; data are compared by content"""


@dataclass(frozen=True)
class ComparedExperiment:
    """One of the two experiments on the page."""

    name: str
    live: ExperimentState
    """the current state; the page's template shares this name with that of a single experiment"""
    judged: JsonDict
    """the verdicts that are shown"""
    findings: Findings
    experiment: Experiment | None
    curves: JsonDict
    """the rendered chart of the learning curves; empty without curves"""

    @property
    def scores(self) -> Table:
        return build_scores_table(self.findings)

    @property
    def corpus_digest(self) -> str:
        return self.findings.corpus.digest if self.findings.corpus else ""


@router.get("/compare")
async def show_comparison(
    request: Request, context: AppContextDep, name: Annotated[list[str] | None, Query()] = None
) -> HTMLResponse:
    """Compare two experiments side by side. No verdict is computed between their runs."""
    names = list(dict.fromkeys(name or ()))
    if len(names) != 2:
        raise RequestError(f"select two experiments to compare, got {len(names)}")
    first, second = [await _read_compared_experiment(context, names[index], f"-{index}") for index in range(2)]
    return render_page(
        request,
        "compare.html",
        compared=(first, second),
        differences=build_differences_table(first, second),
        reasons=list_incomparabilities(first, second),
    )


async def _read_compared_experiment(context: AppContext, name: str, chart_suffix: str) -> ComparedExperiment:
    """Return an experiment with its rendered learning curves."""
    reader, state = await run_in_threadpool(read_experiment_state, context, name)
    curves: JsonDict = {}
    if state.curves:
        curve_findings = {"metric": state.metric, "curves": downsample_curves(state.curves)}
        render_request = {"action": "curves", "findings": curve_findings, "suffix": chart_suffix}
        curves = await context.watchers.render_worker.call(render_request)
    return ComparedExperiment(
        name,
        live=state,
        judged=reader.read_shown_verdicts(state),
        findings=reader.read_findings(),
        experiment=reader.read_experiment(),
        curves=curves,
    )


def _flatten_experiment_settings(experiment: Experiment | None) -> JsonDict:
    """Return an experiment's compared settings by dotted name, with one entry for all changes of a variant."""
    if experiment is None:
        return {}
    settings = flatten_settings(experiment.model_dump(mode="json", include=COMPARED_FIELDS))
    return settings | {f"variants.{name}": flatten_settings(changes) for name, changes in experiment.variants.items()}


def _find_different_settings(first: ComparedExperiment, second: ComparedExperiment) -> dict[str, tuple[str, str]]:
    """Return the settings in which two experiments differ, with both values as text."""
    first_settings = _flatten_experiment_settings(first.experiment)
    second_settings = _flatten_experiment_settings(second.experiment)
    return {
        key: (
            number_format.format_setting(first_settings.get(key)),
            number_format.format_setting(second_settings.get(key)),
        )
        for key in dict.fromkeys([*first_settings, *second_settings])
        if first_settings.get(key) != second_settings.get(key)
    }


def build_differences_table(first: ComparedExperiment, second: ComparedExperiment) -> Table:
    """Return the table of settings that differ between two experiments, for their comparison page."""
    columns = make_text_columns("setting", first=first.name, second=second.name)
    rows = [[key, *values] for key, values in _find_different_settings(first, second).items()]
    caption = "All other settings are equal."
    return make_table("differences", "Settings that differ", caption, columns, rows[:MAX_SHOWN_ROWS])


def list_incomparabilities(first: ComparedExperiment, second: ComparedExperiment) -> list[str]:
    """Return the reasons why the scores of two experiments cannot be compared: different data, metric or baseline."""
    if first.experiment is None or second.experiment is None:
        return ["settings that cannot be read"]
    reasons = [] if first.corpus_digest == second.corpus_digest != "" else ["the data"]
    if first.experiment.quick != second.experiment.quick:
        reasons.append("a quick look")
    return reasons + [key for key in _find_different_settings(first, second) if not key.startswith(ALLOWED_DIFFERENCES)]
