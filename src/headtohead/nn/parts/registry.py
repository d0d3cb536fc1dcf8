"""Registry of parts by slot and name: built-in parts, plugin files of users and entry points. Parts are built here.

In some slots, a list of parts is a first part and steps that transform its output (`Part.is_step`)."""

import ast
import hashlib
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from headtohead.config.base import ComponentConfig
from headtohead.config.validation.component_options import validate_component, validate_component_options
from headtohead.errors import PartError, ValidationIssue, format_suggestion
from headtohead.nn.parts.base import Component, ModelSizes, Part
from headtohead.nn.random_state import fork_seeded_rng
from headtohead.nn.user_imports import import_user_file

SLOT_MODULES = {
    "embedding": "headtohead.nn.parts.embedding",
    "position": "headtohead.nn.parts.position",
    "pattern": "headtohead.nn.parts.pattern",
    "projection": "headtohead.nn.parts.projection",
    "merge": "headtohead.nn.parts.merge",
    "attention": "headtohead.nn.parts.attention",
    "feedforward": "headtohead.nn.parts.feedforward",
    "norm": "headtohead.nn.parts.norm",
    "block": "headtohead.nn.parts.block",
    "stack": "headtohead.nn.parts.stack",
    "output": "headtohead.nn.parts.output",
    "pool": "headtohead.nn.parts.pool",
    "init": "headtohead.nn.parts.init",
    "objective": "headtohead.training.parts.objective",
    "optimizer": "headtohead.training.parts.optimizer",
    "schedule": "headtohead.training.parts.schedule",
    "average": "headtohead.training.parts.average",
    "order": "headtohead.data.order",
}
"""The module of each slot, with its base class and built-in parts. Like those of installed packages, they are imported
by name, because some belong to packages above this one."""
SLOTS = tuple(SLOT_MODULES)
TRAINING_SLOTS = ("objective", "optimizer", "schedule", "average", "order")
"""Slots of the table [training]; the others belong to [model]."""
MODEL_SLOTS = tuple(slot for slot in SLOTS if slot not in TRAINING_SLOTS)
SLOTS_WITH_STEPS = ("embedding", "projection", "output")
"""Slots in which all parts after the first are steps (`Part.is_step`)."""
ENTRY_POINT_GROUP = "headtohead.nn.parts"

_registry: dict[tuple[str, str], type[Component]] = {}
"""Part classes by slot and name."""
_plugin_files: dict[str, Path] = {}
_loaded_origins: set[str] = set()

PartClass = TypeVar("PartClass", bound=type[Component])


def register_part(slot: str, name: str) -> Callable[[PartClass], PartClass]:
    """Return a class decorator that adds a part to the registry under `name` in `slot`."""

    def register(part_class: PartClass) -> PartClass:
        """Store the class in the registry; raise PartError if a different file defines the same name."""
        if slot not in SLOTS:
            hint = format_suggestion(slot, SLOTS)
            raise PartError(f"{part_class.__name__}: unknown slot {slot!r}{hint} (slots: {', '.join(SLOTS)})")
        registered_class = _registry.get((slot, name))
        if registered_class is not None and (registered_file := _get_source_file(registered_class)) != (
            new_file := _get_source_file(part_class)
        ):
            raise PartError(f"{slot} {name!r} is defined twice: in {registered_file} and in {new_file}")
        part_class.slot, part_class.kind = slot, name
        _registry[slot, name] = part_class
        return part_class

    return register


def _get_source_file(part_class: type) -> str:
    """Return the file that defines a part, or its module name if there is no file, to detect conflicting names."""
    module = sys.modules.get(part_class.__module__)
    return str(getattr(module, "__file__", None) or part_class.__module__)


def get_part_class(slot: str, name: str) -> type[Component]:
    """Return the class in the registry for a slot and name; raise PartError with the closest name if there is none."""
    load_builtin_parts()
    if (slot, name) not in _registry:
        names = list_part_names(slot)
        raise PartError(f"unknown {slot} {name!r}{format_suggestion(name, names)} (available: {', '.join(names)})")
    return _registry[slot, name]


def list_part_names(slot: str) -> tuple[str, ...]:
    """Return the names of all parts of a slot, sorted."""
    load_builtin_parts()
    return tuple(sorted(name for registered_slot, name in _registry if registered_slot == slot))


def list_part_classes() -> list[type[Component]]:
    """Return all part classes, sorted by slot (in the order of SLOTS), then by name."""
    return [get_part_class(slot, name) for slot in SLOTS for name in list_part_names(slot)]


def load_builtin_parts() -> None:
    """Import the built-in parts and the entry points of installed packages, once."""
    if "built-in" not in _loaded_origins:
        _loaded_origins.add("built-in")
        for module_name in SLOT_MODULES.values():
            import_module(module_name)
        for entry_point in metadata.entry_points(group=ENTRY_POINT_GROUP):
            try:
                entry_point.load()
            except Exception as error:
                raise PartError(f"entry point {entry_point.value}: {type(error).__name__}: {error}") from error


def compute_plugin_module_name(file: Path) -> str:
    """Return the module name of a plugin file, derived from its content so that all processes agree on it."""
    return f"headtohead_own_{hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"


