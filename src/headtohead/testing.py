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
from headtohead.audit.conformance.contracts import contract
from headtohead.audit.conformance.harness import Evidence, Subject
from headtohead.audit.conformance.invariants import LAWS
from headtohead.audit.conformance.part_checks import DUTIES, Fell
from headtohead.config.base import Choice
from headtohead.errors import ModelError, PartError
from headtohead.nn.parts import pattern, registry
from headtohead.nn.parts.base import Law, Part
from headtohead.nn.transformer import Transformer

CHECKS = ("contract", *DUTIES, *LAWS)
"""the names of all checks, in the order in which they are made"""

WINDOW = {"kind": "window", "size": 5}
WITH_WINDOW = ("roads", "padding", "cache")

Answer = str | Evidence
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """One check of one part: what was tried and what was found."""

    part: str
    """slot, name and options"""
    setting: str
    """decoder or encoder, and what else is special about the small model"""
    check: str
    passed: bool
    tried: str
    found: str

    def as_row(self) -> dict[str, str | bool]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        head = f"{'passed' if self.passed else 'FAILED'} {self.check}: {self.part}, in {_a(self.setting)}"
        lines = [head, f"  tried: {self.tried}" if self.tried else "", f"  found: {self.found}"]
        return "\n".join(line for line in lines if line)


def examine(
    slot: str,
    name: str,
    options: Settings | None = None,
    *,
    model: Settings | None = None,
    checks: Iterable[str] = CHECKS,
) -> list[Finding]:
    """Put a part to the exam. `model` changes settings of the small models that it is put into."""
    wanted = tuple(checks)
    if unknown := [check for check in wanted if check not in CHECKS]:
        raise PartError(f"there is no check {unknown[0]!r} (there are: {', '.join(CHECKS)})")
    made, choice = registry.find(slot, name), Choice(kind=name, **(options or {}))
    if faults := registry.check(slot, choice.model_dump(), f"{slot} {name}"):
        raise PartError("\n".join(map(str, faults)))
    words = f"{slot} {choice}"
    findings: list[Finding] = []
    refusals: list[str] = []
    for encoder, window in _settings(slot):
        settings = {**(model or {}), slot: choice, **({"pattern": WINDOW} if window else {})}
        setting = ("encoder" if encoder else "decoder") + (" with a window" if window else "")
        try:
            subject = harness.subject(words, setting, settings, encoder=encoder, short=not window)
        except ModelError as error:
            refusals.append(f"{setting}: {error}")
            continue
        except Exception as error:  # noqa: BLE001  (whatever a part does wrong is a finding)
            findings.append(Finding(words, setting, "contract", False, "built it", _said(error)))
            continue
        asked = [check for check in wanted if not window or check in WITH_WINDOW]
        findings += [finding for check in asked for finding in _findings(subject, made, check)]
    if len(refusals) == len(_settings(slot)):
        raise PartError(f"{words} can be built into no model ({'; '.join(refusals)})")
    return findings


def _settings(slot: str) -> list[tuple[bool, bool]]:
    """(encoder, window) of each small model. A window takes the fast road that cuts a text into blocks."""
    if slot == "pool":
        return [(True, False)]
    plain = [(False, False), (True, False)]
    return [*plain, (False, True), (True, True)] if slot in ("position", "projection", "attention") else plain


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _findings(subject: Subject, made: type[Part], check: str) -> list[Finding]:
    if check in LAWS:
        return list(_judged(subject, check))
    tried, ask = ("asked the part alone", partial(contract, made=made)) if check == "contract" else DUTIES[check]
    finding = partial(Finding, subject.words, subject.setting, check)
    try:
        answer: Answer = ask(subject)
    except Fell as fall:
        return [finding(False, tried, str(fall))]
    except Exception as error:  # noqa: BLE001
        return [finding(False, tried, _said(error))]
    if isinstance(answer, Evidence):
        return [finding(answer.equal, answer.tried, str(answer))]
    return [finding(True, tried, answer)]


def _judged(subject: Subject, check: str) -> Iterable[Finding]:
    """A law, tried as the model is used and, where it makes sense, as it is trained."""
    law: Law = typing.cast(Law, check)
    if subject.encoder and law in ("causal", "cache"):
        return
    for training in (False,) if law in ("cache", "repeatable") else (False, True):
        finding = partial(Finding, subject.words, subject.setting, law)
        try:
            model = subject.trained if training else subject.plain
            evidence, declared = LAWS[law](subject, model), law in harness.laws(model)
        except Exception as error:  # noqa: BLE001
            yield finding(False, "", _said(error))
            return
        tried = evidence.tried + (" (in training)" if training else "")
        yield finding(evidence.equal != declared, tried, verdict(law, declared, evidence, model))


