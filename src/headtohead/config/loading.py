"""Read and validate experiment files. All issues are reported together, each with its line.

A file is read to a plain dict. Overlays (`[full]`, `--quick`, `--set`) are applied to the dict, each variant is the
dict with some values replaced, and the results are validated by the pydantic models of this package. Names and options
of parts are unknown to this package; the `check` callback validates them.
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
    apply_variant,
    drop_overlay_tables,
)
from headtohead.config.reduction import apply_quick_mode, select_variants
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
    "description",
    "conclusions",
    "left_out",
)
"""keys that no variant can change, so they are not validated again for each variant"""


def list_recipes() -> list[str]:
    """Return the names of the experiment files that ship with the package."""
    folder = resources.files(__package__) / "recipes"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def find_recipe(name: str) -> Path:
    """Return the path of a recipe; raise `RequestError` with a suggestion if there is none of that name."""
    path = Path(str(resources.files(__package__) / "recipes" / f"{name}.toml"))
    if not path.is_file():
        raise RequestError(_format_unknown_recipe(name))
    return path


def _format_unknown_recipe(name: str) -> str:
    suggestion = suggest(name, list_recipes())
    hint = f"; did you mean {suggestion!r}?" if suggestion else ""
    return f"no file and no recipe named {name!r}{hint} (recipes: {', '.join(list_recipes())})"


def read_raw_experiment(recipe_or_file: str | Path) -> RawExperiment:
    """Read a file, or the recipe of that name, without validating its settings."""
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
    if issues := check_values(raw):
        raise ConfigError(source, issues)
    return RawExperiment(path.stem, source, raw, _find_line_numbers(text))


def _find_line_numbers(text: str) -> dict[str, int]:
    """Return the line number of each dotted key. Keys in unusual layouts may be missing."""
    line_numbers: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        # Adjacent terms of these patterns share no character, which avoids catastrophic backtracking on long lines.
        if header := re.match(r"\s*\[+([^\[\]]+)\]", line):
            table = header.group(1).strip()
            line_numbers.setdefault(table, number)
        elif key := re.match(r"\s*([\w.\-\"]+)\s*=", line):
            line_numbers.setdefault(f"{table}.{key.group(1)}".strip(".").replace('"', ""), number)
    return line_numbers


def parse_experiment(
    recipe_or_file: str | Path,
    overrides: Sequence[str] = (),
    *,
    use_original_data: bool = False,
    full: bool = False,
    quick: bool = False,
    only: Sequence[str] = (),
    check: ConfigCheck | None = None,
    prepare: Callable[[RawConfig, Path], None] | None = None,
) -> Experiment:
    """Read and validate an experiment file; raise `ConfigError` with every issue.

    Overlays are applied in this order: `[original]` if `use_original_data`, `[full]` if `full`, the variants named in
    `only`, the quick look if `quick`, then `overrides`, a list of `key=value`. `prepare` is called with the dict and
    the file's folder before validation, to import custom parts. `check` returns additional issues, such as unknown
    parts.
    """
    raw_experiment = read_raw_experiment(recipe_or_file)
    raw_experiment = apply_original_setup(raw_experiment) if use_original_data else raw_experiment
    raw_experiment = apply_full_table(raw_experiment) if full else raw_experiment
    raw_experiment = select_variants(raw_experiment, only) if only else raw_experiment
    raw_experiment = apply_quick_mode(raw_experiment) if quick else raw_experiment
    raw_experiment = apply_overrides(drop_overlay_tables(raw_experiment), overrides)
    if prepare:
        prepare(raw_experiment.raw, Path(raw_experiment.source).parent)
    experiment, issues = _build_and_check(raw_experiment.raw, raw_experiment.name, check)
    if issues or experiment is None:
        overridden_keys = {override.partition("=")[0].strip() for override in overrides}
        raise ConfigError(
            raw_experiment.source, [_add_line_number(issue, raw_experiment.lines, overridden_keys) for issue in issues]
        )
    return experiment


def build_experiment(raw_config: RawConfig, name: str, *, check: ConfigCheck | None = None) -> Experiment:
    """Validate an experiment that is given as a dict; raise `ConfigError` with every issue."""
    experiment, issues = _build_and_check(raw_config, name, check)
    if issues or experiment is None:
        raise ConfigError(name, issues)
    return experiment


def diff_from_baseline(experiment: Experiment, variant: str) -> dict[str, Any]:
    """Return the settings in which a variant differs from the baseline, by dotted name.

    Settings that the variant lists with the baseline's value, as the winner of a search may, are omitted.
    """
    changes = _flatten_changes(experiment.variants.get(variant, {}))
    if not changes:
        return {}
    variant_tables, baseline_tables = (
        build_trial(experiment, name, 0).model_dump(mode="json") for name in (variant, BASELINE)
    )

    def get_value(tables: RawConfig, setting: str) -> Any:
        table, _, key = setting.partition(".")
        return tables[table].get(key)

    return {
        name: value
        for name, value in changes.items()
        if get_value(variant_tables, name) != get_value(baseline_tables, name)
    }


def build_trial(experiment: Experiment, variant: str, seed: int) -> Trial:
    """Return the trial of one variant (or the baseline) and one seed."""
    raw = experiment.model_dump(mode="json", include={*VARIANT_TABLES})
    merged = apply_variant(raw, experiment.variants[variant]) if variant != BASELINE else raw
    teacher = None if experiment.teacher is None else experiment.teacher.model_dump(mode="json")
    if "pretrained" in merged["model"]:  # pretrained models bring their own tokenizer
        merged["data"]["tokenizer"] = build_tokenizer_config(merged["model"], teacher)
    return Trial.model_validate(
        {
            **merged,
            "task": experiment.task,
            "variant": variant,
            "seed": seed,
            "plugins": experiment.plugins,
            "probe": experiment.probe.model_dump(mode="json"),
            "teacher": teacher,
        }
    )


def _build_and_check(
    raw: RawConfig, name: str, check: ConfigCheck | None
) -> tuple[Experiment | None, list[ValidationIssue]]:
    """Return the experiment, or None if it is invalid, and the issues of the file, its variants and its search."""
    raw = _fill_defaults(raw, name)
    if issues := check_values(raw):
        return None, issues
    experiment, issues = _validate_config(raw)
    if check:
        issues += check(raw)
    seen = {(issue.place, issue.message) for issue in issues}
    variants = raw.get("variants", {})
    if isinstance(variants, dict) and len(variants) > MAX_VARIANTS:
        issues.append(
            ValidationIssue("variants", f"are {len(variants):,}; an experiment compares {MAX_VARIANTS:,} at most")
        )
    elif isinstance(variants, dict):
        for variant, changes in variants.items():
            variant_issues = _check_variant(raw, str(variant), changes, check)
            issues += [
                issue
                for issue in variant_issues
                if (issue.place.removeprefix(f"variants.{variant}."), issue.message) not in seen
            ]
    if raw.get("search") is not None:
        issues += check_search(raw, lambda changes: _exclude_seen(_check_changes(raw, changes, check), seen))
    return experiment, issues


def _exclude_seen(issues: list[ValidationIssue], seen: set[tuple[str, str]]) -> list[ValidationIssue]:
    """Return the issues whose (place, message) is not in `seen`."""
    return [issue for issue in issues if (issue.place, issue.message) not in seen]


def _fill_defaults(raw: RawConfig, name: str) -> RawConfig:
    """Return a copy with the experiment's name and the default metric of its task."""
    raw = {"name": name, **copy.deepcopy(raw)}
    primary = raw.setdefault("primary", {})
    if isinstance(primary, dict) and raw.get("task") in TASK_SPECS:
        primary.setdefault("metric", TASK_SPECS[raw["task"]].metric)
    return raw


