"""From an experiment file to an Experiment: structure from the spec, names and options from the parts, all faults at
once. Paths in a file are relative to the file; on the command line, to where one stands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headtohead.config import base, experiment, loading
from headtohead.config.overlays import RawConfig
from headtohead.data import tokenizers
from headtohead.data.sources.loading import check_source, resolve_source_path
from headtohead.errors import PartError, StrategyError, ValidationIssue
from headtohead.experiment import trust
from headtohead.generation.strategies import build_strategy
from headtohead.nn.parts import position, registry
from headtohead.training import optimizers

SINGLE_SLOTS = ("attention", "projection", "merge", "feedforward", "norm", "block", "pool")


def load_experiment(
    recipe_or_file: str | Path,
    settings: Sequence[str] = (),
    *,
    part_files: Sequence[str | Path] = (),
    data_source: str | Path | None = None,
    use_full_setting: bool = False,
    use_quick_setting: bool = False,
) -> experiment.Experiment:
    """The experiment of a file or recipe. `use` adds files of parts, `data` replaces the source of the corpus (and lays
    over the file what it says about its original data), `full` takes its full setting, `quick` a quick look."""

    def prepare(raw: RawConfig, folder: Path) -> None:
        files = [*_list_use_files(raw, folder), *(str(Path(file).resolve()) for file in part_files)]
        if files:
            raw["use"] = [str(registry.load_part_file(file)) for file in files]
        _resolve_paths(raw, folder)
        if data_source is not None:
            raw.setdefault("data", {})["source"] = resolve_source_path(str(data_source), Path("."))

    original = data_source is not None and str(data_source) != "sotu"
    made = loading.parse_experiment(
        recipe_or_file,
        settings,
        use_original_data=original,
        full=use_full_setting,
        quick=use_quick_setting,
        check=check_names_and_options,
        prepare=prepare,
    )
    trust.trust_files(trust.list_code_files(made))
    return made


def build_experiment(raw: dict[str, Any], name: str = "experiment") -> experiment.Experiment:
    """The same rules for an experiment that is written in Python."""
    if files := _list_use_files(raw, Path(".")):
        raw["use"] = [str(registry.load_part_file(file)) for file in files]
    _resolve_paths(raw, Path("."))
    made = loading.build_experiment(raw, name, check=check_names_and_options)
    trust.trust_files(trust.list_code_files(made))
    return made


def _list_use_files(raw: RawConfig, folder: Path) -> list[str]:
    """Return the files of user code. They are loaded before other settings, which may name what they define."""
    files = raw.get("use")
    return (
        [str((folder / file).resolve()) for file in files if isinstance(file, str)] if isinstance(files, list) else []
    )


def _resolve_paths(raw: RawConfig, folder: Path) -> None:
    tables = [raw, *(v for v in _as_dict(raw.get("variants")).values() if isinstance(v, dict))]
    for table in tables:
        module = _as_dict(table.get("model")).get("module")
        if isinstance(module, str) and ":" in module:
            file, _, name = module.rpartition(":")
            table["model"]["module"] = f"{(folder / file).resolve()}:{name}"
        weights = _as_dict(table.get("model")).get("pretrained")
        if isinstance(weights, str):
            # A folder beside the file comes first, then one where one stands; else a package or the hub is meant.
            places = (folder / Path(weights).expanduser(), Path(weights).expanduser())
            table["model"]["pretrained"] = next((str(one.resolve()) for one in places if one.is_dir()), weights)
        source = _as_dict(table.get("data")).get("source")
        if isinstance(source, str):
            table["data"]["source"] = resolve_source_path(source, folder)
        teacher = _as_dict(table.get("teacher")).get("model")
        if isinstance(teacher, str) and (folder / teacher).exists():
            table["teacher"]["model"] = str((folder / teacher).resolve())
        tokens = _as_dict(_as_dict(table.get("data")).get("tokenizer"))
        if isinstance(tokens.get("path"), str):
            tokens["path"] = str((folder / tokens["path"]).resolve())


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def check_names_and_options(raw: RawConfig) -> list[ValidationIssue]:
    """What the spec cannot know: do parts, optimizer, schedule and tokenizer exist, and do their options fit?"""
    model, data, training = (_as_dict(raw.get(table)) for table in ("model", "data", "training"))
    faults = [] if "module" in model or "pretrained" in model else _check_model(model)
    if isinstance(data.get("source"), str):
        faults += check_source(data["source"])
    if "tokenizer" in data:
        try:
            faults += tokenizers.check_tokenizer_choice(base.ComponentConfig.model_validate(data["tokenizer"]))
        except ValueError:
            pass  # the spec has said so
    return faults + optimizers.check_training_options(training) + _check_teacher(_as_dict(raw.get("teacher")))


def _check_teacher(teacher: dict[str, Any]) -> list[ValidationIssue]:
    """The same of a teacher that is to be built and trained first; and the strategy that it writes by."""
    faults = _check_model(_as_dict(teacher.get("model"))) + optimizers.check_training_options(
        _as_dict(teacher.get("training"))
    )
    found = [
        ValidationIssue(f"teacher.{fault.place}", fault.message, fault.allowed, fault.suggestion) for fault in faults
    ]
    if "strategy" in teacher:
        try:
            choice = base.ComponentConfig.model_validate(teacher["strategy"])
            build_strategy(choice.kind, **choice.options)
        except StrategyError as error:
            found.append(ValidationIssue("teacher.strategy", str(error)))
        except ValueError:
            pass  # the spec has said so
    return found


def _check_model(model: dict[str, Any]) -> list[ValidationIssue]:
    faults: list[ValidationIssue] = []
    for slot in SINGLE_SLOTS:
        if slot in model:
            faults += registry.validate_part_config(slot, model[slot], f"model.{slot}")
    positions = _as_list(model.get("position", "learned"))
    for value in positions:
        faults += registry.validate_part_config("position", value, "model.position")
    pattern = model.get("pattern", [])
    layers = pattern["layers"] if isinstance(pattern, dict) and "layers" in pattern else [pattern]
    for layer in layers if isinstance(layers, list) else []:
        for value in _as_list(layer):
            faults += registry.validate_part_config("pattern", value, "model.pattern")
    return faults + _check_absolute_positions(positions)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _check_absolute_positions(positions: list[Any]) -> list[ValidationIssue]:
    """Two absolute signals would be summed without a word."""
    absolute = []
    for value in positions:
        try:
            made = registry.get_part_class("position", base.ComponentConfig.model_validate(value).kind)
        except (ValueError, PartError):
            continue
        if issubclass(made, position.Position) and made.is_absolute:
            absolute.append(made.kind)
    if len(absolute) < 2:
        return []
    return [
        ValidationIssue("model.position", f"only one absolute position part is allowed, got {' and '.join(absolute)}")
    ]


def build_json_schema() -> dict[str, Any]:
    """The JSON schema of experiment files, with the names and options of every part that is known here."""
    made = loading.build_json_schema()
    model = made["$defs"]["TransformerConfig"]["properties"]
    for slot in SINGLE_SLOTS:
        model[slot] = {**model[slot], **_build_part_schema(slot)}
    one, pattern = _build_part_schema("position"), _build_part_schema("pattern")
    model["position"] = {"anyOf": [*one["anyOf"], {"type": "array", "items": one}]}
    several = {"anyOf": [*pattern["anyOf"], {"type": "array", "items": pattern}]}
    layers = {
        "type": "object",
        "properties": {"layers": {"type": "array", "items": several}},
        "required": ["layers"],
    }
    model["pattern"] = {"anyOf": [*several["anyOf"], layers]}
    training = made["$defs"]["TrainingConfig"]["properties"]
    training["optimizer"] = _build_choice_schema(optimizers.OPTIMIZERS)
    training["schedule"] = _build_choice_schema(optimizers.LR_SCHEDULES)
    return made


def _build_part_schema(slot: str) -> dict[str, Any]:
    return _build_choice_schema({name: registry.get_part_class(slot, name) for name in registry.list_part_names(slot)})


def _build_choice_schema(registered: dict[str, Any]) -> dict[str, Any]:
    tables = [
        {
            "type": "object",
            "properties": {"kind": {"const": name}, **{option: {} for option in registry.get_options(made)}},
            "required": ["kind"],
            "additionalProperties": False,
        }
        for name, made in registered.items()
    ]
    return {"anyOf": [{"enum": sorted(registered)}, *tables]}
