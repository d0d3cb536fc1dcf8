"""Run the conformance suite: check a part in small models, or every part of a file.

`headtohead.testing` lists the checks.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from headtohead.audit.conformance.assertions import CheckFailedError
from headtohead.audit.conformance.fixture_model_checks import (
    check_attention_uses_its_parts,
    check_auxiliary_losses,
    check_output_shapes,
    check_row_selection,
    check_saved_weights,
    find_unchosen_experts,
)
from headtohead.audit.conformance.fixtures import PartFixture, build_fixture
from headtohead.audit.conformance.initialization_checks import check_initialization
from headtohead.audit.conformance.option_sets import list_option_sets
from headtohead.audit.conformance.resume_checks import check_resume_with_model_part, check_resume_with_training_part
from headtohead.audit.conformance.slot_contracts import SLOT_CONTRACTS, check_slot_contract
from headtohead.audit.conformance.training_contracts import build_training_config, check_training_contract
from headtohead.audit.model_audit import COMPARISON_CHECKS
from headtohead.audit.model_checks.base import ModelCheck
from headtohead.audit.model_checks.initialization import check_gradients
from headtohead.audit.result import PartCheckResult
from headtohead.audit.tolerance import Difference, select_worst
from headtohead.config.base import ComponentConfig
from headtohead.errors import ModelError, PartError
from headtohead.nn.parts import registry
from headtohead.nn.parts.base import Component, Invariant
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.transformer import Transformer


class FixtureCheck(NamedTuple):
    """A check of the small model that contains a part."""

    procedure: str
    run: Callable[[PartFixture], str]
    """returns what was observed, or an empty string if the check does not apply; raises CheckFailedError"""


FIXTURE_CHECKS: dict[str, FixtureCheck] = {
    "shapes": FixtureCheck(
        "passes in both precisions, with one and several rows and tokens",
        check_output_shapes,
    ),
    "state-dict": FixtureCheck("weights saved and loaded into a model with another seed", check_saved_weights),
    "resume": FixtureCheck("trained, interrupted and resumed from a checkpoint", check_resume_with_model_part),
    "initialization": FixtureCheck(
        "built after different random draws, initialized from several seeds", check_initialization
    ),
    "composition": FixtureCheck(
        "other patterns, merges and positions, with the same weights", check_attention_uses_its_parts
    ),
    "row-selection": FixtureCheck("rows reordered, repeated and removed while decoding", check_row_selection),
    "auxiliary-losses": FixtureCheck("a pass in evaluation and one in training", check_auxiliary_losses),
}
CHECK_NAMES = ("contract", "gradients", *FIXTURE_CHECKS, *COMPARISON_CHECKS)
"""the names of all checks, in order"""

WINDOW_PATTERN = {"kind": "window", "size": 5}
WINDOW_CHECK_NAMES = ("attention-implementations", "padding", "kv-cache")
"""checks that are repeated with a window, which uses the blocked attention implementation"""
SLOTS_CHECKED_WITH_WINDOW = ("position", "projection", "attention")

FIRST_PARTS = {"embedding": ["table"], "projection": ["linear"], "output": ["linear"]}
"""the part that precedes a step in the small models: a step transforms the output of the part before it"""

SettingsMapping = Mapping[str, Any]


class FixtureSetup(NamedTuple):
    """The kind of small model that a part is checked in."""

    is_encoder: bool
    has_window: bool

    def __str__(self) -> str:
        return ("encoder" if self.is_encoder else "decoder") + (" with a window" if self.has_window else "")


def check_part(
    slot: str,
    name: str,
    options: SettingsMapping | None = None,
    *,
    model_settings: SettingsMapping | None = None,
    checks: Iterable[str] = CHECK_NAMES,
) -> list[PartCheckResult]:
    """Run the conformance suite on a part in small models. `model_settings` overrides settings of these models."""
    check_names = tuple(checks)
    if unknown_checks := [check for check in check_names if check not in CHECK_NAMES]:
        raise PartError(f"unknown check {unknown_checks[0]!r} (available: {', '.join(CHECK_NAMES)})")
    part_class, component = registry.get_part_class(slot, name), ComponentConfig(kind=name, **(options or {}))
    if errors := registry.validate_part_config(slot, component.model_dump(), f"{slot} {name}"):
        raise PartError("\n".join(map(str, errors)))
    if slot in registry.TRAINING_SLOTS:
        return _check_training_part(slot, component, check_names)
    results: list[PartCheckResult] = []
    refusals: list[str] = []
    setups = _list_fixture_setups(slot)
    for setup in setups:
        parts = [*FIRST_PARTS[slot], component] if registry.is_step_class(part_class) else component
        settings = {**(model_settings or {}), slot: parts, **({"pattern": WINDOW_PATTERN} if setup.has_window else {})}
        build_result = partial(PartCheckResult, part=f"{slot} {component}", setup=str(setup))
        try:
            fixture = build_fixture(settings, is_encoder=setup.is_encoder, include_short_length=not setup.has_window)
        except ModelError as error:
            refusals.append(f"{setup}: {error}")
            continue
        except Exception as error:  # noqa: BLE001  (a part may raise anything)
            observation = _format_exception(error) + _explain_constructor_arguments(part_class, error)
            results.append(build_result("contract", False, "building the model", observation))
            continue
        for check in check_names:
            if not setup.has_window or check in WINDOW_CHECK_NAMES:
                results += [build_result(check, *outcome) for outcome in _run_part_check(fixture, part_class, check)]
    if len(refusals) == len(setups):
        raise PartError(f"no model can be built with {slot} {component} ({'; '.join(refusals)})")
    return results


def check_part_file(path: str | Path, base_dir: Path | None = None) -> list[PartCheckResult]:
    """Import a file and run the conformance suite on every part that it defines, with several values of its options."""
    file = registry.load_plugin(path, base_dir or Path())
    module_name = registry.compute_plugin_module_name(file)
    part_classes = [part_class for part_class in registry.list_part_classes() if part_class.__module__ == module_name]
    if not part_classes:
        raise PartError(f"{path}: defines no part; register a class with @register_part(slot, name)")
    results = []
    for part_class in part_classes:
        for options in list_option_sets(part_class):
            results += check_part(part_class.slot, part_class.kind, options)
    return results


def _check_training_part(slot: str, component: ComponentConfig, check_names: Sequence[str]) -> list[PartCheckResult]:
    """Run the conformance suite on a part of training, such as an optimizer, with a small decoder."""
    checks: dict[str, tuple[str, Callable[[], str]]] = {
        "contract": (
            "methods of the part called directly",
            lambda: check_training_contract(slot, component),
        ),
        "resume": (
            "trained, interrupted and resumed from a checkpoint",
            lambda: check_resume_with_training_part(build_training_config(slot, component)),
        ),
    }
    results = []
    for name, (procedure, check) in checks.items():
        if name in check_names:
            try:
                outcome = CheckOutcome(True, procedure, check())
            except CheckFailedError as error:
                outcome = CheckOutcome(False, procedure, str(error))
            except Exception as error:  # noqa: BLE001  (a part may raise anything)
                outcome = CheckOutcome(False, procedure, _format_exception(error))
            results.append(PartCheckResult(name, *outcome, part=f"{slot} {component}", setup="training"))
    return results


def _list_fixture_setups(slot: str) -> list[FixtureSetup]:
    """Return the kinds of small models in which the conformance suite checks the parts of a slot."""
    if slot in ("pool", "output"):
        return [FixtureSetup(is_encoder=slot == "pool", has_window=False)]
    window_settings = (False, True) if slot in SLOTS_CHECKED_WITH_WINDOW else (False,)
    return [FixtureSetup(is_encoder, has_window) for has_window in window_settings for is_encoder in (False, True)]


def _explain_constructor_arguments(part_class: type[Component], error: Exception) -> str:
    """Return the arguments with which the conformance suite builds parts of this slot, if a part could not be built."""
    if not isinstance(error, TypeError):
        return ""
    base = next(base for base in SLOT_CONTRACTS[part_class.slot].base_classes if issubclass(part_class, base))
    parameter_names = ", ".join(inspect.signature(base).parameters)
    return f"; parts in slot {part_class.slot} are built with ({parameter_names}), followed by their options"


def _format_exception(error: Exception) -> str:
    """Return the observation of a check in which the part raised an exception."""
    return f"{type(error).__name__}: {error}"


class CheckOutcome(NamedTuple):
    """What one check of a part found."""

    passed: bool
    procedure: str
    observation: str


def _run_part_check(fixture: PartFixture, part_class: type[Component], check_name: str) -> Iterator[CheckOutcome]:
    """Run one check of the conformance suite and yield its outcomes. Any exception counts as a failure."""
    procedure = ""
    try:
        if check_name in COMPARISON_CHECKS:
            yield from _compare_invariant_with_declaration(fixture, COMPARISON_CHECKS[check_name])
        elif check_name == "gradients":
            result = check_gradients(fixture.build_audited_model())
            unchosen_experts = find_unchosen_experts(fixture) if result.passed else ""
            passed = bool(result.passed and not unchosen_experts)
            yield CheckOutcome(passed, result.procedure, unchosen_experts or result.observation)
        elif check_name == "contract":
            procedure = "methods of the part called directly"
            yield CheckOutcome(True, procedure, check_slot_contract(fixture, part_class))
        elif check_name != "composition" or part_class.slot == "attention":
            procedure, run = FIXTURE_CHECKS[check_name]
            if observation := run(fixture):
                yield CheckOutcome(True, procedure, observation)
    except CheckFailedError as error:
        yield CheckOutcome(False, procedure, str(error))
    except Exception as error:  # noqa: BLE001  (a part may raise anything)
        yield CheckOutcome(False, procedure, _format_exception(error))


def _compare_invariant_with_declaration(fixture: PartFixture, check: ModelCheck) -> Iterator[CheckOutcome]:
    """Check an invariant for the suite: it must hold unless the part declares in `violates` that it does not.

    Both modes are measured if the invariant applies to training mode as well.
    """
    audited_models = fixture.audited_models
    if check.find_inapplicable_reason(audited_models[0]):
        return
    if check.name == "attention-implementations":
        audited_models = [*audited_models, *fixture.float32_audited_models]
    for training in (False, True) if check.has_training_mode else (False,):
        worst = select_worst(
            measurement
            for audited_model in audited_models
            for measurement in check.measure_differences(audited_model, training=training)
            if isinstance(measurement, Difference)
        )
        model = audited_models[0].model.train(training)
        assert isinstance(model, Transformer)
        is_declared = check.name in typing.get_args(Invariant) and check.name in model.violates
        procedure = check.describe_procedure(audited_models[-1]) + (" (training mode)" if training else "")
        observation = _describe_invariant(check.name, is_declared, worst, model)
        yield CheckOutcome(worst.is_within_tolerance != is_declared, procedure, observation)


def _describe_invariant(check_name: str, is_declared: bool, worst: Difference, model: Transformer) -> str:
    """Return the suite's sentence on an invariant: whether it holds, whether that was declared, and advice."""
    if worst.is_within_tolerance and not is_declared:
        return f"holds: {worst}"
    if not worst.is_within_tolerance:
        advice = (
            f"; fix the part, or declare {check_name!r} in violates" if check_name in typing.get_args(Invariant) else ""
        )
        return f"violated, as declared: {worst}" if is_declared else f"violated and not declared: {worst}{advice}"
    patterns = (module for module in model.modules() if isinstance(module, Pattern))
    is_unlimited = check_name in ("causality", "kv-cache") and any(pattern.window_size[1] != 0 for pattern in patterns)
    hint = "; a pattern that never looks ahead declares it with a window_size of (.., 0)" if is_unlimited else ""
    return f"declared as violated, but holds: {worst}{hint}"