def _check_variant(raw: RawConfig, variant: str, changes: Any, check: ConfigCheck | None) -> list[ValidationIssue]:
    """Return the issues of one variant, with places that begin with `variants.NAME`."""
    place = f"variants.{variant}"
    if variant == BASELINE:
        return [ValidationIssue(place, "is the name of the original; give the change another one")]
    if not FOLDER_NAME_PATTERN.fullmatch(variant):
        return [ValidationIssue(place, FOLDER_NAME_RULE)]
    if not isinstance(changes, dict) or not changes:
        return [ValidationIssue(place, 'changes nothing; write what it replaces, as in model.position = "alibi"')]
    issues = []
    for table in changes:
        if table not in VARIANT_TABLES:
            message = "a variant changes settings of data, model or training"
            issues.append(
                ValidationIssue(f"{place}.{table}", message, VARIANT_TABLES, suggest(str(table), VARIANT_TABLES))
            )
        elif not isinstance(changes[table], dict):
            issues.append(ValidationIssue(f"{place}.{table}", f"is a table, as in {table}.name = value"))
    if issues:
        return issues
    change_issues = _check_changes(raw, changes, check)
    return [
        ValidationIssue(f"{place}.{issue.place}", issue.message, issue.allowed, issue.suggestion)
        for issue in change_issues
    ]


