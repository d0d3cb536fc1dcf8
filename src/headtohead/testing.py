"""The exam that every part must pass: the built-ins in our own tests, and yours in yours.

    class TestSqrtAlibi(PartExam):
        slot = "position"
        name = "sqrt-alibi"
        options = ({}, {"strength": 2.0})

Each part is put into small models, as a decoder and as an encoder, and asked:

    contract     what its slot promises: shapes, positions with a batch axis, a reach that is kept, ...
    shapes       logits, stream and maps in float32 and float64
    gradients    every parameter gets one, finite and not 0
    roads        the fast road equals the explicit one, outputs and gradients, short, long and padded
    padding      gets no weight, and nothing depends on what it is or how much of it there is
    state        safetensors hold all there is to know
    initial      every tensor is drawn from (seed, name)
    causal, cache, batch, repeatable
                 the laws (`headtohead.audit.conformance.invariants`). A part that breaks one on purpose declares it in
                 `breaks`, and the exam holds it to exactly that: a law broken and not declared fails, and one
                 declared and kept as well.

Without pytest: `examine("position", "sqrt-alibi")` and `examine_file("my_parts.py")` give findings in plain words.
A part that is for decoders or for encoders only says so by raising ModelError when `sizes.causal` is not to its taste.
"""

import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from headtohead.audit.conformance import harness
from headtohead.audit.conformance.contracts import check_contract
from headtohead.audit.conformance.harness import DifferenceMeasurement, PartFixture
from headtohead.audit.conformance.invariants import INVARIANT_CHECKS
from headtohead.audit.conformance.part_checks import REQUIRED_CHECKS, CheckFailedError
from headtohead.config.base import ComponentConfig
from headtohead.errors import ModelError, PartError
from headtohead.nn.parts import pattern, registry
from headtohead.nn.parts.base import Invariant, Part
from headtohead.nn.transformer import Transformer

CHECK_NAMES = ("contract", *REQUIRED_CHECKS, *INVARIANT_CHECKS)
"""the names of all checks, in the order in which they are made"""

WINDOW_PATTERN = {"kind": "window", "size": 5}
WINDOW_CHECK_NAMES = ("attention-implementations", "padding", "kv-cache")

CheckOutput = str | DifferenceMeasurement
SettingsMapping = Mapping[str, Any]


@dataclass(frozen=True)
class CheckResult:
    """One check of one part: what was tried and what was found."""

    part: str
    """slot, name and options"""
    setting: str
    """decoder or encoder, and what else is special about the small model"""
    check: str
    passed: bool
    tried: str
    found: str

    def to_dict(self) -> dict[str, str | bool]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        head = f"{'passed' if self.passed else 'FAILED'} {self.check}: {self.part}, in {_prepend_article(self.setting)}"
        lines = [head, f"  tried: {self.tried}" if self.tried else "", f"  found: {self.found}"]
        return "\n".join(line for line in lines if line)


def check_part(
    slot: str,
    name: str,
    options: SettingsMapping | None = None,
    *,
    model_settings: SettingsMapping | None = None,
    checks: Iterable[str] = CHECK_NAMES,
) -> list[CheckResult]:
    """Put a part to the exam. `model` changes settings of the small models that it is put into."""
    wanted = tuple(checks)
    if unknown := [check for check in wanted if check not in CHECK_NAMES]:
        raise PartError(f"there is no check {unknown[0]!r} (there are: {', '.join(CHECK_NAMES)})")
    made, choice = registry.get_part_class(slot, name), ComponentConfig(kind=name, **(options or {}))
    if faults := registry.validate_part_config(slot, choice.model_dump(), f"{slot} {name}"):
        raise PartError("\n".join(map(str, faults)))
    words = f"{slot} {choice}"
    findings: list[CheckResult] = []
    refusals: list[str] = []
    for encoder, window in _list_setups(slot):
        settings = {**(model_settings or {}), slot: choice, **({"pattern": WINDOW_PATTERN} if window else {})}
        setting = ("encoder" if encoder else "decoder") + (" with a window" if window else "")
        try:
            subject = harness.build_fixture(
                words, setting, settings, is_encoder=encoder, include_short_length=not window
            )
        except ModelError as error:
            refusals.append(f"{setting}: {error}")
            continue
        except Exception as error:  # noqa: BLE001  (whatever a part does wrong is a finding)
            findings.append(CheckResult(words, setting, "contract", False, "built it", _format_exception(error)))
            continue
        asked = [check for check in wanted if not window or check in WINDOW_CHECK_NAMES]
        findings += [finding for check in asked for finding in _run_check(subject, made, check)]
    if len(refusals) == len(_list_setups(slot)):
        raise PartError(f"{words} can be built into no model ({'; '.join(refusals)})")
    return findings


