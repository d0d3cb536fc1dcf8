"""Reduce an experiment before validation: to the variants of `--only`, or to the quick look of `--quick`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headtohead.config.experiment import BASELINE, Experiment
from headtohead.config.overlays import RawConfig, RawExperiment, merge_tables
from headtohead.config.search import WINNER_VARIANT
from headtohead.config.training import TrainingConfig
from headtohead.errors import RequestError, suggest

DEFAULT_SEEDS = Experiment.model_fields["seeds"].default
QUICK_SEEDS, QUICK_DIVISOR, QUICK_MIN_STEPS, QUICK_MAX_STEPS, QUICK_EVALUATIONS = 2, 10, 20, 100, 5
QUICK_ROWS = {"train_rows": 10_000, "validation_rows": 100, "test_rows": 100}
QUICK_PRETRAINED_STEPS = 8
QUICK_PRETRAINED_ROWS = {"train_rows": 200, "validation_rows": 50, "test_rows": 50}
"""a step or a row of a pretrained model takes about ten times as long"""
QUICK_SEARCH_POINTS, QUICK_DOCUMENTS, QUICK_TEACHER_ROWS, QUICK_MAX_LENGTH = 4, 8, 800, 512


def select_variants(raw_experiment: RawExperiment, names: Sequence[str]) -> RawExperiment:
    """Keep these variants, and the claims, published results and comparisons that are about them."""
    variants = raw_experiment.raw.get("variants")
    variant_names = list(variants) if isinstance(variants, dict) else []
    if unknown := [name for name in names if name not in variant_names]:
        hint = suggest(unknown[0], variant_names)
        raise RequestError(
            f"{raw_experiment.name} has no variant {unknown[0]!r}{f'; did you mean {hint!r}?' if hint else ''} "
            f"(there are: {', '.join(variant_names)})"
        )
    raw = copy.deepcopy(raw_experiment.raw)
    if isinstance(raw.get("quick"), dict):
        raw["quick"].pop("only", None)
    raw["variants"] = {name: changes for name, changes in raw.get("variants", {}).items() if name in names}
    kept_variants = {BASELINE, WINNER_VARIANT, *names}
    for table in ("claims", "published", "comparisons"):
        rows = raw.get(table)
        for row in rows if isinstance(rows, list) else ():
            if table == "comparisons" and isinstance(row, dict) and isinstance(row.get("variants"), list):
                row["variants"] = [name for name in row["variants"] if name in kept_variants]
        if isinstance(rows, list):
            raw[table] = [row for row in rows if not isinstance(row, dict) or _is_about(row, kept_variants)]
    return replace(raw_experiment, raw=raw)


def _is_about(row: RawConfig, variants: set[str]) -> bool:
    """Return whether all variants that a claim, published result or comparison names are among `variants`."""
    names = [row.get(key, BASELINE) for key in ("variant", "baseline")]
    return row.get("variants") != [] and all(not isinstance(name, str) or name in variants for name in names)


def apply_quick_mode(raw_experiment: RawExperiment) -> RawExperiment:
    """Reduce the experiment to a quick look: fewer seeds, steps, rows and variants, without published results.

    The file's `[quick]` table is applied last; its key `only` lists the variants to keep. `left_out` records what was
    reduced.
    """
    raw = copy.deepcopy(raw_experiment.raw)
    quick = raw.pop("quick", {})
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
        if isinstance(training, dict) and "steps" in training:
            _shrink_training(training, uses_pretrained)
        _shrink_pretraining(changes)
    _shrink_pretraining(raw)
    _shrink_search(raw.get("search"))
    if isinstance(raw.get("teacher"), dict):
        _shrink_teacher(raw["teacher"])
    for table in ("published", "claims"):
        raw.pop(table, None)
    reduced = replace(raw_experiment, raw=raw)
    if isinstance(quick, dict):
        only = quick.pop("only", None)
        reduced = replace(reduced, raw=merge_tables(raw, quick))
        reduced = select_variants(reduced, only) if isinstance(only, list) else reduced
    left_out = _describe_reductions(raw_experiment.raw, reduced.raw)
    return replace(
        reduced, raw=reduced.raw | {"name": f"{raw_experiment.name}-quick", "quick": True, "left_out": left_out}
    )


def _describe_reductions(before: RawConfig, after: RawConfig) -> list[str]:
    """Return what a quick look reduced, such as "2 of 5 seeds"."""
    steps_before, steps = (_get_table(raw, "training").get("steps", TrainingConfig().steps) for raw in (before, after))
    documents_before, documents = (_get_table(raw, "teacher").get("documents") for raw in (before, after))
    reductions = []
    if after["seeds"] != before.get("seeds"):
        reductions.append(f"{after['seeds']} of {before.get('seeds', DEFAULT_SEEDS)} seeds")
    if steps == steps_before:
        pass
    elif isinstance(steps, int) and isinstance(steps_before, int):
        reductions.append(f"{steps:,} of {steps_before:,} steps")
    elif isinstance(steps, int):
        reductions.append(f"{steps:,} steps instead of {steps_before}")
    else:
        reductions.append(f"{str(steps).removesuffix(' epochs')} of {steps_before}")
    limits = [_get_table(after, "data").get(f"{role}_rows") for role in ("train", "validation", "test")]
    if all(isinstance(limit, int) for limit in limits):
        rows = "at most {:,} training, {:,} validation and {:,} test rows, sampled evenly"
        reductions.append(rows.format(*limits))
    if documents != documents_before:
        reductions.append(f"{documents:,} of {documents_before:,} documents of the teacher")
    names, kept_names = (list(_get_table(raw, "variants")) for raw in (before, after))
    if omitted := [name for name in names if name not in kept_names]:
        reductions.append(f"{len(kept_names)} of {len(names)} variants (without {', '.join(omitted)})")
    if search := _get_table(after, "search"):
        reductions.append(f"{search['budget']['trials']} trials of the search")
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
    """Reduce the probed input lengths to the first and the last, up to a limit."""
    for key in ("contexts", "costs"):
        if isinstance(probe, dict) and isinstance(probe.get(key), list):
            lengths = [length for length in probe[key] if isinstance(length, int) and length <= QUICK_MAX_LENGTH]
            probe[key] = [*lengths[:1], *lengths[1:][-1:]]


def _shrink_teacher(teacher: RawConfig) -> None:
    """Reduce the number of texts and the teacher's own training steps."""
    if "documents" in teacher:
        limit = QUICK_DOCUMENTS if "prompt" in teacher else QUICK_TEACHER_ROWS
        teacher["documents"] = _take_at_most(teacher["documents"], limit)
    _shrink_training(teacher.get("training"))
    for key in ("published", "claims"):
        teacher.pop(key, None)


