"""Experiment files: strict TOML, every error at once, each with its place.

A file is read to a plain dict, --set is laid over it, each variant is the dict with what it names replaced, and all of
that is held against the tables of this room. Names of parts and their options are not known here: `check` is called for
that, so that the errors of both come out together.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from headtohead.config.base import FOLDER_NAME, FOLDER_WORDS
from headtohead.config.consistency import impossible
from headtohead.config.distillation_checks import tokens_of
from headtohead.config.error_messages import fault_of
from headtohead.config.experiment import BASELINE, Experiment, Trial
from headtohead.config.overlays import (
    TABLES,
    Draft,
    Raw,
    with_full,
    with_original,
    with_quick,
    with_settings,
    with_variant,
    without_full,
)
from headtohead.config.search import search_faults
from headtohead.config.toml import LONGEST_FILE, parse_toml, unusable
from headtohead.errors import Fault, RequestError, SpecError, nearest

Check = Callable[[Raw], list[Fault]]
MOST_VARIANTS = 1000
BESIDE = ("variants", "published", "claims", "comparisons", "original", "search", "axis", "about", "taught")
"""what no variant changes: it is not checked again for each of them"""


def recipe_names() -> list[str]:
    """The experiment files shipped with the package."""
    folder = resources.files(__package__) / "recipes"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))


def recipe_path(name: str) -> Path:
    path = Path(str(resources.files(__package__) / "recipes" / f"{name}.toml"))
    if not path.is_file():
        raise RequestError(_no_such_recipe(name))
    return path


def _no_such_recipe(name: str) -> str:
    near = nearest(name, recipe_names())
    hint = f"; did you mean {near!r}?" if near else ""
    return f"no file and no recipe named {name!r}{hint} (recipes: {', '.join(recipe_names())})"


def read(recipe_or_file: str | Path) -> Draft:
    """The file, or the recipe of that name, as a draft."""
    path = Path(recipe_or_file)
    if not path.is_file():
        if path.suffix == ".toml" or path.name != str(recipe_or_file):
            raise RequestError(f"{path}: no such file")
        path = recipe_path(str(recipe_or_file))
    source = str(path)
    if path.stat().st_size > LONGEST_FILE:
        raise SpecError(source, [Fault("file", f"is too long for an experiment (more than {LONGEST_FILE:,} bytes)")])
    try:
        text = path.read_text(encoding="utf-8")
        raw = parse_toml(text)
    except UnicodeDecodeError as error:
        raise SpecError(source, [Fault(f"byte {error.start}", "is not UTF-8 text")]) from None
    except ValueError as error:
        raise SpecError(source, [Fault("TOML", str(error))]) from None
    except OSError as error:
        raise RequestError(f"{path}: cannot be read ({error.strerror})") from None
    if not raw:
        raise SpecError(source, [Fault("file", "is empty; `h2h recipes --show NAME` prints one to start from")])
    if faults := unusable(raw):
        raise SpecError(source, faults)
    return Draft(path.stem, source, raw, _lines(text))


def _lines(text: str) -> dict[str, int]:
    """Where each key stands. Good for the common layouts; a key that is not found simply has no line."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        # No two neighbours of these patterns match the same character: a long line would take for ever.
        if header := re.match(r"\s*\[+([^\[\]]+)\]", line):
            table = header.group(1).strip()
            found.setdefault(table, number)
        elif key := re.match(r"\s*([\w.\-\"]+)\s*=", line):
            found.setdefault(f"{table}.{key.group(1)}".strip(".").replace('"', ""), number)
    return found


