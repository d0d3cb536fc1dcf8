"""Read and validate experiment files. All issues are reported together, each with its line.

A file is read to a plain dict. Overlays (`[full]`, `--quick`, `--set`) are applied to the dict, each variant is the
dict with some values replaced, and the results are validated by the pydantic models of this package. Names and options
of parts are unknown to this package; the `check` callback validates them.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from headtohead.config.base import FOLDER_NAME_PATTERN, FOLDER_NAME_RULE
from headtohead.config.experiment import BASELINE, VARIANT_INDEPENDENT_KEYS, Experiment, Trial
from headtohead.config.overlays import (
    VARIANT_TABLES,
    RawConfig,
    RawExperiment,
    adapt_to_other_data,
    apply_full_table,
    apply_original_setup,
    apply_overrides,
    apply_variant,
    drop_overlay_tables,
    remove_setting,
)
from headtohead.config.reduction import apply_quick_mode, select_variants
from headtohead.config.report_text import ReportText
from headtohead.config.search import check_search
from headtohead.config.tasks import TASK_SPECS
from headtohead.config.toml import MAX_FILE_BYTES, check_values, parse_toml
from headtohead.config.validation.consistency import check_experiment
from headtohead.config.validation.error_messages import convert_pydantic_error
from headtohead.errors import ConfigError, RequestError, ValidationIssue, format_suggestion, suggest

ConfigCheck = Callable[[RawConfig], list[ValidationIssue]]
MAX_VARIANTS = 1000


def list_recipes() -> list[str]:
    """Return the names of the experiment files that ship with the package."""
    folder = resources.files(__package__) / "recipes"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def find_recipe(name: str) -> Path:
    """Return the path of a recipe; raise `RequestError` with a suggestion if there is none of that name."""
    path = Path(str(resources.files(__package__) / "recipes" / f"{name}.toml"))
    if not path.is_file():
        recipes = list_recipes()
        raise RequestError(
            f"no file and no recipe named {name!r}{format_suggestion(name, recipes)} (recipes: {', '.join(recipes)})"
        )
    return path


def read_raw_experiment(recipe_or_file: str | Path) -> RawExperiment:
    """Read a file, or the recipe of that name, without validating its settings."""
    path = Path(recipe_or_file)
    if not path.is_file():
        if path.suffix == ".toml" or path.name != str(recipe_or_file):
            raise RequestError(f"{path}: no such file")
        path = find_recipe(str(recipe_or_file))
    raw: RawConfig = {}
    try:
        text = path.read_text(encoding="utf-8") if path.stat().st_size <= MAX_FILE_BYTES else ""
        raw = parse_toml(text)
        message = "is empty; `h2h recipes --show NAME` prints one to start from"
        if path.stat().st_size > MAX_FILE_BYTES:
            message = f"is too long for an experiment (more than {MAX_FILE_BYTES:,} bytes)"
        issues = check_values(raw) if raw else [ValidationIssue("file", message)]
    except UnicodeDecodeError as error:
        issues = [ValidationIssue(f"byte {error.start}", "is not UTF-8 text")]
    except ValueError as error:
        issues = [ValidationIssue("TOML", str(error))]
    except OSError as error:
        raise RequestError(f"{path}: cannot be read ({error.strerror})") from None
    if issues:
        raise ConfigError(str(path), issues)
    return RawExperiment(path.stem, str(path), raw, _find_line_numbers(text))


def _find_line_numbers(text: str) -> dict[str, int]:
    """Return the line number of each dotted key. Keys in unusual layouts may be missing."""
    line_numbers: dict[str, int] = {}
    num_elements: Counter[str] = Counter()
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        # Adjacent terms of these patterns share no character, which avoids catastrophic backtracking on long lines.
        if header := re.match(r"\s*(\[+)([^\[\]]+)\]", line):
            table = header.group(2).strip()
            line_numbers.setdefault(table, number)
            if header.group(1) == "[[":
                table = f"{table}.{num_elements[table]}"
                num_elements[table.rpartition(".")[0]] += 1
                line_numbers[table] = number
        elif key := re.match(r"\s*([\w.\-\"]+)\s*=", line):
            line_numbers.setdefault(f"{table}.{key.group(1)}".strip(".").replace('"', ""), number)
    return line_numbers


def parse_experiment(
    recipe_or_file: str | Path,
    overrides: Sequence[str] = (),
    *,
    data_folder: Path | None = None,
    full: bool = False,
    quick: bool = False,
    only: Sequence[str] = (),
    check: ConfigCheck | None = None,
    prepare: Callable[[RawConfig, Path], None] | None = None,
) -> Experiment:
    """Read and validate an experiment file; raise `ConfigError` with every issue.

    Overlays are applied in the order in which the arguments are listed here.

    Args:
        recipe_or_file: Name of a recipe, or path of an experiment file.
        data_folder: Folder with other data. If it has the files of `[original]`, that table is applied; otherwise
            settings that only apply to the recipe's own data are removed.
        full: Apply the `[full]` table.
        only: Variants to keep; all if empty.
        quick: Reduce the experiment to a quick look.
        overrides: Settings of the form `key=value`, applied last.
        check: Returns additional issues, such as unknown parts.
        prepare: Called with the settings and the file's folder before validation, to import custom parts.
    """
    raw_experiment = read_raw_experiment(recipe_or_file)
    if data_folder is not None:
        raw_experiment = _apply_other_data(raw_experiment, data_folder)
    raw_experiment = apply_full_table(raw_experiment) if full else raw_experiment
    raw_experiment = select_variants(raw_experiment, only) if only else raw_experiment
    raw_experiment = apply_quick_mode(raw_experiment) if quick else raw_experiment
    raw_experiment = apply_overrides(drop_overlay_tables(raw_experiment), overrides)
    if prepare:
        prepare(raw_experiment.raw, Path(raw_experiment.source).parent)
    experiment, issues = _build_and_check(raw_experiment.raw, raw_experiment.name, check)
    if issues or experiment is None:
        overridden_keys = {override.partition("=")[0].strip() for override in overrides}
        issues = [_add_line_number(issue, raw_experiment.lines, overridden_keys) for issue in issues]
        raise ConfigError(raw_experiment.source, issues)
    return experiment


def _apply_other_data(raw_experiment: RawExperiment, data_folder: Path) -> RawExperiment:
    """Apply the `[original]` table if the folder has its files; otherwise adapt a recipe to the data of the user."""
    original = raw_experiment.raw.get("original")
    files = original.get("files", ()) if isinstance(original, dict) else ()
    if files and all((data_folder / str(name)).is_file() for name in files):
        return apply_original_setup(raw_experiment)
    is_recipe = Path(raw_experiment.source).parent == find_recipe(list_recipes()[0]).parent
    return adapt_to_other_data(raw_experiment) if is_recipe else raw_experiment


def build_experiment(raw_config: RawConfig, name: str, *, check: ConfigCheck | None = None) -> Experiment:
    """Validate an experiment that is given as a dict; raise `ConfigError` with every issue."""
    experiment, issues = _build_and_check(raw_config, name, check)
    if issues or experiment is None:
        raise ConfigError(name, issues)
    return experiment


def read_report_texts(path: Path) -> tuple[ReportText, ...]:
    """Return the `[[text]]` blocks of an experiment file; raise `ConfigError` if they are invalid."""
    raw_experiment = read_raw_experiment(path)
    try:
        return TypeAdapter(tuple[ReportText, ...]).validate_python(tuple(raw_experiment.raw.get("text", ())))
    except ValidationError as error:
        issues = [convert_pydantic_error({**details, "loc": ("text", *details["loc"])}) for details in error.errors()]
        issues = [_add_line_number(issue, raw_experiment.lines, set()) for issue in issues]
        raise ConfigError(str(path), issues) from None


def diff_from_baseline(experiment: Experiment, variant: str) -> dict[str, Any]:
    """Return the settings in which a variant differs from the baseline, by dotted name.

    Settings that the variant lists with the baseline's value, as the winner of a search may, are omitted.
    """
    changes = experiment.variants.get(variant)
    if not changes:
        return {}
    trial, baseline = (build_trial(experiment, name, 0).model_dump(mode="json") for name in (variant, BASELINE))
    return {
        f"{table}.{key}": value
        for table, settings in changes.items()
        for key, value in settings.items()
        if trial[table].get(key) != baseline[table].get(key)
    }


def build_trial(experiment: Experiment, variant: str, seed: int) -> Trial:
    """Return the trial of one variant (or the baseline) and one seed."""
    raw = experiment.model_dump(mode="json", include={*VARIANT_TABLES})
    merged = apply_variant(raw, experiment.variants[variant]) if variant != BASELINE else raw
    teacher = None if experiment.teacher is None else experiment.teacher.model_dump(mode="json")
    if "pretrained" in merged["model"]:  # the tokenizer settings include all that changes the rows of token ids
        model = merged["model"]
        tokenizer = {"kind": "pretrained", "model": model["pretrained"], "max_length": model["max_length"]}
        prompt_keys = ("prompt", "use_chat_template", "documents", "max_new_tokens")
        merged["data"]["tokenizer"] = tokenizer | ({key: teacher[key] for key in prompt_keys} if teacher else {})
    trial = {
        **merged,
        "task": experiment.task,
        "variant": variant,
        "seed": seed,
        "plugins": experiment.plugins,
        "probe": experiment.probe.model_dump(mode="json"),
        "teacher": teacher,
    }
    try:
        return Trial.model_validate(trial)
    except ValidationError as error:  # an experiment.json that was edited
        issues = [convert_pydantic_error(details) for details in error.errors()]
        raise ConfigError(f"{experiment.name}, variant {variant}", issues) from None


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
    file_issues = {(issue.location, issue.message) for issue in issues}

    def check_changes(changes: RawConfig) -> list[ValidationIssue]:
        """Return the issues of the file with these changes that the file itself does not have."""
        issues = _check_changes(raw, changes, check)
        return [issue for issue in issues if (issue.location, issue.message) not in file_issues]

    variants = raw.get("variants", {})
    if isinstance(variants, dict) and len(variants) > MAX_VARIANTS:
        message = f"are {len(variants):,}; an experiment compares {MAX_VARIANTS:,} at most"
        issues.append(ValidationIssue("variants", message))
    elif isinstance(variants, dict):
        for variant, changes in variants.items():
            issues += _check_variant(str(variant), changes, check_changes)
    if raw.get("search") is not None:
        issues += check_search(raw, check_changes)
    return experiment, issues


def _fill_defaults(raw: RawConfig, name: str) -> RawConfig:
    """Return a copy with the experiment's name and the default metric of its task."""
    raw = {"name": name, **copy.deepcopy(raw)}
    primary = raw.setdefault("primary", {})
    if isinstance(primary, dict) and raw.get("task") in TASK_SPECS:
        primary.setdefault("metric", TASK_SPECS[raw["task"]].metric)
    return raw