def verdict(law: Law, declared: bool, evidence: Evidence, model: Transformer) -> str:
    """The finding about a law in words."""
    if declared and not evidence.equal:
        return f"broken, as declared: {evidence}"
    if not declared and evidence.equal:
        return f"kept: {evidence}"
    if not declared:
        return f"broken and not declared: {evidence}; mend it, or declare {law!r} in breaks"
    hint = ""
    if law in ("causal", "cache") and any(p.reach[1] != 0 for p in _patterns(model)):
        hint = "; a pattern that never looks ahead says so with a reach of (.., 0)"
    return f"declared as broken, and kept: {evidence}{hint}"


def _patterns(model: Transformer) -> Iterable[pattern.Pattern]:
    return (m for m in model.modules() if isinstance(m, pattern.Pattern))


def examine_file(path: str | Path, base: Path | None = None) -> list[Finding]:
    """Import a file of parts and examine every part that it defines, with its defaults and a few other options."""
    file = registry.use(path, base or Path())
    module = registry.module_name(file)
    own = [made for made in registry.listing() if made.__module__ == module]
    if not own:
        raise PartError(f"{path}: defines no part; enter a class with @part(slot, name)")
    findings = []
    for made in own:
        for options in tries(made):
            findings += examine(made.slot, made.kind, options)
    return findings


def tries(made: type[Part]) -> list[dict[str, Any]]:
    """Options to try a part with: its defaults, and each other value of an option that has few."""
    hints = registry.types_of(made)
    known = registry.options(made)
    needed = {name: _guess(made, name, hints.get(name)) for name, one in known.items() if one.default is one.empty}
    sets = [needed]
    for name, one in known.items():
        few: Sequence[Any] = (True, False) if hints.get(name) is bool else ()
        if typing.get_origin(hints.get(name)) is typing.Literal:
            few = typing.get_args(hints[name])
        sets += [{**needed, name: value} for value in few if value not in (one.default, needed.get(name))]
    return sets


def _guess(made: type[Part], name: str, hint: Any) -> Any:
    """A value for an option that has no default."""
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)[0]
    plain = {int: 4, float: 0.5, bool: True}
    if hint not in plain:
        raise PartError(
            f"{made.slot} {made.kind!r} needs the option {name!r}, and what to try cannot be guessed; "
            "examine it with a PartExam that names its options"
        )
    return plain[hint]


class PartExam:
    """Inherit it in a test file, name the part, and pytest puts it to the exam: one test a check."""

    slot: ClassVar[str]
    name: ClassVar[str]
    options: ClassVar[Sequence[Settings]] = ({},)
    """each set of options is examined"""
    model: ClassVar[Settings] = {}
    """settings of the small models, where the part needs other ones"""
    use: ClassVar[str | Path | None] = None
    """the file that defines the part, unless the test file does so itself"""

    def hold(self, check: str) -> None:
        """Raise with every finding of this check that did not pass."""
        if self.use is not None:
            registry.use(self.use)
        findings: list[Finding] = []
        for options in self.options:
            findings += examine(self.slot, self.name, options, model=self.model, checks=(check,))
        failed = [str(finding) for finding in findings if not finding.passed]
        if failed:
            raise AssertionError("\n".join(failed))

    def test_contract(self) -> None:
        self.hold("contract")

    def test_shapes_and_dtypes(self) -> None:
        self.hold("shapes")

    def test_every_parameter_gets_a_gradient(self) -> None:
        self.hold("gradients")

    def test_fast_road_equals_explicit_road(self) -> None:
        self.hold("roads")

    def test_padding_changes_nothing(self) -> None:
        self.hold("padding")

    def test_state_round_trip(self) -> None:
        self.hold("state")

    def test_initialised_from_seed_and_name(self) -> None:
        self.hold("initial")

    def test_no_look_into_the_future(self) -> None:
        self.hold("causal")

    def test_cached_decoding_equals_a_full_pass(self) -> None:
        self.hold("cache")

    def test_rows_do_not_depend_on_their_neighbours(self) -> None:
        self.hold("batch")

    def test_repeatable(self) -> None:
        self.hold("repeatable")


__all__ = ["CHECKS", "Finding", "PartExam", "examine", "examine_file", "tries"]