def parse(
    recipe_or_file: str | Path,
    settings: Sequence[str] = (),
    *,
    original: bool = False,
    full: bool = False,
    quick: bool = False,
    check: Check | None = None,
    prepare: Callable[[Raw, Path], None] | None = None,
) -> Experiment:
    """The experiment in that file; raises SpecError with every fault.

    Laid over it in this order: what it says about its `original` data, its `full` setting, the `quick` look, --set.
    `prepare` is called with the raw file before anything is checked (to import the user's own parts that it names).
    """
    draft = read(recipe_or_file)
    draft = with_original(draft) if original else draft
    draft = without_full(with_full(draft) if full else draft)
    draft = with_settings(with_quick(draft) if quick else draft, settings)
    if prepare:
        prepare(draft.raw, Path(draft.source).parent)
    experiment, faults = _resolve(draft.raw, draft.name, check)
    if faults or experiment is None:
        given = {s.partition("=")[0].strip() for s in settings}
        raise SpecError(draft.source, [_placed(f, draft.lines, given) for f in faults])
    return experiment


def resolve(raw: Raw, name: str, *, check: Check | None = None) -> Experiment:
    """The same for a dict that did not come from a file."""
    experiment, faults = _resolve(raw, name, check)
    if faults or experiment is None:
        raise SpecError(name, faults)
    return experiment


def changes_of(experiment: Experiment, variant: str) -> dict[str, Any]:
    """What the variant sets otherwise than the baseline, as dotted names with plain values. A search's winner names all
    that was searched, also what came out as it was."""
    given = _flat(experiment.variants.get(variant, {}))
    if not given:
        return {}
    here, there = (trial(experiment, name, 0).model_dump(mode="json") for name in (variant, BASELINE))

    def value(tables: Raw, setting: str) -> Any:
        table, _, key = setting.partition(".")
        return tables[table].get(key)

    return {name: said for name, said in given.items() if value(here, name) != value(there, name)}


def trial(experiment: Experiment, variant: str, seed: int) -> Trial:
    """One variant with one seed, resolved."""
    raw = experiment.model_dump(mode="json", include={*TABLES})
    merged = with_variant(raw, experiment.variants[variant]) if variant != BASELINE else raw
    teacher = None if experiment.teacher is None else experiment.teacher.model_dump(mode="json")
    if "pretrained" in merged["model"]:  # its tokens are its own
        merged["data"]["tokens"] = tokens_of(merged["model"], teacher)
    return Trial.model_validate(
        {
            **merged,
            "task": experiment.task,
            "variant": variant,
            "seed": seed,
            "use": experiment.use,
            "probe": experiment.probe.model_dump(mode="json"),
            "teacher": teacher,
        }
    )


def _resolve(raw: Raw, name: str, check: Check | None) -> tuple[Experiment | None, list[Fault]]:
    raw = _with_defaults(raw, name)
    if faults := unusable(raw):
        return None, faults
    experiment, faults = _validated(raw)
    if check:
        faults += check(raw)
    seen = {(f.place, f.message) for f in faults}
    variants = raw.get("variants", {})
    if isinstance(variants, dict) and len(variants) > MOST_VARIANTS:
        faults.append(Fault("variants", f"are {len(variants):,}; an experiment compares {MOST_VARIANTS:,} at most"))
    elif isinstance(variants, dict):
        for variant, changes in variants.items():
            found = _variant_faults(raw, str(variant), changes, check)
            faults += [f for f in found if (f.place.removeprefix(f"variants.{variant}."), f.message) not in seen]
    if raw.get("search") is not None:
        faults += search_faults(raw, lambda changes: _unlike(_changed_faults(raw, changes, check), seen))
    return experiment, faults


def _unlike(faults: list[Fault], seen: set[tuple[str, str]]) -> list[Fault]:
    return [fault for fault in faults if (fault.place, fault.message) not in seen]


def _with_defaults(raw: Raw, name: str) -> Raw:
    raw = {"name": name, **copy.deepcopy(raw)}
    primary = raw.setdefault("primary", {})
    if isinstance(primary, dict) and isinstance(raw.get("task"), str):
        primary.setdefault("metric", "perplexity" if raw["task"] in ("language-model", "distil") else "accuracy")
    return raw


