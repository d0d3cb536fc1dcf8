"""Load an experiment file into an Experiment, and check the names and options of everything it refers to.

All errors are reported at once. Paths in a file are relative to that file, and paths on the command line are relative
to the current folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headtohead.config import base, experiment, loading
from headtohead.config.overlays import RawConfig
from headtohead.config.validation.component_options import get_options, validate_component
from headtohead.data import tokenizers
from headtohead.data.sources.loading import check_source, resolve_source_path
from headtohead.errors import PartError, StrategyError, ValidationIssue
from headtohead.experiment import trust
from headtohead.experiment.code_files import find_code_files
from headtohead.generation.strategies import build_strategy
from headtohead.nn.parts import position, registry
from headtohead.training import optimizers

SINGLE_SLOTS = ("attention", "projection", "merge", "feedforward", "norm", "block", "pool")


def load_experiment(
    recipe_or_file: str | Path,
    settings: Sequence[str] = (),
    *,
    plugins: Sequence[str | Path] = (),
    data_source: str | Path | None = None,
    use_full_setting: bool = False,
    use_quick_setting: bool = False,
    only: Sequence[str] = (),
) -> experiment.Experiment:
    """Load an experiment from a recipe or file.

    Args:
        recipe_or_file: Name of a recipe, or path of an experiment file.
        settings: Overrides of the form "name=value".
        plugins: Python files that define additional parts.
        data_source: Replaces the corpus source. If it is the recipe's original data, the recipe's settings for that
            data are applied; otherwise, settings that only apply to the recipe's own data are removed.
        use_full_setting: Use the recipe's full setting.
        use_quick_setting: Reduce the experiment to a quick look.
        only: Variants to keep; all if empty.
    """

    def prepare(raw: RawConfig, folder: Path) -> None:
        """Load plugins, resolve paths and replace the data source before validation."""
        files = [*_list_plugin_files(raw, folder), *(str(Path(file).resolve()) for file in plugins)]
        if files:
            raw["plugins"] = [str(registry.load_plugin(file)) for file in files]
        _resolve_paths(raw, folder)
        if data_source is not None:
            raw.setdefault("data", {})["source"] = resolve_source_path(str(data_source), Path("."))

    uses_other_data = data_source is not None and str(data_source) != "sotu"
    loaded = loading.parse_experiment(
        recipe_or_file,
        settings,
        data_folder=Path(str(data_source)).expanduser() if uses_other_data else None,
        full=use_full_setting,
        quick=use_quick_setting,
        only=only,
        check=check_names_and_options,
        prepare=prepare,
    )
    trust.trust_files(find_code_files(loaded).values())
    return loaded


def build_experiment(raw: dict[str, Any], name: str = "experiment") -> experiment.Experiment:
    """Build an experiment from a dict of raw settings, with the same checks as for a file."""
    if files := _list_plugin_files(raw, Path(".")):
        raw["plugins"] = [str(registry.load_plugin(file)) for file in files]
    _resolve_paths(raw, Path("."))
    built_experiment = loading.build_experiment(raw, name, check=check_names_and_options)
    trust.trust_files(find_code_files(built_experiment).values())
    return built_experiment


def _list_plugin_files(raw: RawConfig, folder: Path) -> list[str]:
    """Return the user code files. They are loaded before the other settings, which may refer to what they define."""
    files = raw.get("plugins")
    return (
        [str((folder / file).resolve()) for file in files if isinstance(file, str)] if isinstance(files, list) else []
    )


def _resolve_paths(raw: RawConfig, folder: Path) -> None:
    """Make the paths in `raw` and its variants absolute, in place, resolving them relative to `folder`."""
    tables = [raw, *(changes for changes in _as_dict(raw.get("variants")).values() if isinstance(changes, dict))]
    for table in tables:
        module = _as_dict(table.get("model")).get("module")
        if isinstance(module, str) and ":" in module:
            file, _, name = module.rpartition(":")
            table["model"]["module"] = f"{(folder / file).resolve()}:{name}"
        weights = _as_dict(table.get("model")).get("pretrained")
        if isinstance(weights, str):
            # Try paths relative to the file, then to the current folder. Any other value names a package or hub model.
            candidates = (folder / Path(weights).expanduser(), Path(weights).expanduser())
            table["model"]["pretrained"] = next(
                (str(candidate.resolve()) for candidate in candidates if candidate.is_dir()), weights
            )
        source = _as_dict(table.get("data")).get("source")
        if isinstance(source, str):
            table["data"]["source"] = resolve_source_path(source, folder)
        elif isinstance(source, list):
            table["data"]["source"] = [
                resolve_source_path(path, folder) if isinstance(path, str) else path for path in source
            ]
        teacher = _as_dict(table.get("teacher")).get("model")
        if isinstance(teacher, str) and (folder / teacher).exists():
            table["teacher"]["model"] = str((folder / teacher).resolve())
        tokenizer = _as_dict(_as_dict(table.get("data")).get("tokenizer"))
        if isinstance(tokenizer.get("path"), str):
            tokenizer["path"] = str((folder / tokenizer["path"]).resolve())


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def check_names_and_options(raw: RawConfig) -> list[ValidationIssue]:
    """Return errors that the schema cannot detect: unknown parts, optimizers or tokenizers, and invalid options."""
    model, data, training = (_as_dict(raw.get(table)) for table in ("model", "data", "training"))
    issues = [] if "module" in model or "pretrained" in model else _check_model(model)
    if isinstance(data.get("source"), str):
        issues += check_source(data["source"])
    if "tokenizer" in data:
        issues += validate_component(data["tokenizer"], tokenizers.TOKENIZER_BUILDERS, "tokenizer", "data.tokenizer")
    return issues + optimizers.check_training_options(training) + _check_teacher(_as_dict(raw.get("teacher")))


def _check_teacher(teacher: dict[str, Any]) -> list[ValidationIssue]:
    """Return the errors in a teacher's settings: its model, its training, and its decoding strategy."""
    issues = _check_model(_as_dict(teacher.get("model"))) + optimizers.check_training_options(
        _as_dict(teacher.get("training"))
    )
    teacher_issues = [
        ValidationIssue(f"teacher.{issue.location}", issue.message, issue.allowed, issue.suggestion) for issue in issues
    ]
    if "strategy" in teacher:
        try:
            choice = base.ComponentConfig.model_validate(teacher["strategy"])
            build_strategy(choice.kind, **choice.options)
        except StrategyError as error:
            teacher_issues.append(ValidationIssue("teacher.strategy", str(error)))
        except ValueError:
            pass  # reported by the schema
    return teacher_issues


