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

from headtohead.config.base import FOLDER_NAME_PATTERN, FOLDER_NAME_RULE
from headtohead.config.consistency import check_experiment
from headtohead.config.distillation_checks import build_tokenizer_config
from headtohead.config.error_messages import convert_pydantic_error
from headtohead.config.experiment import BASELINE, Experiment, Trial
from headtohead.config.overlays import (
    VARIANT_TABLES,
    RawConfig,
    RawExperiment,
    apply_full_table,
    apply_original_setup,
    apply_overrides,
    apply_quick_mode,
    apply_variant,
    drop_full_table,
)
from headtohead.config.search import check_search
from headtohead.config.tasks import TASK_SPECS
from headtohead.config.toml import MAX_FILE_BYTES, check_values, parse_toml
from headtohead.errors import ConfigError, RequestError, ValidationIssue, suggest

ConfigCheck = Callable[[RawConfig], list[ValidationIssue]]
MAX_VARIANTS = 1000
VARIANT_INDEPENDENT_KEYS = (
    "variants",
    "published",
    "claims",
    "comparisons",
    "original",
    "search",
    "axis",
    "about",
    "taught",
)
"""what no variant changes: it is not checked again for each of them"""


def list_recipes() -> list[str]:
    """The experiment files shipped with the package."""
    folder = resources.files(__package__) / "recipes"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))


def find_recipe(name: str) -> Path:
    path = Path(str(resources.files(__package__) / "recipes" / f"{name}.toml"))
    if not path.is_file():
        raise RequestError(_format_unknown_recipe(name))
    return path


def _format_unknown_recipe(name: str) -> str:
    near = suggest(name, list_recipes())
    hint = f"; did you mean {near!r}?" if near else ""
    return f"no file and no recipe named {name!r}{hint} (recipes: {', '.join(list_recipes())})"


def read_raw_experiment(recipe_or_file: str | Path) -> RawExperiment:
    """The file, or the recipe of that name, as a draft."""
    path = Path(recipe_or_file)
    if not path.is_file():
        if path.suffix == ".toml" or path.name != str(recipe_or_file):
            raise RequestError(f"{path}: no such file")
        path = find_recipe(str(recipe_or_file))
    source = str(path)
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ConfigError(
            source, [ValidationIssue("file", f"is too long for an experiment (more than {MAX_FILE_BYTES:,} bytes)")]
        )
    try:
        text = path.read_text(encoding="utf-8")
        raw = parse_toml(text)
    except UnicodeDecodeError as error:
        raise ConfigError(source, [ValidationIssue(f"byte {error.start}", "is not UTF-8 text")]) from None
    except ValueError as error:
        raise ConfigError(source, [ValidationIssue("TOML", str(error))]) from None
    except OSError as error:
        raise RequestError(f"{path}: cannot be read ({error.strerror})") from None
    if not raw:
        raise ConfigError(
            source, [ValidationIssue("file", "is empty; `h2h recipes --show NAME` prints one to start from")]
        )
    if faults := check_values(raw):
        raise ConfigError(source, faults)
    return RawExperiment(path.stem, source, raw, _find_line_numbers(text))


def _find_line_numbers(text: str) -> dict[str, int]:
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


def parse_experiment(
    recipe_or_file: str | Path,
    overrides: Sequence[str] = (),
    *,
    use_original_data: bool = False,
    full: bool = False,
    quick: bool = False,
    check: ConfigCheck | None = None,
    prepare: Callable[[RawConfig, Path], None] | None = None,
) -> Experiment:
    """The experiment in that file; raises SpecError with every fault.

    Laid over it in this order: what it says about its `original` data, its `full` setting, the `quick` look, --set.
    `prepare` is called with the raw file before anything is checked (to import the user's own parts that it names).
    """
    draft = read_raw_experiment(recipe_or_file)
    draft = apply_original_setup(draft) if use_original_data else draft
    draft = drop_full_table(apply_full_table(draft) if full else draft)
    draft = apply_overrides(apply_quick_mode(draft) if quick else draft, overrides)
    if prepare:
        prepare(draft.raw, Path(draft.source).parent)
    experiment, faults = _build_and_check(draft.raw, draft.name, check)
    if faults or experiment is None:
        given = {s.partition("=")[0].strip() for s in overrides}
        raise ConfigError(draft.source, [_add_line_number(f, draft.lines, given) for f in faults])
    return experiment


