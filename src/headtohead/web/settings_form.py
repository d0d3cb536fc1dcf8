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
from headtohead.errors import Fault, RequestError, SpecError

Kind = Literal["number", "text", "word", "choice", "toml"]
Json = dict[str, Any]
FORBIDDEN = ("use", "model.module", "model.options")
LONGEST = 2000
GROUPS = (("Experiment", ""), ("Training", "training"), ("Data", "data"), ("Model", "model"))
ROOT_FIELDS = ("seeds", "matters")


@dataclass(frozen=True)
class Field:
    """One setting."""

    name: str
    """dotted, as in --set"""
    label: str
    kind: Kind
    value: str
    help: str = ""
    options: tuple[str, ...] = ()
    """what a choice may be; of others, words that are suggested"""

    @property
    def id(self) -> str:
        return "field-" + self.name.replace(".", "-").replace("_", "-")


@dataclass(frozen=True)
class Asked:
    """What a person asks to be trained."""

    recipe: str
    """a recipe's name, or that of an experiment file of the folder"""
    name: str = ""
    settings: tuple[str, ...] = ()
    data: str | None = None
    quick: bool = False
    full: bool = False

    def arguments(self, files: Path) -> list[str]:
        """As they are typed after `h2h run`."""
        found = [source(self.recipe, files)]
        found += ["--data", self.data] if self.data else []
        found += ["--full"] if self.full else []
        found += ["--quick"] if self.quick else []
        return [*found, *(word for setting in self.settings for word in ("--set", setting))]


def choices(files: Path) -> dict[str, Json]:
    """name: question, task and where it comes from, of every recipe and of the experiment files in the folder."""
    found: dict[str, Json] = {}
    for name in [*loading.recipe_names(), *_own_files(files)]:
        try:
            raw = loading.read(source(name, files)).raw
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


def _own_files(files: Path) -> list[str]:
    return sorted(path.name for path in files.glob("*.toml") if path.is_file() and path.name != "pyproject.toml")


def source(name: str, files: Path) -> str:
    """What `h2h run` is given for one of the choices; any other name is refused."""
    if name in loading.recipe_names():
        return name
    if name in _own_files(files):
        return str(files / name)
    raise RequestError("recipe: there is no recipe and no experiment file of that name here")


def text_of(name: str, files: Path) -> str:
    """The file as it is written."""
    given = source(name, files)
    path = Path(given) if given.endswith(".toml") else loading.recipe_path(given)
    return path.read_text(encoding="utf-8")


def fields(name: str, files: Path, schema: Json, *, full: bool = False) -> dict[str, list[Field]]:
    """The fields of each group, with the values of the recipe (of its [full] setting, if so asked) or the schema's
    defaults."""
    draft = loading.read(source(name, files))
    raw = (overlays.with_full(draft) if full else draft).raw
    found: dict[str, list[Field]] = {}
    for title, table in GROUPS:
        properties = schema["properties"] if not table else _table(schema, table, raw)
        wanted = ROOT_FIELDS if not table else tuple(properties)
        values = raw if not table else raw.get(table, {})
        prefix = f"{table}." if table else ""
        found[title] = [
            _field(f"{prefix}{key}", properties[key], values, schema)
            for key in wanted
            if f"{prefix}{key}" not in FORBIDDEN and key in properties
        ]
    return found


def _table(schema: Json, table: str, raw: Json) -> Json:
    names = {"data": "Data", "training": "Training"}
    model = raw.get("model", {})
    if table == "model":
        kind = "Pretrained" if "pretrained" in model else "OwnModel" if "module" in model else "Transformer"
        names["model"] = kind
    found: Json = schema["$defs"][names[table]]["properties"]
    return found


def _field(name: str, about: Json, values: Mapping[str, Any], schema: Json) -> Field:
    key = name.rpartition(".")[2]
    given = values.get(key, about.get("default"))
    kind, options = _kind(about, schema)
    label = key.replace("_", " ")
    text = _toml(given) if kind == "toml" else _plain(given)
    return Field(name, label, kind, text, " ".join(str(about.get("description", "")).split()), options)


def _kind(about: Json, schema: Json) -> tuple[Kind, tuple[str, ...]]:
    shapes = [one for one in about.get("anyOf", [about]) if one.get("type") != "null"]
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


def _plain(value: Any) -> str:
    if value is None:
        return ""
    return _toml(value) if not isinstance(value, str) else value