def _check_variant(variant: str, changes: Any, check_changes: ConfigCheck) -> list[ValidationIssue]:
    """Return the issues of one variant, with places that begin with `variants.NAME`."""
    location = f"variants.{variant}"
    if variant == BASELINE:
        return [ValidationIssue(location, "is reserved for the unchanged settings; choose another name")]
    if not FOLDER_NAME_PATTERN.fullmatch(variant):
        return [ValidationIssue(location, FOLDER_NAME_RULE)]
    if not isinstance(changes, dict) or not changes:
        return [ValidationIssue(location, 'has no settings; write what it replaces, as in model.position = "alibi"')]
    issues = []
    for table in changes:
        if table not in VARIANT_TABLES:
            message, closest = "a variant changes settings of data, model or training", suggest(table, VARIANT_TABLES)
            issues.append(ValidationIssue(f"{location}.{table}", message, VARIANT_TABLES, closest))
        elif not isinstance(changes[table], dict):
            issues.append(ValidationIssue(f"{location}.{table}", f"is a table, as in {table}.name = value"))
    if issues:
        return issues
    return [replace(issue, location=f"{location}.{issue.location}") for issue in check_changes(changes)]


def _check_changes(raw: RawConfig, changes: RawConfig, check: ConfigCheck | None) -> list[ValidationIssue]:
    """Return the issues of the file with `changes` applied, restricted to those that the changes cause."""
    changed_keys = [f"{table}.{key}" for table, settings in changes.items() for key in settings]
    merged = apply_variant({key: value for key, value in raw.items() if key not in VARIANT_INDEPENDENT_KEYS}, changes)
    issues = _validate_config(merged)[1] + (check(merged) if check else [])
    return [
        issue
        for issue in issues
        if any(issue.location.startswith(key) or key.startswith(issue.location) for key in changed_keys)
        or issue.location in VARIANT_TABLES
    ]