def build_experiment(raw_config: RawConfig, name: str, *, check: ConfigCheck | None = None) -> Experiment:
    """The same for a dict that did not come from a file."""
    experiment, faults = _build_and_check(raw_config, name, check)
    if faults or experiment is None:
        raise ConfigError(name, faults)
    return experiment


def diff_from_baseline(experiment: Experiment, variant: str) -> dict[str, Any]:
    """What the variant sets otherwise than the baseline, as dotted names with plain values. A search's winner names all
    that was searched, also what came out as it was."""
    given = _flatten_changes(experiment.variants.get(variant, {}))
    if not given:
        return {}
    here, there = (build_trial(experiment, name, 0).model_dump(mode="json") for name in (variant, BASELINE))

    def value(tables: RawConfig, setting: str) -> Any:
        table, _, key = setting.partition(".")
        return tables[table].get(key)

    return {name: said for name, said in given.items() if value(here, name) != value(there, name)}


def build_trial(experiment: Experiment, variant: str, seed: int) -> Trial:
    """One variant with one seed, resolved."""
    raw = experiment.model_dump(mode="json", include={*VARIANT_TABLES})
    merged = apply_variant(raw, experiment.variants[variant]) if variant != BASELINE else raw
    teacher = None if experiment.teacher is None else experiment.teacher.model_dump(mode="json")
    if "pretrained" in merged["model"]:  # its tokens are its own
        merged["data"]["tokenizer"] = build_tokenizer_config(merged["model"], teacher)
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


def _build_and_check(
    raw: RawConfig, name: str, check: ConfigCheck | None
) -> tuple[Experiment | None, list[ValidationIssue]]:
    raw = _fill_defaults(raw, name)
    if faults := check_values(raw):
        return None, faults
    experiment, faults = _validate_config(raw)
    if check:
        faults += check(raw)
    seen = {(f.place, f.message) for f in faults}
    variants = raw.get("variants", {})
    if isinstance(variants, dict) and len(variants) > MAX_VARIANTS:
        faults.append(
            ValidationIssue("variants", f"are {len(variants):,}; an experiment compares {MAX_VARIANTS:,} at most")
        )
    elif isinstance(variants, dict):
        for variant, changes in variants.items():
            found = _check_variant(raw, str(variant), changes, check)
            faults += [f for f in found if (f.place.removeprefix(f"variants.{variant}."), f.message) not in seen]
    if raw.get("search") is not None:
        faults += check_search(raw, lambda changes: _exclude_seen(_check_changes(raw, changes, check), seen))
    return experiment, faults


def _exclude_seen(faults: list[ValidationIssue], seen: set[tuple[str, str]]) -> list[ValidationIssue]:
    return [fault for fault in faults if (fault.place, fault.message) not in seen]


def _fill_defaults(raw: RawConfig, name: str) -> RawConfig:
    raw = {"name": name, **copy.deepcopy(raw)}
    primary = raw.setdefault("primary", {})
    if isinstance(primary, dict) and raw.get("task") in TASK_SPECS:
        primary.setdefault("metric", TASK_SPECS[raw["task"]].metric)
    return raw


def _check_variant(raw: RawConfig, variant: str, changes: Any, check: ConfigCheck | None) -> list[ValidationIssue]:
    place = f"variants.{variant}"
    if variant == BASELINE:
        return [ValidationIssue(place, "is the name of the original; give the change another one")]
    if not FOLDER_NAME_PATTERN.fullmatch(variant):
        return [ValidationIssue(place, FOLDER_NAME_RULE)]
    if not isinstance(changes, dict) or not changes:
        return [ValidationIssue(place, 'changes nothing; write what it replaces, as in model.position = "alibi"')]
    faults = []
    for table in changes:
        if table not in VARIANT_TABLES:
            message = "a variant changes settings of data, model or training"
            faults.append(
                ValidationIssue(f"{place}.{table}", message, VARIANT_TABLES, suggest(str(table), VARIANT_TABLES))
            )
        elif not isinstance(changes[table], dict):
            faults.append(ValidationIssue(f"{place}.{table}", f"is a table, as in {table}.name = value"))
    if faults:
        return faults
    own = _check_changes(raw, changes, check)
    return [ValidationIssue(f"{place}.{f.place}", f.message, f.allowed, f.suggestion) for f in own]


