"""What is laid over an experiment file before it is checked: a variant, --set, the original data, the full setting, the
quick look."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headtohead.config.training import Training
from headtohead.errors import Fault, RequestError, SpecError

Raw = dict[str, Any]
TABLES = ("data", "model", "training")
QUICK_SEEDS, QUICK_SHARE, QUICK_STEPS, QUICK_ROWS = 2, 10, 20, 100
QUICK_CELLS = 4
QUICK_SUMMARIES = 50


@dataclass(frozen=True)
class Draft:
    """An experiment file as read: nothing is checked but that it is TOML."""

    name: str
    source: str
    raw: Raw
    lines: Mapping[str, int] = field(default_factory=dict)


def with_variant(raw: Raw, changes: Raw) -> Raw:
    """The file with what the variant names replaced; nothing is merged into a replaced value."""
    merged = copy.deepcopy(raw)
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


def with_settings(draft: Draft, settings: Iterable[str]) -> Draft:
    """--set model.layers=2 laid over the file. The value is TOML; what is not is taken as text."""
    raw = copy.deepcopy(draft.raw)
    faults = []
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            faults.append(Fault(f"--set {setting}", "has the form name=value, as in --set model.layers=2"))
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
        raise SpecError("command line", faults)
    return replace(draft, raw=raw)


def with_original(draft: Draft) -> Draft:
    """What the file says is to change where the original data are given."""
    original = draft.raw.get("original")
    if not isinstance(original, dict):
        return draft
    changes = {table: original[table] for table in TABLES if isinstance(original.get(table), dict)}
    return replace(draft, raw=with_variant(draft.raw, changes))


def with_full(draft: Draft) -> Draft:
    """The file with its [full] setting: what it is for on a larger machine. A table there replaces the keys that it
    names, `variants` whole variants, anything else the whole value."""
    full = draft.raw.get("full")
    if not isinstance(full, dict):
        raise RequestError(f"{draft.name} has no [full] table, so it has no other setting than its own")
    raw = copy.deepcopy(draft.raw) | {"name": f"{draft.name}-full"}
    for key, given in full.items():
        there = raw.get(key)
        raw[key] = {**there, **given} if isinstance(there, dict) and isinstance(given, dict) else given
    return replace(draft, name=raw["name"], raw=raw)


def without_full(draft: Draft) -> Draft:
    """The experiment alone: its full setting has been laid over it, or was not asked for."""
    return replace(draft, raw={key: value for key, value in draft.raw.items() if key != "full"})


def with_quick(draft: Draft) -> Draft:
    """A quick look: two seeds, a tenth of the steps, a score at the end only, and less text to be scored."""
    raw = copy.deepcopy(draft.raw)
    raw |= {"name": f"{draft.name}-quick", "quick": True}
    if not isinstance(raw.get("seeds"), int) or raw["seeds"] > QUICK_SEEDS:
        raw["seeds"] = QUICK_SEEDS
    data, probe = raw.setdefault("data", {}), raw.get("probe")
    if isinstance(data, dict):
        data |= {"watch": [], "test_rows": QUICK_ROWS}
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
            steps = _quick_steps(training.get("steps", Training().steps))
            training |= {"steps": steps, "evaluate": steps, "checkpoint": steps}
    if isinstance(raw.get("search"), dict):
        _quick_search(raw["search"])
    if isinstance(raw.get("teacher"), dict):
        _quick_teacher(raw["teacher"])
        if isinstance(data, dict) and "prompt" in raw["teacher"]:
            data["test_rows"] = QUICK_SUMMARIES
    return replace(draft, raw=raw)


def _quick_teacher(teacher: Raw) -> None:
    """A tenth of the texts to be taught, and of the steps of a teacher that is trained first."""
    if isinstance(teacher.get("documents"), int):
        teacher["documents"] = max(QUICK_SUMMARIES, teacher["documents"] // QUICK_SHARE)
    training = teacher.get("training")
    if isinstance(training, dict):
        steps = _quick_steps(training.get("steps", Training().steps))
        training |= {"steps": steps, "evaluate": steps, "checkpoint": steps}


def _quick_search(search: Raw) -> None:
    """Four cells, and none of them trained for longer than a quick look is."""
    seeds = search.get("seeds", QUICK_SEEDS)
    search["seeds"] = min(seeds, QUICK_SEEDS) if isinstance(seeds, int) else seeds
    if isinstance(search["seeds"], int):
        search["budget"] = {"trials": QUICK_CELLS * search["seeds"]}
    space = search.get("space")
    for table, key in ((space, "training.steps"), ((space or {}).get("training"), "steps")):
        if not isinstance(table, dict) or key not in table:
            continue
        if isinstance(table[key], list):
            quick = [_quick_steps(one) for one in table[key]]
            table[key] = [one for at, one in enumerate(quick) if one not in quick[:at]]
        elif isinstance(table[key], dict):
            table[key] |= {end: _quick_steps(table[key][end]) for end in ("low", "high") if end in table[key]}


def _quick_steps(steps: Any) -> Any:
    if isinstance(steps, int):
        return min(steps, max(QUICK_STEPS, steps // QUICK_SHARE))
    number = steps.partition(" ")[0] if isinstance(steps, str) and "epoch" in steps else ""
    try:
        return f"{float(number) / QUICK_SHARE:g} epochs"
    except ValueError:
        return steps  # not a number of epochs: the spec says so
