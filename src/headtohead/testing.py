"""The conformance suite for parts. It runs on the built-in parts in this project's tests, and on yours in yours:

    class TestSqrtAlibi(PartConformanceSuite):
        slot = "position"
        name = "sqrt-alibi"
        options = ({}, {"strength": 2.0})

The part is built into small models, a decoder and an encoder, and checked:

    contract                    the contract of its slot: shapes, positions with a batch axis, window size, ...
    shapes                      logits, hidden states and attention weights in float32 and float64
    gradients                   every parameter has a finite, nonzero gradient
    state-dict                  safetensors contain the whole state
    initialization              every tensor is determined by (seed, name)
    padding                     has no attention weight, and outputs depend neither on its tokens nor on its amount
    attention-implementations   sdpa and blocked equal eager, outputs and gradients
    causality                   no output depends on later tokens
    kv-cache                    decoding as `h2h generate` does equals a full pass
    batch-independence          no output depends on the other rows of the batch
    determinism                 the same input gives the same output

The last four are invariants. A part that violates one on purpose declares it in `violates`. The suite fails if a part
violates an invariant that it does not declare, and if it declares one that holds. All but the first five checks are
also run on trained models (`headtohead.audit.model_audit`).

Without pytest, `check_part("position", "sqrt-alibi")` and `check_part_file("my_parts.py")` return the results. A part
for decoders or encoders only raises ModelError if `sizes.is_causal` has the wrong value.
"""

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from headtohead.audit.conformance.contracts import check_contract
from headtohead.audit.conformance.fixtures import PartFixture, build_fixture
from headtohead.audit.conformance.part_checks import PART_CHECKS, CheckFailedError
from headtohead.audit.model_audit import COMPARISON_CHECKS
from headtohead.audit.model_checks.base import ModelCheck
from headtohead.audit.model_checks.initialization import check_gradients
from headtohead.audit.result import PartCheckResult
from headtohead.audit.tolerance import Difference, select_worst
from headtohead.config.base import ComponentConfig
from headtohead.config.validation.component_options import get_option_types, get_options
from headtohead.data.sources.conformance import SourceConformanceSuite, find_source_violations
from headtohead.errors import ModelError, PartError
from headtohead.nn.parts import registry
from headtohead.nn.parts.base import Invariant, Part
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.transformer import Transformer

CHECK_NAMES = ("contract", "gradients", *PART_CHECKS, *COMPARISON_CHECKS)
"""the names of all checks, in order"""

WINDOW_PATTERN = {"kind": "window", "size": 5}
WINDOW_CHECK_NAMES = ("attention-implementations", "padding", "kv-cache")

SettingsMapping = Mapping[str, Any]


def check_part(
    slot: str,
    name: str,
    options: SettingsMapping | None = None,
    *,
    model_settings: SettingsMapping | None = None,
    checks: Iterable[str] = CHECK_NAMES,
) -> list[PartCheckResult]:
    """Check a part in small models. `model_settings` overrides settings of these models."""
    check_names = tuple(checks)
    if unknown := [check for check in check_names if check not in CHECK_NAMES]:
        raise PartError(f"there is no check {unknown[0]!r} (there are: {', '.join(CHECK_NAMES)})")
    part_class, component = registry.get_part_class(slot, name), ComponentConfig(kind=name, **(options or {}))
    if errors := registry.validate_part_config(slot, component.model_dump(), f"{slot} {name}"):
        raise PartError("\n".join(map(str, errors)))
    results: list[PartCheckResult] = []
    refusals: list[str] = []
    setups = _list_setups(slot)
    for is_encoder, has_window in setups:
        settings = {**(model_settings or {}), slot: component, **({"pattern": WINDOW_PATTERN} if has_window else {})}
        setup = ("encoder" if is_encoder else "decoder") + (" with a window" if has_window else "")
        build_result = partial(PartCheckResult, part=f"{slot} {component}", setup=setup)
        try:
            fixture = build_fixture(settings, is_encoder=is_encoder, include_short_length=not has_window)
        except ModelError as error:
            refusals.append(f"{setup}: {error}")
            continue
        except Exception as error:  # noqa: BLE001  (a part may raise anything)
            observation = _format_exception(error) + _describe_constructor(part_class, error)
            results.append(build_result("contract", False, "building the model", observation))
            continue
        for check in check_names:
            if not has_window or check in WINDOW_CHECK_NAMES:
                results += [build_result(check, *outcome) for outcome in _run_check(fixture, part_class, check)]
    if len(refusals) == len(setups):
        raise PartError(f"no model can be built with {slot} {component} ({'; '.join(refusals)})")
    return results


def _list_setups(slot: str) -> list[tuple[bool, bool]]:
    """Return (is_encoder, has_window) of each small model. Windows use the blocked attention implementation."""
    if slot == "pool":
        return [(True, False)]
    setups = [(False, False), (True, False)]
    return [*setups, (False, True), (True, True)] if slot in ("position", "projection", "attention") else setups


def _describe_constructor(part_class: type[Part], error: Exception) -> str:
    """Return the constructor arguments of the slot if the part could not be called with them."""
    if not isinstance(error, TypeError):
        return ""
    base = part_class.__mro__[part_class.__mro__.index(Part) - 1]
    arguments = ", ".join(inspect.signature(base).parameters)
    return f"; parts in slot {part_class.slot} are built with ({arguments}), followed by their options"