def _check_changes(raw: RawConfig, changes: RawConfig, check: ConfigCheck | None) -> list[ValidationIssue]:
    """What is wrong with the file once these changes are laid over it, as far as they are to blame."""
    named = tuple(_flatten_changes(changes))
    merged = apply_variant({key: value for key, value in raw.items() if key not in VARIANT_INDEPENDENT_KEYS}, changes)
    found = _validate_config(merged)[1] + (check(merged) if check else [])
    return [
        f
        for f in found
        if any(f.place.startswith(n) or n.startswith(f.place) for n in named) or f.place in VARIANT_TABLES
    ]


def _flatten_changes(changes: RawConfig) -> dict[str, Any]:
    return {f"{table}.{key}": value for table, inner in changes.items() for key, value in inner.items()}


def _validate_config(raw: RawConfig) -> tuple[Experiment | None, list[ValidationIssue]]:
    try:
        experiment = Experiment.model_validate(raw)
    except ValidationError as error:
        return None, _deduplicate_errors(error)
    return experiment, check_experiment(experiment)


def _deduplicate_errors(error: ValidationError) -> list[ValidationIssue]:
    """A value that may be of two types is reported once for each of them. The last one says most, unless it only says
    that this type was not given: then the value was of the other one."""
    found: dict[str, ValidationIssue] = {}
    for one in error.errors():
        fault = convert_pydantic_error(one)
        if fault.place not in found or one["type"] != "string_type":
            found[fault.place] = fault
    return list(found.values())


def _add_line_number(
    fault: ValidationIssue, line_numbers: Mapping[str, int], overridden_keys: set[str]
) -> ValidationIssue:
    """The place with its line in the file, or with the --set that it came from."""
    keys = fault.place.split(".")
    for end in range(len(keys), 0, -1):
        key = ".".join(keys[:end])
        if key in overridden_keys:
            return ValidationIssue(f"--set {fault.place}", fault.message, fault.allowed, fault.suggestion)
        if key in line_numbers:
            return ValidationIssue(
                f"{fault.place} (line {line_numbers[key]})", fault.message, fault.allowed, fault.suggestion
            )
    return fault


def build_json_schema() -> dict[str, Any]:
    """A JSON schema of experiment files, for editors."""
    made = Experiment.model_json_schema()
    del made["properties"]["name"]
    made["required"] = ["question", "task"]
    made["title"] = "Head to Head experiment"
    made["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    tables = {table: made["properties"][table] for table in VARIANT_TABLES}
    tables["model"] = {"anyOf": [_make_keys_optional(made["$defs"], one["$ref"]) for one in tables["model"]["oneOf"]]}
    made["properties"]["variants"] = {
        "type": "object",
        "description": "name = the settings that it replaces",
        "additionalProperties": {"type": "object", "properties": tables, "additionalProperties": False},
    }
    made["properties"]["full"] = {
        "type": "object",
        "description": "what --full replaces: the setting of a larger machine",
    }
    search = made["$defs"]["SearchConfig"]["properties"]
    search["space"] = {"type": "object", "description": search["space"]["description"]}
    search["prune"]["anyOf"].append({"type": "boolean"})
    made["$defs"]["ComponentConfig"] = {
        "description": "a name, or a table with the name as kind and its options",
        "anyOf": [
            {"type": "string"},
            {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]},
        ],
    }
    return made


def _make_keys_optional(definitions: dict[str, Any], reference: str) -> dict[str, Any]:
    """A table of which a variant gives only what it replaces."""
    table = definitions[reference.rpartition("/")[2]]
    return {name: value for name, value in table.items() if name != "required"}
