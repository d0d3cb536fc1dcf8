"""Changes applied to an experiment file before validation: variants, `--set`, `[original]`, `[full]` and `--quick`."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headtohead.config.training import TrainingConfig
from headtohead.errors import ConfigError, RequestError, ValidationIssue

RawConfig = dict[str, Any]
VARIANT_TABLES = ("data", "model", "training")
QUICK_SEEDS, QUICK_DIVISOR, QUICK_MIN_STEPS, QUICK_TEST_ROWS = 2, 10, 20, 100
QUICK_SEARCH_POINTS = 4
QUICK_DOCUMENTS = 50


@dataclass(frozen=True)
class RawExperiment:
    """An experiment file after parsing, before validation. `lines` maps dotted keys to line numbers."""

    name: str
    source: str
    raw: RawConfig
    lines: Mapping[str, int] = field(default_factory=dict)


def apply_variant(raw_config: RawConfig, changes: RawConfig) -> RawConfig:
    """Return a copy with the settings of a variant. Values are replaced, not merged."""
    merged = copy.deepcopy(raw_config)
    for table, settings in changes.items():
        if table == "model" and "module" in settings:
            # A custom network has none of the settings of a transformer of parts except the context length.
            context = merged.get("model", {}).get("context")
            merged["model"] = {"context": context} if context else {}
        if table == "model" and "pretrained" in settings and "pretrained" not in merged.get("model", {}):
            merged["model"] = {}  # nor has a pretrained model
        if not isinstance(merged.setdefault(table, {}), dict):
            merged[table] = {}
        merged[table].update(copy.deepcopy(settings))
    return merged


def apply_overrides(raw_experiment: RawExperiment, overrides: Iterable[str]) -> RawExperiment:
    """Apply `--set key=value` options. A value that is not valid TOML is used as text."""
    raw = copy.deepcopy(raw_experiment.raw)
    issues = []
    for setting in overrides:
        key, separator, text = setting.partition("=")
        if not separator or not key.strip():
            issues.append(ValidationIssue(f"--set {setting}", "has the form name=value, as in --set model.layers=2"))
            continue
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        current_table = raw
        *tables, last_key = key.strip().split(".")
        for table in tables:
            inner = current_table.setdefault(table, {})
            if not isinstance(inner, dict):
                inner = current_table[table] = {}
            current_table = inner
        current_table[last_key] = value
    if issues:
        raise ConfigError("command line", issues)
    return replace(raw_experiment, raw=raw)


def apply_original_setup(raw_experiment: RawExperiment) -> RawExperiment:
    """Apply the `[original]` table, for runs on the data of the original report."""
    original = raw_experiment.raw.get("original")
    if not isinstance(original, dict):
        return raw_experiment
    changes = {table: original[table] for table in VARIANT_TABLES if isinstance(original.get(table), dict)}
    return replace(raw_experiment, raw=apply_variant(raw_experiment.raw, changes))


def apply_full_table(raw_experiment: RawExperiment) -> RawExperiment:
    """Apply the `[full]` table, which holds the settings for a larger machine.

    Tables in it replace the keys that they name, `variants` replaces whole variants, and any other key replaces the
    value.
    """
    full = raw_experiment.raw.get("full")
    if not isinstance(full, dict):
        raise RequestError(f"{raw_experiment.name} has no [full] table, so it has no other setting than its own")
    raw = copy.deepcopy(raw_experiment.raw) | {"name": f"{raw_experiment.name}-full"}
    for key, value in full.items():
        current_value = raw.get(key)
        raw[key] = {**current_value, **value} if isinstance(current_value, dict) and isinstance(value, dict) else value
    return replace(raw_experiment, name=raw["name"], raw=raw)


def drop_full_table(raw_experiment: RawExperiment) -> RawExperiment:
    """Remove the `[full]` table, which is not a setting of the experiment."""
    return replace(raw_experiment, raw={key: value for key, value in raw_experiment.raw.items() if key != "full"})


def apply_quick_mode(raw_experiment: RawExperiment) -> RawExperiment:
    """Reduce the experiment to a smoke test: two seeds, a tenth of the steps, one evaluation and few test rows."""
    raw = copy.deepcopy(raw_experiment.raw)
    raw |= {"name": f"{raw_experiment.name}-quick", "quick": True}
    if not isinstance(raw.get("seeds"), int) or raw["seeds"] > QUICK_SEEDS:
        raw["seeds"] = QUICK_SEEDS
    data, probe = raw.setdefault("data", {}), raw.get("probe")
    if isinstance(data, dict):
        data |= {"monitor": [], "max_test_rows": QUICK_TEST_ROWS}
    for lengths in ("contexts", "costs"):
        if isinstance(probe, dict) and isinstance(probe.get(lengths), list):
            probe[lengths] = [*probe[lengths][:1], *probe[lengths][1:][-1:]]
    if isinstance(raw.get("claims"), list):  # claims about contexts that are no longer evaluated
        raw["claims"] = [claim for claim in raw["claims"] if not (isinstance(claim, dict) and "context" in claim)]
    variants = raw.get("variants")
    for table in [raw, *(variants.values() if isinstance(variants, dict) else ())]:
        if table is raw:
            table.setdefault("training", {})
        training = table.get("training") if isinstance(table, dict) else None
        if isinstance(training, dict) and (table is raw or "steps" in training):
            _shrink_training(training)
        _shrink_pretraining(table)
    if isinstance(raw.get("search"), dict):
        _shrink_search(raw["search"])
    if isinstance(raw.get("teacher"), dict):
        _shrink_teacher(raw["teacher"])
        if isinstance(data, dict) and "prompt" in raw["teacher"]:
            data["max_test_rows"] = QUICK_DOCUMENTS
    return replace(raw_experiment, raw=raw)


def _shrink_teacher(teacher: RawConfig) -> None:
    """Reduce the number of texts, and the teacher's own training steps, to a tenth."""
    if isinstance(teacher.get("documents"), int):
        teacher["documents"] = max(QUICK_DOCUMENTS, teacher["documents"] // QUICK_DIVISOR)
    _shrink_training(teacher.get("training"))


def _shrink_pretraining(table: Any) -> None:
    """Reduce the training steps of the encoder's pre-training, if there is one."""
    model = table.get("model") if isinstance(table, dict) else None
    if isinstance(model, dict) and isinstance(model.get("init_from"), dict):
        _shrink_training(model["init_from"].get("training"))


def _shrink_training(training: Any) -> None:
    """Reduce the steps, and evaluate and save only at the end."""
    if isinstance(training, dict):
        steps = _shrink_steps(training.get("steps", TrainingConfig().steps))
        training |= {"steps": steps, "eval_every": steps, "checkpoint_every": steps}


def _shrink_search(search: RawConfig) -> None:
    """Reduce the search to four points with at most two seeds, and the searched numbers of steps to a tenth."""
    seeds = search.get("seeds", QUICK_SEEDS)
    search["seeds"] = min(seeds, QUICK_SEEDS) if isinstance(seeds, int) else seeds
    if isinstance(search["seeds"], int):
        search["budget"] = {"trials": QUICK_SEARCH_POINTS * search["seeds"]}
    space = search.get("space")
    for table, key in ((space, "training.steps"), ((space or {}).get("training"), "steps")):
        if not isinstance(table, dict) or key not in table:
            continue
        if isinstance(table[key], list):
            quick_steps = [_shrink_steps(steps) for steps in table[key]]
            table[key] = [steps for index, steps in enumerate(quick_steps) if steps not in quick_steps[:index]]
        elif isinstance(table[key], dict):
            table[key] |= {end: _shrink_steps(table[key][end]) for end in ("low", "high") if end in table[key]}


def _shrink_steps(steps: Any) -> Any:
    """Return a tenth of a number of steps or epochs. Invalid values are returned unchanged and rejected later."""
    if isinstance(steps, int):
        return min(steps, max(QUICK_MIN_STEPS, steps // QUICK_DIVISOR))
    epochs = steps.partition(" ")[0] if isinstance(steps, str) and "epoch" in steps else ""
    try:
        return f"{float(epochs) / QUICK_DIVISOR:g} epochs"
    except ValueError:
        return steps  # validation reports it
