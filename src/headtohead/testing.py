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
    resume                      training that is interrupted and resumed equals uninterrupted training
    initialization              every tensor is determined by (seed, name), and keeps what a constructor sets
    composition                 attention uses its pattern, its merges and its positions
    row-selection               decoding continues after rows of the batch are selected
    auxiliary-losses            are added in training only
    padding                     has no attention weight, and outputs depend neither on its tokens nor on its amount
    attention-implementations   sdpa and blocked equal eager, outputs and gradients
    causality                   no output depends on later tokens
    kv-cache                    decoding as `h2h generate` does equals a full pass
    batch-independence          no output depends on the other rows of the batch
    determinism                 the same input gives the same output

Parts of training are checked for their contract and for resuming. The last four checks are of invariants. A part that
violates one on purpose declares it in `violates`. The suite fails if a part violates an invariant that it does not
declare, and if it declares one that holds. All but the first nine checks are also run on trained models
(`headtohead.audit.model_audit`).

Without pytest, `check_part("position", "sqrt-alibi")` and `check_part_file("my_parts.py")` return the results. A part
for decoders or encoders only raises ModelError if `sizes.is_causal` has the wrong value.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from headtohead.audit.conformance.option_sets import list_option_sets
from headtohead.audit.conformance.suite import CHECK_NAMES, SettingsMapping, check_part, check_part_file
from headtohead.audit.result import PartCheckResult
from headtohead.data.sources.conformance import SourceConformanceSuite, find_source_violations
from headtohead.nn.parts import registry


class PartConformanceSuite:
    """Base class for the tests of one part. A subclass names the part, and pytest runs one test per check."""

    slot: ClassVar[str]
    name: ClassVar[str]
    options: ClassVar[Sequence[SettingsMapping]] = ({},)
    """sets of options that the part is checked with"""
    model_settings: ClassVar[SettingsMapping] = {}
    """settings that the part requires in the small models"""
    plugin: ClassVar[str | Path | None] = None
    """the file that defines the part, unless the test file does"""

    def assert_check_passes(self, check: str) -> None:
        """Fail the test of a part with every failed result of this check."""
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
        """Run one check of the conformance suite on the part."""
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
