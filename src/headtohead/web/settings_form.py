"""The form of a recipe or an experiment file: a field for each setting of the JSON schema, with its values in it.

What a person changes becomes `--set name=value`, nothing else does, so the command of a training that was started here
can be typed anywhere. What a setting may not do from a page: name code to be run, or a path outside the folder that the
server was started in.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from headtohead.config import loading, overlays
from headtohead.config import loading as config_loading
from headtohead.errors import ConfigError, RequestError, ValidationIssue

FieldKind = Literal["number", "text", "word", "choice", "toml"]
JsonDict = dict[str, Any]
FORBIDDEN_SETTINGS = ("use", "model.module", "model.options")
MAX_SETTING_LENGTH = 2000
FIELD_GROUPS = (("Experiment", ""), ("Training", "training"), ("Data", "data"), ("Model", "model"))
TOP_LEVEL_SETTINGS = ("seeds", "matters")


@dataclass(frozen=True)
class FormField:
    """One setting."""

    name: str
    """dotted, as in --set"""
    label: str
    kind: FieldKind
    value: str
    help: str = ""
    options: tuple[str, ...] = ()
    """what a choice may be; of others, words that are suggested"""

    @property
    def id(self) -> str:
        return "field-" + self.name.replace(".", "-").replace("_", "-")


@dataclass(frozen=True)
class TrainingRequest:
    """What a person asks to be trained."""

    recipe: str
    """a recipe's name, or that of an experiment file of the folder"""
    name: str = ""
    settings: tuple[str, ...] = ()
    data: str | None = None
    quick: bool = False
    full: bool = False

    def build_cli_arguments(self, experiment_files_folder: Path) -> list[str]:
        """As they are typed after `h2h run`."""
        found = [resolve_recipe(self.recipe, experiment_files_folder)]
        found += ["--data", self.data] if self.data else []
        found += ["--full"] if self.full else []
        found += ["--quick"] if self.quick else []
        return [*found, *(word for setting in self.settings for word in ("--set", setting))]


def list_recipes(experiment_files_folder: Path) -> dict[str, JsonDict]:
    """name: question, task and where it comes from, of every recipe and of the experiment files in the folder."""
    found: dict[str, JsonDict] = {}
    for name in [*loading.list_recipes(), *_list_experiment_files(experiment_files_folder)]:
        try:
            raw = loading.read_raw_experiment(resolve_recipe(name, experiment_files_folder)).raw
        except RequestError:
            continue
        if isinstance(raw.get("question"), str) and isinstance(raw.get("task"), str):
            variants = raw.get("variants")
            names = list(variants) if isinstance(variants, dict) else []
            found[name] = {
                "question": raw["question"],
                "task": raw["task"],
                "variants": names,
                "full": isinstance(raw.get("full"), dict),
            }
    return found


def _list_experiment_files(experiment_files_folder: Path) -> list[str]:
    return sorted(
        path.name for path in experiment_files_folder.glob("*.toml") if path.is_file() and path.name != "pyproject.toml"
    )


def resolve_recipe(recipe: str, experiment_files_folder: Path) -> str:
    """What `h2h run` is given for one of the choices; any other name is refused."""
    if recipe in loading.list_recipes():
        return recipe
    if recipe in _list_experiment_files(experiment_files_folder):
        return str(experiment_files_folder / recipe)
    raise RequestError("recipe: there is no recipe and no experiment file of that name here")


def read_recipe_text(recipe: str, experiment_files_folder: Path) -> str:
    """The file as it is written."""
    given = resolve_recipe(recipe, experiment_files_folder)
    path = Path(given) if given.endswith(".toml") else loading.find_recipe(given)
    return path.read_text(encoding="utf-8")


def build_fields(
    recipe: str, experiment_files_folder: Path, schema: JsonDict, *, full: bool = False
) -> dict[str, list[FormField]]:
    """The fields of each group, with the values of the recipe (of its [full] setting, if so asked) or the schema's
    defaults."""
    draft = loading.read_raw_experiment(resolve_recipe(recipe, experiment_files_folder))
    raw = (overlays.apply_full_table(draft) if full else draft).raw
    found: dict[str, list[FormField]] = {}
    for title, table in FIELD_GROUPS:
        properties = schema["properties"] if not table else _get_table_properties(schema, table, raw)
        wanted = TOP_LEVEL_SETTINGS if not table else tuple(properties)
        values = raw if not table else raw.get(table, {})
        prefix = f"{table}." if table else ""
        found[title] = [
            _build_field(f"{prefix}{key}", properties[key], values, schema)
            for key in wanted
            if f"{prefix}{key}" not in FORBIDDEN_SETTINGS and key in properties
        ]
    return found