def _shrink_pretraining(table: Any) -> None:
    """Reduce the training steps of the encoder's pre-training, if there is one."""
    model = table.get("model") if isinstance(table, dict) else None
    if isinstance(model, dict) and isinstance(model.get("init_from"), dict):
        _shrink_training(model["init_from"].get("training"))


def _shrink_training(training: Any, uses_pretrained: bool = False) -> None:
    """Reduce the steps, evaluate a few times, and save only at the end."""
    if not isinstance(training, dict):
        return
    steps = _shrink_steps(training.get("steps", TrainingConfig().steps))
    if uses_pretrained:
        steps = QUICK_PRETRAINED_STEPS
    training |= {"steps": steps, "checkpoint_every": steps}
    training["eval_every"] = _divide_steps(steps, 2 if uses_pretrained else QUICK_EVALUATIONS)


def _shrink_search(search: Any) -> None:
    """Reduce the search to a few points, and the searched numbers of steps to a tenth."""
    if not isinstance(search, dict):
        return
    search["seeds"] = _take_at_most(search.get("seeds", 1), 1)
    search["budget"] = {"trials": QUICK_SEARCH_POINTS}
    space = search.get("space")
    for table, key in ((space, "training.steps"), ((space or {}).get("training"), "steps")):
        if not isinstance(table, dict) or key not in table:
            continue
        if isinstance(table[key], list):
            table[key] = list(
                dict.fromkeys(_shrink_steps(steps) for steps in table[key] if isinstance(steps, int | str))
            )
        elif isinstance(table[key], dict):
            table[key] |= {end: _shrink_steps(table[key][end]) for end in ("low", "high") if end in table[key]}


def _shrink_steps(steps: Any) -> Any:
    """Return a tenth of a number of steps or epochs. Invalid values are returned unchanged and rejected later."""
    if isinstance(steps, int):
        return min(steps, QUICK_MAX_STEPS, max(QUICK_MIN_STEPS, steps // QUICK_DIVISOR))
    return _divide_steps(steps, QUICK_DIVISOR)


def _divide_steps(steps: Any, divisor: int) -> Any:
    """Reduce a number of steps, to at least 1, or a number of epochs."""
    if isinstance(steps, int):
        return max(1, steps // divisor)
    epochs = steps.partition(" ")[0] if isinstance(steps, str) and "epoch" in steps else ""
    try:
        return f"{float(epochs) / divisor:g} epochs"
    except ValueError:
        return steps  # validation reports it