def _list_setups(slot: str) -> list[tuple[bool, bool]]:
    """(encoder, window) of each small model. A window takes the fast road that cuts a text into blocks."""
    if slot == "pool":
        return [(True, False)]
    plain = [(False, False), (True, False)]
    return [*plain, (False, True), (True, True)] if slot in ("position", "projection", "attention") else plain


def _prepend_article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _format_exception(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _run_check(fixture: PartFixture, part_class: type[Part], check: str) -> list[CheckResult]:
    if check in INVARIANT_CHECKS:
        return list(_run_invariant_check(fixture, check))
    tried, ask = (
        ("asked the part alone", partial(check_contract, part_class=part_class))
        if check == "contract"
        else REQUIRED_CHECKS[check]
    )
    finding = partial(CheckResult, fixture.words, fixture.setting, check)
    try:
        answer: CheckOutput = ask(fixture)
    except CheckFailedError as fall:
        return [finding(False, tried, str(fall))]
    except Exception as error:  # noqa: BLE001
        return [finding(False, tried, _format_exception(error))]
    if isinstance(answer, DifferenceMeasurement):
        return [finding(answer.equal, answer.tried, str(answer))]
    return [finding(True, tried, answer)]


def _run_invariant_check(fixture: PartFixture, check: str) -> Iterable[CheckResult]:
    """A law, tried as the model is used and, where it makes sense, as it is trained."""
    law: Invariant = typing.cast(Invariant, check)
    if fixture.encoder and law in ("causality", "kv-cache"):
        return
    for training in (False,) if law in ("kv-cache", "determinism") else (False, True):
        finding = partial(CheckResult, fixture.words, fixture.setting, law)
        try:
            model = fixture.trained if training else fixture.plain
            evidence, declared = INVARIANT_CHECKS[law](fixture, model), law in harness.find_declared_violations(model)
        except Exception as error:  # noqa: BLE001
            yield finding(False, "", _format_exception(error))
            return
        tried = evidence.tried + (" (in training)" if training else "")
        yield finding(evidence.equal != declared, tried, describe_invariant_result(law, declared, evidence, model))


def describe_invariant_result(
    invariant: Invariant, is_declared_violated: bool, measurement: DifferenceMeasurement, model: Transformer
) -> str:
    """The finding about a law in words."""
    if is_declared_violated and not measurement.equal:
        return f"broken, as declared: {measurement}"
    if not is_declared_violated and measurement.equal:
        return f"kept: {measurement}"
    if not is_declared_violated:
        return f"broken and not declared: {measurement}; mend it, or declare {invariant!r} in breaks"
    hint = ""
    if invariant in ("causality", "kv-cache") and any(p.window_size[1] != 0 for p in _find_patterns(model)):
        hint = "; a pattern that never looks ahead says so with a reach of (.., 0)"
    return f"declared as broken, and kept: {measurement}{hint}"


def _find_patterns(model: Transformer) -> Iterable[pattern.Pattern]:
    return (m for m in model.modules() if isinstance(m, pattern.Pattern))


def check_part_file(path: str | Path, base_dir: Path | None = None) -> list[CheckResult]:
    """Import a file of parts and examine every part that it defines, with its defaults and a few other options."""
    file = registry.load_part_file(path, base_dir or Path())
    module = registry.compute_module_name(file)
    own = [made for made in registry.list_part_classes() if made.__module__ == module]
    if not own:
        raise PartError(f"{path}: defines no part; enter a class with @part(slot, name)")
    findings = []
    for made in own:
        for options in list_option_sets(made):
            findings += check_part(made.slot, made.kind, options)
    return findings


def list_option_sets(part_class: type[Part]) -> list[dict[str, Any]]:
    """Options to try a part with: its defaults, and each other value of an option that has few."""
    hints = registry.get_option_types(part_class)
    known = registry.get_options(part_class)
    needed = {
        name: _guess_option_value(part_class, name, hints.get(name))
        for name, one in known.items()
        if one.default is one.empty
    }
    sets = [needed]
    for name, one in known.items():
        few: Sequence[Any] = (True, False) if hints.get(name) is bool else ()
        if typing.get_origin(hints.get(name)) is typing.Literal:
            few = typing.get_args(hints[name])
        sets += [{**needed, name: value} for value in few if value not in (one.default, needed.get(name))]
    return sets


def _guess_option_value(part_class: type[Part], option_name: str, annotation: Any) -> Any:
    """A value for an option that has no default."""
    if typing.get_origin(annotation) is typing.Literal:
        return typing.get_args(annotation)[0]
    plain = {int: 4, float: 0.5, bool: True}
    if annotation not in plain:
        raise PartError(
            f"{part_class.slot} {part_class.kind!r} needs the option {option_name!r}, and what to try cannot be guessed; "  # noqa: E501
            "examine it with a PartExam that names its options"
        )
    return plain[annotation]


class PartConformanceSuite:
    """Inherit it in a test file, name the part, and pytest puts it to the exam: one test a check."""

    slot: ClassVar[str]
    name: ClassVar[str]
    options: ClassVar[Sequence[SettingsMapping]] = ({},)
    """each set of options is examined"""
    model: ClassVar[SettingsMapping] = {}
    """settings of the small models, where the part needs other ones"""
    use: ClassVar[str | Path | None] = None
    """the file that defines the part, unless the test file does so itself"""

    def assert_check_passes(self, check: str) -> None:
        """Raise with every finding of this check that did not pass."""
        if self.use is not None:
            registry.load_part_file(self.use)
        findings: list[CheckResult] = []
        for options in self.options:
            findings += check_part(self.slot, self.name, options, model_settings=self.model, checks=(check,))
        failed = [str(finding) for finding in findings if not finding.passed]
        if failed:
            raise AssertionError("\n".join(failed))

    def test_contract(self) -> None:
        self.assert_check_passes("contract")

    def test_shapes_and_dtypes(self) -> None:
        self.assert_check_passes("shapes")

    def test_every_parameter_has_a_gradient(self) -> None:
        self.assert_check_passes("gradients")

    def test_attention_implementations_agree(self) -> None:
        self.assert_check_passes("attention-implementations")

    def test_padding_does_not_affect_outputs(self) -> None:
        self.assert_check_passes("padding")

    def test_state_dict_round_trip(self) -> None:
        self.assert_check_passes("state-dict")

    def test_initialized_from_seed_and_name(self) -> None:
        self.assert_check_passes("initialization")

    def test_causality(self) -> None:
        self.assert_check_passes("causality")

    def test_cached_decoding_matches_full_forward(self) -> None:
        self.assert_check_passes("kv-cache")

    def test_batch_independence(self) -> None:
        self.assert_check_passes("batch-independence")

    def test_determinism(self) -> None:
        self.assert_check_passes("determinism")


__all__ = ["CHECK_NAMES", "CheckResult", "PartConformanceSuite", "check_part", "check_part_file", "list_option_sets"]