def _validate_config(raw: RawConfig) -> tuple[Experiment | None, list[ValidationIssue]]:
    """Return the experiment, or None if it is invalid, and its issues, one per place."""
    try:
        experiment = Experiment.model_validate(raw)
    except ValidationError as error:
        issues: dict[str, ValidationIssue] = {}
        for details in error.errors():
            issue = convert_pydantic_error(details)
            # A value of a union type yields one error per member. The last is the most specific, unless it only states
            # that the value is not a string: then another member was intended.
            if issue.location not in issues or details["type"] != "string_type":
                issues[issue.location] = issue
        for issue in _check_without(raw, [details["loc"] for details in error.errors()]):
            issues.setdefault(issue.location, issue)
        return None, list(issues.values())
    return experiment, check_experiment(experiment)


def _check_without(raw: RawConfig, invalid_locations: Sequence[Sequence[int | str]]) -> list[ValidationIssue]:
    """Return the issues between valid settings, which pydantic does not check while any setting is invalid.

    Invalid settings are removed first; an issue that mentions one of them may be caused by the removal and is dropped.
    """
    remaining = {"question": "", **copy.deepcopy(raw)}
    removed_keys = {remove_setting(remaining, location) for location in invalid_locations} - {""}
    try:
        issues = check_experiment(Experiment.model_validate(remaining))
    except ValidationError as error:
        issues = [convert_pydantic_error(details) for details in error.errors() if details["type"] == "value_error"]
    return [
        issue for issue in issues if not removed_keys & set(re.findall(r"\w+", f"{issue.location} {issue.message}"))
    ]