def _variant_faults(raw: Raw, variant: str, changes: Any, check: Check | None) -> list[Fault]:
    place = f"variants.{variant}"
    if variant == BASELINE:
        return [Fault(place, "is the name of the original; give the change another one")]
    if not FOLDER_NAME.fullmatch(variant):
        return [Fault(place, FOLDER_WORDS)]
    if not isinstance(changes, dict) or not changes:
        return [Fault(place, 'changes nothing; write what it replaces, as in model.position = "alibi"')]
    faults = []
    for table in changes:
        if table not in TABLES:
            message = "a variant changes settings of data, model or training"
            faults.append(Fault(f"{place}.{table}", message, TABLES, nearest(str(table), TABLES)))
        elif not isinstance(changes[table], dict):
            faults.append(Fault(f"{place}.{table}", f"is a table, as in {table}.name = value"))
    if faults:
        return faults
    own = _changed_faults(raw, changes, check)
    return [Fault(f"{place}.{f.place}", f.message, f.allowed, f.nearest) for f in own]


def _changed_faults(raw: Raw, changes: Raw, check: Check | None) -> list[Fault]:
    """What is wrong with the file once these changes are laid over it, as far as they are to blame."""
    named = tuple(_flat(changes))
    merged = with_variant({key: value for key, value in raw.items() if key not in BESIDE}, changes)
    found = _validated(merged)[1] + (check(merged) if check else [])
    return [f for f in found if any(f.place.startswith(n) or n.startswith(f.place) for n in named) or f.place in TABLES]


def _flat(changes: Raw) -> dict[str, Any]:
    return {f"{table}.{key}": value for table, inner in changes.items() for key, value in inner.items()}


def _validated(raw: Raw) -> tuple[Experiment | None, list[Fault]]:
    try:
        experiment = Experiment.model_validate(raw)
    except ValidationError as error:
        return None, _one_a_place(error)
    return experiment, impossible(experiment)


def _one_a_place(error: ValidationError) -> list[Fault]:
    """A value that may be of two types is reported once for each of them. The last one says most, unless it only says
    that this type was not given: then the value was of the other one."""
    found: dict[str, Fault] = {}
    for one in error.errors():
        fault = fault_of(one)
        if fault.place not in found or one["type"] != "string_type":
            found[fault.place] = fault
    return list(found.values())


def _placed(fault: Fault, lines: Mapping[str, int], given: set[str]) -> Fault:
    """The place with its line in the file, or with the --set that it came from."""
    keys = fault.place.split(".")
    for end in range(len(keys), 0, -1):
        key = ".".join(keys[:end])
        if key in given:
            return Fault(f"--set {fault.place}", fault.message, fault.allowed, fault.nearest)
        if key in lines:
            return Fault(f"{fault.place} (line {lines[key]})", fault.message, fault.allowed, fault.nearest)
    return fault


def schema() -> dict[str, Any]:
    """A JSON schema of experiment files, for editors."""
    made = Experiment.model_json_schema()
    del made["properties"]["name"]
    made["required"] = ["question", "task"]
    made["title"] = "Head to Head experiment"
    made["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    tables = {table: made["properties"][table] for table in TABLES}
    tables["model"] = {"anyOf": [_not_required(made["$defs"], one["$ref"]) for one in tables["model"]["oneOf"]]}
    made["properties"]["variants"] = {
        "type": "object",
        "description": "name = the settings that it replaces",
        "additionalProperties": {"type": "object", "properties": tables, "additionalProperties": False},
    }
    made["properties"]["full"] = {
        "type": "object",
        "description": "what --full replaces: the setting of a larger machine",
    }
    search = made["$defs"]["Search"]["properties"]
    search["space"] = {"type": "object", "description": search["space"]["description"]}
    search["prune"]["anyOf"].append({"type": "boolean"})
    made["$defs"]["Choice"] = {
        "description": "a name, or a table with the name as kind and its options",
        "anyOf": [
            {"type": "string"},
            {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]},
        ],
    }
    return made


def _not_required(known: dict[str, Any], reference: str) -> dict[str, Any]:
    """A table of which a variant gives only what it replaces."""
    table = known[reference.rpartition("/")[2]]
    return {name: value for name, value in table.items() if name != "required"}
