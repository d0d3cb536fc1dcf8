"""What is laid over an experiment file before it is checked: a variant, --set, the original data, the full setting, the
quick look."""

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
    """An experiment file as read: nothing is checked but that it is TOML."""

    name: str
    source: str
    raw: RawConfig
    lines: Mapping[str, int] = field(default_factory=dict)


def apply_variant(raw_config: RawConfig, changes: RawConfig) -> RawConfig:
    """The file with what the variant names replaced; nothing is merged into a replaced value."""
    merged = copy.deepcopy(raw_config)
    for table, settings in changes.items():
        if table == "model" and "module" in settings:
            # A network of one's own has none of the parts' settings; the length of its inputs stays.
            context = merged.get("model", {}).get("context")
            merged["model"] = {"context": context} if context else {}
        if table == "model" and "pretrained" in settings and "pretrained" not in merged.get("model", {}):
            merged["model"] = {}  # and so has a pretrained encoder
        if not isinstance(merged.setdefault(table, {}), dict):
            merged[table] = {}
        merged[table].update(copy.deepcopy(settings))
    return merged


def apply_overrides(raw_experiment: RawExperiment, overrides: Iterable[str]) -> RawExperiment:
    """--set model.layers=2 laid over the file. The value is TOML; what is not is taken as text."""
    raw = copy.deepcopy(raw_experiment.raw)
    faults = []
    for setting in overrides:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            faults.append(ValidationIssue(f"--set {setting}", "has the form name=value, as in --set model.layers=2"))
            continue
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        at = raw
        *tables, last = key.strip().split(".")
        for table in tables:
            inner = at.setdefault(table, {})
            if not isinstance(inner, dict):
                inner = at[table] = {}
            at = inner
        at[last] = value
    if faults:
        raise ConfigError("command line", faults)
    return replace(raw_experiment, raw=raw)


def apply_original_setup(raw_experiment: RawExperiment) -> RawExperiment:
    """What the file says is to change where the original data are given."""
    original = raw_experiment.raw.get("original")
    if not isinstance(original, dict):
        return raw_experiment
    changes = {table: original[table] for table in VARIANT_TABLES if isinstance(original.get(table), dict)}
    return replace(raw_experiment, raw=apply_variant(raw_experiment.raw, changes))


def apply_full_table(raw_experiment: RawExperiment) -> RawExperiment:
    """The file with its [full] setting: what it is for on a larger machine. A table there replaces the keys that it
    names, `variants` whole variants, anything else the whole value."""
    full = raw_experiment.raw.get("full")
    if not isinstance(full, dict):
        raise RequestError(f"{raw_experiment.name} has no [full] table, so it has no other setting than its own")
    raw = copy.deepcopy(raw_experiment.raw) | {"name": f"{raw_experiment.name}-full"}
    for key, given in full.items():
        there = raw.get(key)
        raw[key] = {**there, **given} if isinstance(there, dict) and isinstance(given, dict) else given
    return replace(raw_experiment, name=raw["name"], raw=raw)


def drop_full_table(raw_experiment: RawExperiment) -> RawExperiment:
    """The experiment alone: its full setting has been laid over it, or was not asked for."""
    return replace(raw_experiment, raw={key: value for key, value in raw_experiment.raw.items() if key != "full"})


def apply_quick_mode(raw_experiment: RawExperiment) -> RawExperiment:
    """A quick look: two seeds, a tenth of the steps, a score at the end only, and less text to be scored."""
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
    if isinstance(raw.get("claims"), list):  # lengths that are not tried cannot be claimed about
        raw["claims"] = [one for one in raw["claims"] if not (isinstance(one, dict) and "context" in one)]
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
    """A tenth of the texts to be taught, and of the steps of a teacher that is trained first."""
    if isinstance(teacher.get("documents"), int):
        teacher["documents"] = max(QUICK_DOCUMENTS, teacher["documents"] // QUICK_DIVISOR)
    _shrink_training(teacher.get("training"))


def _shrink_pretraining(table: Any) -> None:
    model = table.get("model") if isinstance(table, dict) else None
    if isinstance(model, dict) and isinstance(model.get("init_from"), dict):
        _shrink_training(model["init_from"].get("training"))


def _shrink_training(training: Any) -> None:
    if isinstance(training, dict):
        steps = _shrink_steps(training.get("steps", TrainingConfig().steps))
        training |= {"steps": steps, "eval_every": steps, "checkpoint_every": steps}


def _shrink_search(search: RawConfig) -> None:
    """Four cells, and none of them trained for longer than a quick look is."""
    seeds = search.get("seeds", QUICK_SEEDS)
    search["seeds"] = min(seeds, QUICK_SEEDS) if isinstance(seeds, int) else seeds
    if isinstance(search["seeds"], int):
        search["budget"] = {"trials": QUICK_SEARCH_POINTS * search["seeds"]}
    space = search.get("space")
    for table, key in ((space, "training.steps"), ((space or {}).get("training"), "steps")):
        if not isinstance(table, dict) or key not in table:
            continue
        if isinstance(table[key], list):
            quick = [_shrink_steps(one) for one in table[key]]
            table[key] = [one for at, one in enumerate(quick) if one not in quick[:at]]
        elif isinstance(table[key], dict):
            table[key] |= {end: _shrink_steps(table[key][end]) for end in ("low", "high") if end in table[key]}


def _shrink_steps(steps: Any) -> Any:
    if isinstance(steps, int):
        return min(steps, max(QUICK_MIN_STEPS, steps // QUICK_DIVISOR))
    number = steps.partition(" ")[0] if isinstance(steps, str) and "epoch" in steps else ""
    try:
        return f"{float(number) / QUICK_DIVISOR:g} epochs"
    except ValueError:
        return steps  # not a number of epochs: the spec says so