def _add_line_number(
    issue: ValidationIssue, line_numbers: Mapping[str, int], overridden_keys: set[str]
) -> ValidationIssue:
    """Return the issue with its line in the experiment file, or with the `--set` option that caused it."""
    keys = issue.location.split(".")
    for end in range(len(keys), 0, -1):
        key = ".".join(keys[:end])
        if key in overridden_keys:
            return replace(issue, location=f"--set {issue.location}")
        if key in line_numbers:
            return replace(issue, location=f"{issue.location} (line {line_numbers[key]})")
    return issue


def build_json_schema() -> dict[str, Any]:
    """Return the JSON schema of experiment files, for editors."""
    schema = Experiment.model_json_schema()
    del schema["properties"]["name"]
    schema["required"] = ["question", "task"]
    schema["title"] = "Head to Head experiment"
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    tables = {table: schema["properties"][table] for table in VARIANT_TABLES}
    model_tables = [schema["$defs"][option["$ref"].rpartition("/")[2]] for option in tables["model"]["oneOf"]]
    # A variant sets only some keys, so none is required.
    tables["model"] = {"anyOf": [{name: table[name] for name in table if name != "required"} for table in model_tables]}
    schema["properties"]["variants"] = {
        "type": "object",
        "description": "name = the settings that it replaces",
        "additionalProperties": {"type": "object", "properties": tables, "additionalProperties": False},
    }
    description = "what --full replaces: the setting of a larger machine"
    schema["properties"]["full"] = {"type": "object", "description": description}
    description = "what --quick replaces; its key `only` lists the variants to keep"
    schema["properties"]["quick"] = {"type": "object", "description": description}
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