def _get_table_properties(schema: JsonDict, table_name: str, raw_experiment: JsonDict) -> JsonDict:
    names = {"data": "DataConfig", "training": "TrainingConfig", "model": "TransformerConfig"}
    if "pretrained" in raw_experiment.get("model", {}):
        names["model"] = "PretrainedModelConfig"
    elif "module" in raw_experiment.get("model", {}):
        names["model"] = "CustomModelConfig"
    found: JsonDict = schema["$defs"][names[table_name]]["properties"]
    return found


def _build_field(name: str, property_schema: JsonDict, values: Mapping[str, Any], schema: JsonDict) -> FormField:
    key = name.rpartition(".")[2]
    given = values.get(key, property_schema.get("default"))
    kind, options = _infer_field_kind(property_schema, schema)
    label = key.replace("_", " ")
    text = _format_toml_value(given) if kind == "toml" else _format_field_value(given)
    return FormField(name, label, kind, text, " ".join(str(property_schema.get("description", "")).split()), options)


def _infer_field_kind(property_schema: JsonDict, schema: JsonDict) -> tuple[FieldKind, tuple[str, ...]]:
    shapes = [one for one in property_schema.get("anyOf", [property_schema]) if one.get("type") != "null"]
    if any("$ref" in one and "anyOf" not in one for one in shapes):
        return "toml", ()
    words = [tuple(map(str, one["enum"])) for one in shapes if "enum" in one]
    types = {one.get("type") for one in shapes}
    if len(shapes) == 1 and words:
        return "choice", words[0]
    if types == {"boolean"}:
        return "choice", ("true", "false")
    if types <= {"integer", "number"}:
        return "number", ()
    if types == {"string"}:
        return "text", ()
    if types <= {"integer", "number", "string", "boolean"}:
        return "word", tuple(str(one["const"]) for one in shapes if "const" in one)
    return "toml", tuple(f'"{word}"' for group in words for word in group)


def _format_field_value(value: Any) -> str:
    if value is None:
        return ""
    return _format_toml_value(value) if not isinstance(value, str) else value