def _check_model(model: dict[str, Any]) -> list[ValidationIssue]:
    """Return the errors in the names and options of a model's parts."""
    issues: list[ValidationIssue] = []
    for slot in SINGLE_SLOTS:
        if slot in model:
            issues += registry.validate_part_config(slot, model[slot], f"model.{slot}")
    positions = _as_list(model.get("position", "learned"))
    for value in positions:
        issues += registry.validate_part_config("position", value, "model.position")
    pattern = model.get("pattern", [])
    layers = pattern["layers"] if isinstance(pattern, dict) and "layers" in pattern else [pattern]
    for layer in layers if isinstance(layers, list) else []:
        for value in _as_list(layer):
            issues += registry.validate_part_config("pattern", value, "model.pattern")
    return issues + _check_absolute_positions(positions)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _check_absolute_positions(positions: list[Any]) -> list[ValidationIssue]:
    """Return an error if there is more than one absolute position part: their signals would be summed."""
    absolute_kinds = []
    for value in positions:
        try:
            part_class = registry.get_part_class("position", base.ComponentConfig.model_validate(value).kind)
        except (ValueError, PartError):
            continue
        if issubclass(part_class, position.Position) and part_class.is_absolute:
            absolute_kinds.append(part_class.kind)
    if len(absolute_kinds) < 2:
        return []
    return [
        ValidationIssue(
            "model.position", f"only one absolute position part is allowed, got {' and '.join(absolute_kinds)}"
        )
    ]


def build_json_schema() -> dict[str, Any]:
    """Return the JSON schema for experiment files, including the names and options of every registered part."""
    schema = loading.build_json_schema()
    model = schema["$defs"]["TransformerConfig"]["properties"]
    for slot in SINGLE_SLOTS:
        model[slot] = {**model[slot], **_build_part_schema(slot)}
    position_schema, pattern_schema = _build_part_schema("position"), _build_part_schema("pattern")
    model["position"] = {"anyOf": [*position_schema["anyOf"], {"type": "array", "items": position_schema}]}
    pattern_list_schema = {"anyOf": [*pattern_schema["anyOf"], {"type": "array", "items": pattern_schema}]}
    layers_schema = {
        "type": "object",
        "properties": {"layers": {"type": "array", "items": pattern_list_schema}},
        "required": ["layers"],
    }
    model["pattern"] = {"anyOf": [*pattern_list_schema["anyOf"], layers_schema]}
    training = schema["$defs"]["TrainingConfig"]["properties"]
    training["optimizer"] = _build_choice_schema(optimizers.OPTIMIZERS)
    training["schedule"] = _build_choice_schema(optimizers.LR_SCHEDULES)
    return schema


def _build_part_schema(slot: str) -> dict[str, Any]:
    """Return the JSON schema for a slot: the names and options of its parts."""
    return _build_choice_schema({name: registry.get_part_class(slot, name) for name in registry.list_part_names(slot)})


def _build_choice_schema(registered: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema for a choice: a name, or a table with `kind` and options."""
    table_schemas = [
        {
            "type": "object",
            "properties": {"kind": {"const": name}, **{option: {} for option in get_options(factory)}},
            "required": ["kind"],
            "additionalProperties": False,
        }
        for name, factory in registered.items()
    ]
    return {"anyOf": [{"enum": sorted(registered)}, *table_schemas]}