def _format_exception(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


Outcome = tuple[bool, str, str]
"""passed, procedure, observation"""


def _run_check(fixture: PartFixture, part_class: type[Part], check: str) -> Iterator[Outcome]:
    """Run one check on a fixture; yield (passed, procedure, observation). Any exception counts as a failure."""
    procedure = ""
    try:
        if check in COMPARISON_CHECKS:
            yield from _run_comparison_check(fixture, COMPARISON_CHECKS[check])
            return
        if check == "gradients":
            result = check_gradients(fixture.build_probe())
            yield bool(result.passed), result.procedure, result.observation
            return
        run: Callable[[PartFixture], str]
        if check == "contract":
            procedure, run = "methods of the part called directly", partial(check_contract, part_class=part_class)
        else:
            procedure, run = PART_CHECKS[check]
        yield True, procedure, run(fixture)
    except CheckFailedError as error:
        yield False, procedure, str(error)
    except Exception as error:  # noqa: BLE001
        yield False, procedure, _format_exception(error)


def _run_comparison_check(fixture: PartFixture, check: ModelCheck) -> Iterator[Outcome]:
    """Measure the property in evaluation mode and, where it applies, in training mode; compare with `violates`."""
    probes = fixture.probes
    if check.find_inapplicable_reason(probes[0]):
        return
    if check.name == "attention-implementations":
        probes = [*probes, *fixture.float32_probes]
    for training in (False, True) if check.has_training_mode else (False,):
        measurements = [m for probe in probes for m in check.measure(probe, training=training)]
        worst = select_worst(m for m in measurements if isinstance(m, Difference))
        model = probes[0].model.train(training)
        assert isinstance(model, Transformer)
        is_declared = check.name in typing.get_args(Invariant) and check.name in model.violates
        procedure = check.describe_procedure(probes[-1]) + (" (training mode)" if training else "")
        yield worst.is_within_tolerance != is_declared, procedure, _describe(check.name, is_declared, worst, model)


def _describe(check: str, is_declared: bool, worst: Difference, model: Transformer) -> str:
    """Return the test result of an invariant: whether it holds, compared with what the part declares, and advice."""
    if worst.is_within_tolerance and not is_declared:
        return f"holds: {worst}"
    if not worst.is_within_tolerance:
        advice = f"; fix the part, or declare {check!r} in violates" if check in typing.get_args(Invariant) else ""
        return f"violated, as declared: {worst}" if is_declared else f"violated and not declared: {worst}{advice}"
    patterns = (m for m in model.modules() if isinstance(m, Pattern))
    is_unlimited = check in ("causality", "kv-cache") and any(pattern.window_size[1] != 0 for pattern in patterns)
    hint = "; a pattern that never looks ahead declares it with a window_size of (.., 0)" if is_unlimited else ""
    return f"declared as violated, but holds: {worst}{hint}"


def check_part_file(path: str | Path, base_dir: Path | None = None) -> list[PartCheckResult]:
    """Import a file and check every part that it defines, with its defaults and other values of its options."""
    file = registry.load_plugin(path, base_dir or Path())
    module_name = registry.compute_module_name(file)
    part_classes = [part_class for part_class in registry.list_part_classes() if part_class.__module__ == module_name]
    if not part_classes:
        raise PartError(f"{path}: defines no part; register a class with @register_part(slot, name)")
    results = []
    for part_class in part_classes:
        for options in list_option_sets(part_class):
            results += check_part(part_class.slot, part_class.kind, options)
    return results


def list_option_sets(part_class: type[Part]) -> list[dict[str, Any]]:
    """Return the options to check a part with: the defaults, and each other value of boolean and Literal options."""
    annotations, parameters = get_option_types(part_class), get_options(part_class)
    required = {
        name: _guess_option_value(part_class, name, annotations.get(name))
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
    }
    option_sets = [required]
    for name, parameter in parameters.items():
        annotation = annotations.get(name)
        values: Sequence[Any] = (True, False) if annotation is bool else ()
        if typing.get_origin(annotation) is typing.Literal:
            values = typing.get_args(annotation)
        used = (parameter.default, required.get(name))
        option_sets += [{**required, name: value} for value in values if value not in used]
    return option_sets


def _guess_option_value(part_class: type[Part], option_name: str, annotation: Any) -> Any:
    """Return a value for a required option by its type; raise PartError if the type is not supported."""
    if typing.get_origin(annotation) is typing.Literal:
        return typing.get_args(annotation)[0]
    values = {int: 4, float: 0.5, bool: True}
    if annotation not in values:
        raise PartError(
            f"{part_class.slot} {part_class.kind!r}: option {option_name!r} is required, and no value for it can be "
            "guessed; check the part with a PartConformanceSuite that sets options"
        )
    return values[annotation]


class PartConformanceSuite:
    """Inherit this class in a test file and name the part: pytest runs one test per check."""

    slot: ClassVar[str]
    name: ClassVar[str]
    options: ClassVar[Sequence[SettingsMapping]] = ({},)
    """each of these sets of options is checked"""
    model_settings: ClassVar[SettingsMapping] = {}
    """settings of the small models that the part requires"""
    plugin: ClassVar[str | Path | None] = None
    """the file that defines the part, unless the test file does"""

    def assert_check_passes(self, check: str) -> None:
        """Raise AssertionError with every failed result of this check."""
        if self.plugin is not None:
            registry.load_plugin(self.plugin)
        results = [
            result
            for options in self.options
            for result in check_part(self.slot, self.name, options, model_settings=self.model_settings, checks=(check,))
        ]
        if failures := [str(result) for result in results if not result.passed]:
            raise AssertionError("\n".join(failures))

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Run `test_conformance` once for each check. Called by pytest."""
        metafunc.parametrize("check", CHECK_NAMES)

    def test_conformance(self, check: str) -> None:
        self.assert_check_passes(check)


__all__ = [
    "CHECK_NAMES",
    "PartCheckResult",
    "PartConformanceSuite",
    "SourceConformanceSuite",
    "check_part",
    "check_part_file",
    "find_source_violations",
    "list_option_sets",
]