def _format_toml_value(value: Any) -> str:
    """A value as TOML writes it, on one line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        inner = ", ".join(
            f"{_format_toml_key(key)} = {_format_toml_value(one)}" for key, one in value.items() if one is not None
        )
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_format_toml_value, value)) + "]"
    return repr(value)


def _format_toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def is_checked(form_data: Mapping[str, str], checkbox: str) -> bool:
    return form_data.get(checkbox) == "true"


def find_changed_fields(
    form_data: Mapping[str, str], experiment_files_folder: Path, schema: JsonDict
) -> dict[str, FormField]:
    """The fields whose text differs from what the form showed, by name, with that text. What it showed were the values
    of the full setting or those of the file (`shown`); which of them is wanted now (`full`) may have been changed."""
    recipe = form_data.get("recipe", "")
    before = _index_fields_by_name(
        build_fields(recipe, experiment_files_folder, schema, full=form_data.get("shown") == "full")
    )
    after = _index_fields_by_name(
        build_fields(recipe, experiment_files_folder, schema, full=is_checked(form_data, "full"))
    )
    found = {}
    for name, field in (before | after).items():
        untouched = {one[name].value.strip() for one in (before, after) if name in one}
        if name in form_data and form_data[name].strip() not in untouched:
            found[name] = replace(field, value=form_data[name].strip())
    return found


def _index_fields_by_name(groups: dict[str, list[FormField]]) -> dict[str, FormField]:
    return {field.name: field for group in groups.values() for field in group}


def parse_training_request(
    form_data: Mapping[str, str], experiment_files_folder: Path, schema: JsonDict
) -> TrainingRequest:
    """What a filled-in form asks for: only what was changed becomes a setting."""
    settings, data, faults = [], None, []
    for field in find_changed_fields(form_data, experiment_files_folder, schema).values():
        text = field.value
        if not text:
            faults.append(ValidationIssue(field.name, "cannot be left empty: the file gives it a value"))
        elif field.name == "data.source":
            data = text
        else:
            settings.append(f"{field.name}={json.dumps(text, ensure_ascii=False) if field.kind == 'text' else text}")
    if faults:
        raise ConfigError("form", faults)
    name, quick, full = form_data.get("name", "").strip(), is_checked(form_data, "quick"), is_checked(form_data, "full")
    return TrainingRequest(form_data.get("recipe", ""), name, tuple(settings), data, quick, full)


def validate_training_request(request: TrainingRequest, experiment_files_folder: Path) -> TrainingRequest:
    """The same with paths made whole, after everything that can be known without torch has been held against it."""
    found = resolve_recipe(request.recipe, experiment_files_folder)
    faults: list[ValidationIssue] = []
    settings = []
    for setting in request.settings:
        key, equals, text = setting.partition("=")
        key = key.strip()
        if not equals or not key or len(setting) > MAX_SETTING_LENGTH or any(ord(c) < 32 for c in setting):
            faults.append(ValidationIssue(key[:80] or "settings", "has the form name=value, on one line"))
        elif any(key == one or key.startswith(f"{one}.") for one in FORBIDDEN_SETTINGS):
            faults.append(ValidationIssue(key, "names code to be run, which is done from an experiment file only"))
        else:
            _collect_path_errors(key, _parse_toml_value(text), experiment_files_folder, faults)
            settings.append(f"{key}={text}")
    data = request.data
    if data is not None and data != "sotu" and not data.startswith("hub:"):
        _collect_path_errors("data.source", data, experiment_files_folder, faults)
        data = str((experiment_files_folder / data).resolve())
    if faults:
        raise ConfigError("form", faults)
    given = [*settings, *([f"data.source={json.dumps(data)}"] if data else [])]
    config_loading.parse_experiment(found, given, full=request.full, quick=request.quick)
    return replace(request, settings=tuple(settings), data=data)


def _parse_toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def _collect_path_errors(
    setting: str, value: Any, experiment_files_folder: Path, errors: list[ValidationIssue]
) -> None:
    """Every text that leads out of the folder, wherever in the value it stands."""
    if isinstance(value, dict):
        for inner in value.values():
            _collect_path_errors(setting, inner, experiment_files_folder, errors)
    elif isinstance(value, list):
        for inner in value:
            _collect_path_errors(setting, inner, experiment_files_folder, errors)
    elif isinstance(value, str) and not value.startswith("hub:") and re.search(r"[/\\~]|^\.\.", value):
        try:
            there = (experiment_files_folder / Path(value).expanduser()).resolve()
        except (OSError, RuntimeError, ValueError):
            there = Path("/")
        if not there.is_relative_to(experiment_files_folder):
            errors.append(
                ValidationIssue(
                    setting, f"leads out of the folder that h2h serve was started in ({experiment_files_folder.name})"
                )
            )


ERROR_LINE_PATTERN = re.compile(r"^\s*(?:--set )?(?P<place>[A-Za-z_][\w.+-]*)(?: \(line \d+\))?: (?P<message>.*)$")


def parse_error_output(error_output: str) -> list[ValidationIssue]:
    """The faults in what `h2h run` said, each with its place; for what was found by another process."""
    found: list[ValidationIssue] = []
    for line in error_output.splitlines():
        if match := ERROR_LINE_PATTERN.match(line):
            if match["place"] != "h2h":
                found.append(ValidationIssue(match["place"], match["message"]))
        elif found and line.startswith("    "):
            last = found.pop()
            found.append(ValidationIssue(last.place, f"{last.message}; {line.strip()}"))
    return found


def assign_errors_to_fields(
    errors: Iterable[ValidationIssue], field_names: Iterable[str]
) -> tuple[dict[str, list[str]], list[str]]:
    """Messages by the field that they belong to, and those that belong to none."""
    known = set(field_names)
    by_field: dict[str, list[str]] = {}
    others = []
    for fault in errors:
        place = re.sub(r" \(line \d+\)$", "", fault.place.removeprefix("--set "))
        keys = place.split(".")
        field = next((name for end in range(len(keys), 0, -1) if (name := ".".join(keys[:end])) in known), None)
        said = fault.message + (f" (allowed: {', '.join(fault.allowed)})" if fault.allowed else "")
        if fault.suggestion:
            said += f"; did you mean {fault.suggestion}?"
        if field is None:
            others.append(f"{place}: {said}")
        else:
            by_field.setdefault(field, []).append(said)
    return by_field, others
