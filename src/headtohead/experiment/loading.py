"""From an experiment file to an Experiment: structure from the spec, names and options from the parts, all faults at
once. Paths in a file are relative to the file; on the command line, to where one stands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headtohead.config import base, experiment, loading
from headtohead.config.overlays import Raw
from headtohead.data import tokenizers
from headtohead.errors import Fault, PartError, StrategyError
from headtohead.experiment import trust
from headtohead.generation.strategies import strategy
from headtohead.nn.parts import position, registry
from headtohead.training import optimizers

SINGLE_SLOTS = ("attention", "projection", "merge", "feedforward", "norm", "block", "pool")


def load(
    recipe_or_file: str | Path,
    settings: Sequence[str] = (),
    *,
    use: Sequence[str | Path] = (),
    data: str | Path | None = None,
    full: bool = False,
    quick: bool = False,
) -> experiment.Experiment:
    """The experiment of a file or recipe. `use` adds files of parts, `data` replaces the source of the corpus (and lays
    over the file what it says about its original data), `full` takes its full setting, `quick` a quick look."""

    def prepare(raw: Raw, folder: Path) -> None:
        _find_paths(raw, folder)
        files = [*raw.get("use", []), *(str(Path(file).resolve()) for file in use)]
        if files:
            raw["use"] = [str(registry.use(file)) for file in files if isinstance(file, str)]
        if data is not None:
            raw.setdefault("data", {})["source"] = _source(str(data), Path("."))

    original = data is not None and str(data) != "sotu"
    made = loading.parse(
        recipe_or_file, settings, original=original, full=full, quick=quick, check=check, prepare=prepare
    )
    trust.allow(trust.named(made))
    return made


def from_dict(raw: dict[str, Any], name: str = "experiment") -> experiment.Experiment:
    """The same rules for an experiment that is written in Python."""
    _find_paths(raw, Path("."))
    for file in raw.get("use", []):
        registry.use(file)
    made = loading.resolve(raw, name, check=check)
    trust.allow(trust.named(made))
    return made


def _find_paths(raw: Raw, folder: Path) -> None:
    if isinstance(raw.get("use"), list):
        raw["use"] = [str((folder / file).resolve()) for file in raw["use"]]
    tables = [raw, *(v for v in _dict(raw.get("variants")).values() if isinstance(v, dict))]
    for table in tables:
        module = _dict(table.get("model")).get("module")
        if isinstance(module, str) and ":" in module:
            file, _, name = module.rpartition(":")
            table["model"]["module"] = f"{(folder / file).resolve()}:{name}"
        weights = _dict(table.get("model")).get("pretrained")
        if isinstance(weights, str):
            # A folder beside the file comes first, then one where one stands; else a package or the hub is meant.
            places = (folder / Path(weights).expanduser(), Path(weights).expanduser())
            table["model"]["pretrained"] = next((str(one.resolve()) for one in places if one.is_dir()), weights)
        source = _dict(table.get("data")).get("source")
        if isinstance(source, str):
            table["data"]["source"] = _source(source, folder)
        teacher = _dict(table.get("teacher")).get("model")
        if isinstance(teacher, str) and (folder / teacher).exists():
            table["teacher"]["model"] = str((folder / teacher).resolve())
        tokens = _dict(_dict(table.get("data")).get("tokens"))
        if isinstance(tokens.get("path"), str):
            tokens["path"] = str((folder / tokens["path"]).resolve())


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _source(source: str, folder: Path) -> str:
    """A built-in corpus or a hub's name stays as it is, a path becomes whole."""
    if source == "sotu" or source.startswith("hub:"):
        return source
    return str((folder / source).resolve())


def check(raw: Raw) -> list[Fault]:
    """What the spec cannot know: do parts, optimizer, schedule and tokenizer exist, and do their options fit?"""
    model, data, training = (_dict(raw.get(table)) for table in ("model", "data", "training"))
    faults = [] if "module" in model or "pretrained" in model else _check_model(model)
    if "tokens" in data:
        try:
            faults += tokenizers.check_tokens(base.Choice.model_validate(data["tokens"]))
        except ValueError:
            pass  # the spec has said so
    return faults + optimizers.check(training) + _check_teacher(_dict(raw.get("teacher")))


def _check_teacher(teacher: dict[str, Any]) -> list[Fault]:
    """The same of a teacher that is to be built and trained first; and the strategy that it writes by."""
    faults = _check_model(_dict(teacher.get("model"))) + optimizers.check(_dict(teacher.get("training")))
    found = [Fault(f"teacher.{fault.place}", fault.message, fault.allowed, fault.nearest) for fault in faults]
    if "strategy" in teacher:
        try:
            choice = base.Choice.model_validate(teacher["strategy"])
            strategy(choice.kind, **choice.options)
        except StrategyError as error:
            found.append(Fault("teacher.strategy", str(error)))
        except ValueError:
            pass  # the spec has said so
    return found


def _check_model(model: dict[str, Any]) -> list[Fault]:
    faults: list[Fault] = []
    for slot in SINGLE_SLOTS:
        if slot in model:
            faults += registry.check(slot, model[slot], f"model.{slot}")
    positions = _listed(model.get("position", "learned"))
    for value in positions:
        faults += registry.check("position", value, "model.position")
    pattern = model.get("pattern", [])
    layers = pattern["layers"] if isinstance(pattern, dict) and "layers" in pattern else [pattern]
    for layer in layers if isinstance(layers, list) else []:
        for value in _listed(layer):
            faults += registry.check("pattern", value, "model.pattern")
    return faults + _two_signals(positions)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _two_signals(positions: list[Any]) -> list[Fault]:
    """Two absolute signals would be summed without a word."""
    absolute = []
    for value in positions:
        try:
            made = registry.find("position", base.Choice.model_validate(value).kind)
        except (ValueError, PartError):
            continue
        if issubclass(made, position.Position) and made.absolute:
            absolute.append(made.kind)
    if len(absolute) < 2:
        return []
    return [Fault("model.position", f"two absolute position signals in one model: {' and '.join(absolute)}")]


def schema() -> dict[str, Any]:
    """The JSON schema of experiment files, with the names and options of every part that is known here."""
    made = loading.schema()
    model = made["$defs"]["Transformer"]["properties"]
    for slot in SINGLE_SLOTS:
        model[slot] = {**model[slot], **_part_schema(slot)}
    one, pattern = _part_schema("position"), _part_schema("pattern")
    model["position"] = {"anyOf": [*one["anyOf"], {"type": "array", "items": one}]}
    several = {"anyOf": [*pattern["anyOf"], {"type": "array", "items": pattern}]}
    layers = {
        "type": "object",
        "properties": {"layers": {"type": "array", "items": several}},
        "required": ["layers"],
    }
    model["pattern"] = {"anyOf": [*several["anyOf"], layers]}
    training = made["$defs"]["Training"]["properties"]
    training["optimizer"] = _choice_schema(optimizers.OPTIMIZERS)
    training["schedule"] = _choice_schema(optimizers.SCHEDULES)
    return made


def _part_schema(slot: str) -> dict[str, Any]:
    return _choice_schema({name: registry.find(slot, name) for name in registry.names(slot)})


def _choice_schema(known: dict[str, Any]) -> dict[str, Any]:
    tables = [
        {
            "type": "object",
            "properties": {"kind": {"const": name}, **{option: {} for option in registry.options(made)}},
            "required": ["kind"],
            "additionalProperties": False,
        }
        for name, made in known.items()
    ]
    return {"anyOf": [{"enum": sorted(known)}, *tables]}