def _check_changes(raw: RawConfig, changes: RawConfig, check: ConfigCheck | None) -> list[ValidationIssue]:
    """Return the issues of the file with `changes` applied, restricted to those that the changes cause."""
    changed_keys = tuple(_flatten_changes(changes))
    merged = apply_variant({key: value for key, value in raw.items() if key not in VARIANT_INDEPENDENT_KEYS}, changes)
    issues = _validate_config(merged)[1] + (check(merged) if check else [])
    return [
        issue
        for issue in issues
        if any(issue.place.startswith(key) or key.startswith(issue.place) for key in changed_keys)
        or issue.place in VARIANT_TABLES
    ]


def _flatten_changes(changes: RawConfig) -> dict[str, Any]:
    """Return the changes by dotted name: {"model.position": "alibi"}."""
    return {f"{table}.{key}": value for table, inner in changes.items() for key, value in inner.items()}


def _validate_config(raw: RawConfig) -> tuple[Experiment | None, list[ValidationIssue]]:
    """Return the experiment, or None if it is invalid, and its issues."""
    try:
        experiment = Experiment.model_validate(raw)
    except ValidationError as error:
        return None, _deduplicate_errors(error)
    return experiment, check_experiment(experiment)


def _deduplicate_errors(error: ValidationError) -> list[ValidationIssue]:
    """Convert pydantic errors to issues, one per place.

    A value of a union type yields one error per member. The last is the most specific, unless it only states that the
    value is not a string: then another member was intended.
    """
    issues: dict[str, ValidationIssue] = {}
    for details in error.errors():
        issue = convert_pydantic_error(details)
        if issue.place not in issues or details["type"] != "string_type":
            issues[issue.place] = issue
    return list(issues.values())


def _add_line_number(
    issue: ValidationIssue, line_numbers: Mapping[str, int], overridden_keys: set[str]
) -> ValidationIssue:
    """Return the issue with its line in the file, or with the `--set` option that caused it."""
    keys = issue.place.split(".")
    for end in range(len(keys), 0, -1):
        key = ".".join(keys[:end])
        if key in overridden_keys:
            return ValidationIssue(f"--set {issue.place}", issue.message, issue.allowed, issue.suggestion)
        if key in line_numbers:
            return ValidationIssue(
                f"{issue.place} (line {line_numbers[key]})", issue.message, issue.allowed, issue.suggestion
            )
    return issue


def build_json_schema() -> dict[str, Any]:
    """Return the JSON schema of experiment files, for editors."""
    schema = Experiment.model_json_schema()
    del schema["properties"]["name"]
    schema["required"] = ["question", "task"]
    schema["title"] = "Head to Head experiment"
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    tables = {table: schema["properties"][table] for table in VARIANT_TABLES}
    tables["model"] = {
        "anyOf": [_make_keys_optional(schema["$defs"], option["$ref"]) for option in tables["model"]["oneOf"]]
    }
    schema["properties"]["variants"] = {
        "type": "object",
        "description": "name = the settings that it replaces",
        "additionalProperties": {"type": "object", "properties": tables, "additionalProperties": False},
    }
    schema["properties"]["full"] = {
        "type": "object",
        "description": "what --full replaces: the setting of a larger machine",
    }
    schema["properties"]["quick"] = {
        "type": "object",
        "description": "what --quick replaces; its key `only` lists the variants to keep",
    }
    del schema["properties"]["left_out"]
    search = schema["$defs"]["SearchConfig"]["properties"]
    search["space"] = {"type": "object", "description": search["space"]["description"]}
    search["prune"]["anyOf"].append({"type": "boolean"})
    schema["$defs"]["ComponentConfig"] = {
        "description": "a name, or a table with the name as kind and its options",
        "anyOf": [
            {"type": "string"},
            {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]},
        ],
    }
    return schema


def _make_keys_optional(definitions: dict[str, Any], reference: str) -> dict[str, Any]:
    """Return the definition of a table without required keys, because a variant sets only some of them."""
    table = definitions[reference.rpartition("/")[2]]
    return {name: value for name, value in table.items() if name != "required"}
