"""Reduce an experiment before validation: to the variants of `--only`, or to the quick look of `--quick`."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headtohead.config.budget import BUDGET_PATTERN, STEP_UNITS, Budget, parse_budget
from headtohead.config.experiment import BASELINE, Experiment
from headtohead.config.overlays import RawConfig, RawExperiment, merge_tables
from headtohead.config.tables.search import WINNER_VARIANT
from headtohead.config.tables.training import TrainingConfig
from headtohead.errors import RequestError, suggest

DEFAULT_SEEDS = Experiment.model_fields["seeds"].default
DEFAULT_TRAINING = TrainingConfig().model_dump(include={"budget", "batch_size"})
BUDGET_REGEX = re.compile(BUDGET_PATTERN)
QUICK_SEEDS = 2
QUICK_BUDGET_DIVISOR = 10
"""a quick look trains for a tenth of the budget, within the limits below"""
QUICK_MIN_STEPS = 20
QUICK_MAX_STEPS = 100
QUICK_EVALUATIONS = 5
"""evaluations during training"""
QUICK_ROWS = {"train_rows": 10_000, "validation_rows": 100, "test_rows": 100}
QUICK_PRETRAINED_STEPS = 8
QUICK_PRETRAINED_ROWS = {"train_rows": 200, "validation_rows": 50, "test_rows": 50}
"""a step or a row of a pretrained model takes about ten times as long"""
QUICK_PRETRAINED_EVALUATIONS = 2
QUICK_SEARCH_POINTS = 4
QUICK_SUMMARIES = 8
"""summaries that a teacher writes"""
QUICK_TEACHER_ROWS = 800
"""training texts of a teacher of plain text"""
QUICK_MAX_CONTEXT = 512
"""longest input length, in tokens, at which trained models are evaluated"""


def select_variants(raw_experiment: RawExperiment, selected_names: Sequence[str]) -> RawExperiment:
    """Reduce an experiment to the variants of `--only`: remove others, and claims and comparisons that mention them."""
    variants = raw_experiment.raw_config.get("variants")
    variant_names = list(variants) if isinstance(variants, dict) else []
    if unknown_names := [name for name in selected_names if name not in variant_names]:
        hint = suggest(unknown_names[0], variant_names)
        raise RequestError(
            f"{raw_experiment.name} has no variant {unknown_names[0]!r}{f'; did you mean {hint!r}?' if hint else ''} "
            f"(available: {', '.join(variant_names)})"
        )
    raw = copy.deepcopy(raw_experiment.raw_config)
    if isinstance(raw.get("quick"), dict):
        raw["quick"].pop("only", None)
    raw["variants"] = {name: changes for name, changes in raw.get("variants", {}).items() if name in selected_names}
    selected_variants = {BASELINE, WINNER_VARIANT, *selected_names}
    for table in ("claims", "published", "comparisons"):
        elements = raw.get(table)
        for element in elements if isinstance(elements, list) else ():
            if table == "comparisons" and isinstance(element, dict) and isinstance(element.get("variants"), list):
                element["variants"] = [name for name in element["variants"] if name in selected_variants]
        if isinstance(elements, list):
            raw[table] = [
                element
                for element in elements
                if not isinstance(element, dict) or _mentions_only(element, selected_variants)
            ]
    return replace(raw_experiment, raw_config=raw)


def _mentions_only(element: RawConfig, variants: set[str]) -> bool:
    """Return whether a claim, published result or comparison survives a reduction to `variants`: it names no other."""
    mentioned_names = [element.get(key, BASELINE) for key in ("variant", "baseline")]
    return element.get("variants") != [] and all(
        not isinstance(name, str) or name in variants for name in mentioned_names
    )


def apply_quick_mode(raw_experiment: RawExperiment) -> RawExperiment:
    """Reduce the experiment to a quick look: fewer seeds, steps, rows and variants, without published results.

    The file's `[quick]` table is applied last; its key `only` lists the variants to train. `left_out` records what was
    reduced.
    """
    raw = copy.deepcopy(raw_experiment.raw_config)
    quick_table = raw.pop("quick", {})
    raw |= {"seeds": _take_at_most(raw.get("seeds", DEFAULT_SEEDS), QUICK_SEEDS)}
    for table in (raw.setdefault("data", {}), raw.setdefault("training", {})):
        if not isinstance(table, dict):
            return raw_experiment  # validation reports it
    data = raw["data"]
    uses_pretrained = isinstance(raw.get("model"), dict) and "pretrained" in raw["model"]
    for key, limit in (QUICK_PRETRAINED_ROWS if uses_pretrained else QUICK_ROWS).items():
        data[key] = _take_at_most(data.get(key, limit), limit)
    _shrink_probes(raw.get("probe"))
    _shrink_training(raw["training"], uses_pretrained)
    variants = raw.get("variants")
    for changes in variants.values() if isinstance(variants, dict) else ():
        training = changes.get("training") if isinstance(changes, dict) else None
        if isinstance(training, dict) and "budget" in training:
            _shrink_training(training, uses_pretrained)
        _shrink_pretraining(changes)
    _shrink_pretraining(raw)
    _shrink_search(raw.get("search"))
    if isinstance(raw.get("teacher"), dict):
        _shrink_teacher(raw["teacher"])
    for table in ("published", "claims"):
        raw.pop(table, None)
    reduced_experiment = replace(raw_experiment, raw_config=raw)
    if isinstance(quick_table, dict):
        only = quick_table.pop("only", None)
        reduced_experiment = replace(reduced_experiment, raw_config=merge_tables(raw, quick_table))
        reduced_experiment = select_variants(reduced_experiment, only) if isinstance(only, list) else reduced_experiment
    left_out = _describe_reductions(raw_experiment.raw_config, reduced_experiment.raw_config)
    return replace(
        reduced_experiment,
        raw_config=reduced_experiment.raw_config
        | {"name": f"{raw_experiment.name}-quick", "quick": True, "left_out": left_out},
    )


def _describe_reductions(before: RawConfig, after: RawConfig) -> list[str]:
    """Return a description of each reduction of a quick look, such as "2 of 5 seeds"."""
    training_before, training = ({**DEFAULT_TRAINING, **_get_table(raw, "training")} for raw in (before, after))
    documents_before, documents = (_get_table(raw, "teacher").get("documents") for raw in (before, after))
    reductions = []
    if after["seeds"] != before.get("seeds"):
        reductions.append(f"{after['seeds']} of {before.get('seeds', DEFAULT_SEEDS)} seeds")
    if training["budget"] != training_before["budget"]:
        reductions.append(f"{training['budget']} instead of {training_before['budget']}")
    if training["batch_size"] != training_before["batch_size"]:
        reductions.append(f"batches of {training['batch_size']} instead of {training_before['batch_size']}")
    limits = [_get_table(after, "data").get(f"{role}_rows") for role in ("train", "validation", "test")]
    if all(isinstance(limit, int) for limit in limits):
        message = "at most {:,} training, {:,} validation and {:,} test rows, sampled evenly"
        reductions.append(message.format(*limits))
    if documents != documents_before:
        reductions.append(f"{documents:,} of {documents_before:,} documents of the teacher")
    names_before, names = (list(_get_table(raw, "variants")) for raw in (before, after))
    if omitted_names := [name for name in names_before if name not in names]:
        reductions.append(f"{len(names)} of {len(names_before)} variants (without {', '.join(omitted_names)})")
    if search := _get_table(after, "search"):
        reductions.append(f"{search['budget']} of the search")
    if before.get("probe") != after.get("probe"):
        reductions.append("fewer input lengths")
    if before.get("published") or before.get("claims"):
        reductions.append("no comparison with published results")
    return reductions


def _get_table(raw: RawConfig, name: str) -> RawConfig:
    table = raw.get(name)
    return table if isinstance(table, dict) else {}


def _take_at_most(value: Any, limit: int) -> Any:
    """Return the smaller of two numbers, and the limit instead of a text such as "auto"."""
    return min(value, limit) if isinstance(value, int) else limit


def _shrink_probes(probe: Any) -> None:
    """Reduce probes for a quick look: to the first and the last input length below a limit."""
    for key in ("contexts", "costs"):
        if isinstance(probe, dict) and isinstance(probe.get(key), list):
            lengths = [length for length in probe[key] if isinstance(length, int) and length <= QUICK_MAX_CONTEXT]
            probe[key] = [*lengths[:1], *lengths[1:][-1:]]


def _shrink_teacher(teacher: RawConfig) -> None:
    """Reduce a teacher for a quick look: the number of texts that it generates, and its training steps."""
    if "documents" in teacher:
        max_documents = QUICK_SUMMARIES if "prompt" in teacher else QUICK_TEACHER_ROWS
        teacher["documents"] = _take_at_most(teacher["documents"], max_documents)
    _shrink_training(teacher.get("training"))
    for key in ("published", "claims"):
        teacher.pop(key, None)


def _shrink_pretraining(table: Any) -> None:
    """Reduce the pre-training steps of the encoder, if it is pre-trained."""
    model = table.get("model") if isinstance(table, dict) else None
    if isinstance(model, dict) and isinstance(model.get("init_from"), dict):
        _shrink_training(model["init_from"].get("training"))


def _shrink_training(training: Any, uses_pretrained: bool = False) -> None:
    """Reduce training for a quick look: fewer steps and evaluations, and a checkpoint only at the end."""
    if not isinstance(training, dict):
        return
    budget = _shrink_budget(training.get("budget", TrainingConfig().budget))
    if uses_pretrained:
        budget = f"{QUICK_PRETRAINED_STEPS} steps"
    training["budget"] = budget
    if not isinstance(budget, str) or not BUDGET_REGEX.fullmatch(budget):
        return  # validation reports it
    duration = parse_budget(budget)
    if duration.unit not in STEP_UNITS:
        duration = Budget(QUICK_MAX_STEPS, "steps")
    num_evaluations = QUICK_PRETRAINED_EVALUATIONS if uses_pretrained else QUICK_EVALUATIONS
    for key, interval in (("checkpoint_every", duration), ("eval_every", duration.divide(num_evaluations))):
        training[key] = int(interval.amount) if interval.unit == "steps" else str(interval)


def _shrink_search(search: Any) -> None:
    """Reduce a search for a quick look: to a few points, with a tenth of the searched numbers of steps."""
    if not isinstance(search, dict):
        return
    search["seeds"] = _take_at_most(search.get("seeds", 1), 1)
    search["budget"] = f"{QUICK_SEARCH_POINTS} trials"
    space = search.get("space")
    for table, key in ((space, "training.budget"), ((space or {}).get("training"), "budget")):
        if isinstance(table, dict) and isinstance(table.get(key), list):
            table[key] = list(dict.fromkeys(_shrink_budget(budget) for budget in table[key] if isinstance(budget, str)))


def _shrink_budget(text: Any) -> Any:
    """Return a tenth of a training budget, for a quick look. Invalid values are unchanged, and rejected later."""
    if not isinstance(text, str) or not BUDGET_REGEX.fullmatch(text):
        return text
    budget = parse_budget(text)
    if budget.unit != "steps":
        return str(budget.divide(QUICK_BUDGET_DIVISOR))
    steps = int(budget.amount)
    return str(Budget(min(steps, QUICK_MAX_STEPS, max(QUICK_MIN_STEPS, steps // QUICK_BUDGET_DIVISOR)), "steps"))