def load_plugin(path: str | Path, base_folder: Path = Path(".")) -> Path:
    """Import a user's plugin file, which registers its parts; return its path. An import that fails registers none."""
    load_builtin_parts()
    file = (base_folder / path).resolve()
    if not file.is_file():
        raise PartError(f"{path}: file of parts not found")
    name = compute_plugin_module_name(file)
    if name in sys.modules:  # a different version of the file may have been registered since
        _registry.update(
            ((part.slot, part.kind), part)
            for part in vars(sys.modules[name]).values()
            if isinstance(part, type) and issubclass(part, Component) and part.__module__ == name and part.kind
        )
        sys.modules[name].__file__ = str(file)  # a copy of the file may have been loaded first
        return file
    try:
        ast.parse(file.read_bytes())
    except SyntaxError as error:
        raise PartError(f"{path}, line {error.lineno}: {error.msg}") from None
    registry_before = dict(_registry)
    try:
        import_user_file(file, name)
    except Exception as error:
        _registry.clear()
        _registry.update(registry_before)
        if isinstance(error, PartError):
            raise
        raise PartError(f"{path}: {type(error).__name__}: {error}") from error
    _plugin_files[name] = file
    return file


def get_plugin_files() -> tuple[Path, ...]:
    """Return the plugin files that have been loaded."""
    return tuple(_plugin_files.values())


def build_part(slot: str, part_config: ComponentConfig, *arguments: Any, module_name: str | None = None) -> Any:
    """Build the part in the registry that a configuration names. `arguments` precede its options.

    The random numbers that its constructor draws depend on `module_name`, not on the parts built before.
    """
    part_class = get_part_class(slot, part_config.kind)
    if issues := validate_component_options(part_class, part_config, slot):
        raise PartError("\n".join(map(str, issues)))
    with fork_seeded_rng(torch.initial_seed(), module_name) if module_name else nullcontext():
        return part_class(*arguments, **part_config.options)


def build_parts(
    slot: str,
    part_configs: Sequence[ComponentConfig],
    sizes: ModelSizes,
    *arguments: Any,
    module_name: str | None = None,
    get_step_sizes: Callable[[Any], ModelSizes] | None = None,
) -> list[Any]:
    """Return the parts of a slot that holds a list. `arguments` are passed to the first part; the steps that follow it
    are built with sizes only, which `get_step_sizes` may derive from the first part. Raise PartError if a part cannot
    be at its place in the list.
    """
    if issues := check_part_order(slot, [part_config.kind for part_config in part_configs], slot):
        raise PartError("\n".join(map(str, issues)))
    parts: list[Any] = []
    for part_config in part_configs:
        part_module_name = module_name and (f"{module_name}_steps.{part_config.kind}" if parts else module_name)
        part_arguments = () if parts else arguments
        part_sizes = get_step_sizes(parts[0]) if parts and get_step_sizes is not None else sizes
        parts.append(build_part(slot, part_config, part_sizes, *part_arguments, module_name=part_module_name))
    return parts


def build_step_modules(steps: Sequence[Part]) -> nn.ModuleDict:
    """Return the steps of a list of parts, all parts after the first, as a ModuleDict by their registered names.

    A name that does not depend on the order in the list keeps the initial values of a step comparable between models
    with different lists.
    """
    step_modules = nn.ModuleDict()
    for step in steps:
        name, number = step.kind, 2
        while name in step_modules:
            name, number = f"{step.kind}-{number}", number + 1
        step_modules[name] = step
    return step_modules


def check_part_order(slot: str, names: Sequence[str], location: str) -> list[ValidationIssue]:
    """Return the issues with the order of a slot's list of parts: in some slots, the first part must not be a step, and
    all others must be steps. Unknown names are reported elsewhere.
    """
    load_builtin_parts()
    first_names, step_names = (
        [name for name in list_part_names(slot) if is_step_class(_registry[slot, name]) is is_step]
        for is_step in (False, True)
    )
    issues = []
    for index, name in enumerate(names):
        if slot not in SLOTS_WITH_STEPS:
            continue
        if index == 0 and name in step_names:
            message = f"{name} transforms the output of another part and cannot be the first; begin with one of"
            issues.append(ValidationIssue(location, message, tuple(first_names)))
        elif index > 0 and name in first_names:
            message = f"{name} cannot follow another part, because it does not transform its output"
            issues.append(ValidationIssue(location, message, tuple(step_names)))
    return issues


def is_step_class(part_class: type[Component]) -> bool:
    """Return whether parts of this class follow a different part in a list and transform its output."""
    return issubclass(part_class, Part) and part_class.is_step


def check_importable_by_workers(slot: str, names: Sequence[str], location: str) -> list[ValidationIssue]:
    """Return an issue for each registered part that is defined in a notebook or in the running script, because the
    worker processes that run trials cannot import it.
    """
    return [
        ValidationIssue(
            location,
            f"{name} is defined in a notebook or in the running script, which the processes of trials cannot import. "
            'Write it to a file (in a notebook, with %%writefile my_parts.py) and set plugins = ["my_parts.py"]',
        )
        for name in dict.fromkeys(names)
        if name in list_part_names(slot) and _registry[slot, name].__module__ == "__main__"
    ]


def validate_part_config(slot: str, value: Any, location: str) -> list[ValidationIssue]:
    """Return the issues with a part in an experiment file: an unknown name, or invalid options."""
    part_classes = {name: get_part_class(slot, name) for name in list_part_names(slot)}
    return validate_component(value, part_classes, slot, location)