def _toml(value: Any) -> str:
    """A value as TOML writes it, on one line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(key)} = {_toml(one)}" for key, one in value.items() if one is not None)
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def is_ticked(given: Mapping[str, str], box: str) -> bool:
    return given.get(box) == "true"


def changed(given: Mapping[str, str], files: Path, schema: Json) -> dict[str, Field]:
    """The fields whose text differs from what the form showed, by name, with that text. What it showed were the values
    of the full setting or those of the file (`shown`); which of them is wanted now (`full`) may have been changed."""
    recipe = given.get("recipe", "")
    before = _by_name(fields(recipe, files, schema, full=given.get("shown") == "full"))
    after = _by_name(fields(recipe, files, schema, full=is_ticked(given, "full")))
    found = {}
    for name, field in (before | after).items():
        untouched = {one[name].value.strip() for one in (before, after) if name in one}
        if name in given and given[name].strip() not in untouched:
            found[name] = replace(field, value=given[name].strip())
    return found


def _by_name(groups: dict[str, list[Field]]) -> dict[str, Field]:
    return {field.name: field for group in groups.values() for field in group}


def asked(given: Mapping[str, str], files: Path, schema: Json) -> Asked:
    """What a filled-in form asks for: only what was changed becomes a setting."""
    settings, data, faults = [], None, []
    for field in changed(given, files, schema).values():
        text = field.value
        if not text:
            faults.append(Fault(field.name, "cannot be left empty: the file gives it a value"))
        elif field.name == "data.source":
            data = text
        else:
            settings.append(f"{field.name}={json.dumps(text, ensure_ascii=False) if field.kind == 'text' else text}")
    if faults:
        raise SpecError("form", faults)
    name, quick, full = given.get("name", "").strip(), is_ticked(given, "quick"), is_ticked(given, "full")
    return Asked(given.get("recipe", ""), name, tuple(settings), data, quick, full)


def checked(asked: Asked, files: Path) -> Asked:
    """The same with paths made whole, after everything that can be known without torch has been held against it."""
    found = source(asked.recipe, files)
    faults: list[Fault] = []
    settings = []
    for setting in asked.settings:
        key, equals, text = setting.partition("=")
        key = key.strip()
        if not equals or not key or len(setting) > LONGEST or any(ord(c) < 32 for c in setting):
            faults.append(Fault(key[:80] or "settings", "has the form name=value, on one line"))
        elif any(key == one or key.startswith(f"{one}.") for one in FORBIDDEN):
            faults.append(Fault(key, "names code to be run, which is done from an experiment file only"))
        else:
            _path_faults(key, _value(text), files, faults)
            settings.append(f"{key}={text}")
    data = asked.data
    if data is not None and data != "sotu" and not data.startswith("hub:"):
        _path_faults("data.source", data, files, faults)
        data = str((files / data).resolve())
    if faults:
        raise SpecError("form", faults)
    given = [*settings, *([f"data.source={json.dumps(data)}"] if data else [])]
    config_loading.parse(found, given, full=asked.full, quick=asked.quick)
    return replace(asked, settings=tuple(settings), data=data)


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def _path_faults(key: str, value: Any, files: Path, faults: list[Fault]) -> None:
    """Every text that leads out of the folder, wherever in the value it stands."""
    if isinstance(value, dict):
        for inner in value.values():
            _path_faults(key, inner, files, faults)
    elif isinstance(value, list):
        for inner in value:
            _path_faults(key, inner, files, faults)
    elif isinstance(value, str) and not value.startswith("hub:") and re.search(r"[/\\~]|^\.\.", value):
        try:
            there = (files / Path(value).expanduser()).resolve()
        except (OSError, RuntimeError, ValueError):
            there = Path("/")
        if not there.is_relative_to(files):
            faults.append(Fault(key, f"leads out of the folder that h2h serve was started in ({files.name})"))


PLACE = re.compile(r"^\s*(?:--set )?(?P<place>[A-Za-z_][\w.+-]*)(?: \(line \d+\))?: (?P<message>.*)$")


def faults_in(text: str) -> list[Fault]:
    """The faults in what `h2h run` said, each with its place; for what was found by another process."""
    found: list[Fault] = []
    for line in text.splitlines():
        if match := PLACE.match(line):
            if match["place"] != "h2h":
                found.append(Fault(match["place"], match["message"]))
        elif found and line.startswith("    "):
            last = found.pop()
            found.append(Fault(last.place, f"{last.message}; {line.strip()}"))
    return found


def places(faults: Iterable[Fault], names: Iterable[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Messages by the field that they belong to, and those that belong to none."""
    known = set(names)
    by_field: dict[str, list[str]] = {}
    others = []
    for fault in faults:
        place = re.sub(r" \(line \d+\)$", "", fault.place.removeprefix("--set "))
        keys = place.split(".")
        field = next((name for end in range(len(keys), 0, -1) if (name := ".".join(keys[:end])) in known), None)
        said = fault.message + (f" (allowed: {', '.join(fault.allowed)})" if fault.allowed else "")
        if fault.nearest:
            said += f"; did you mean {fault.nearest}?"
        if field is None:
            others.append(f"{place}: {said}")
        else:
            by_field.setdefault(field, []).append(said)
    return by_field, others
