"""The conformance suite detects broken parts: each part below fails the expected check with the expected reason."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headtohead.errors import ModelError, PartError
from headtohead.nn import fast_parts
from headtohead.nn.parts import registry
from headtohead.nn.parts import registry as parts_registry
from headtohead.nn.parts.attention import Attention, AttentionParts
from headtohead.nn.parts.base import Invariant, ModelSizes, Part
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.merge import Merge
from headtohead.nn.parts.norm import Norm
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.parts.position import LearnedPosition, Position, RotaryPosition
from headtohead.nn.parts.registry import register_part
from headtohead.testing import (
    CHECK_NAMES,
    PartCheckResult,
    PartConformanceSuite,
    check_part,
    check_part_file,
    list_option_sets,
)

MY_PARTS = Path(__file__).parents[1] / "nn" / "parts" / "my_parts.py"


@pytest.mark.usefixtures("unchecked")
class TestSqrtAlibi(PartConformanceSuite):
    """The suite, subclassed as in a user's test file."""

    plugin = MY_PARTS
    slot = "position"
    name = "sqrt-alibi"
    options = ({}, {"strength": 2.0})


@pytest.mark.usefixtures("unchecked")
class TestEveryOther(PartConformanceSuite):
    plugin = MY_PARTS
    slot = "pattern"
    name = "every-other"
    options = ({"step": 3},)


@pytest.fixture
def register_broken_part(monkeypatch: pytest.MonkeyPatch, unchecked: None) -> Callable[[str, type[Part]], None]:
    """Register a class as the part "broken" of a slot for the duration of a test."""
    parts_registry.list_part_classes()
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))

    def register(slot: str, part_class: type[Part]) -> None:
        register_part(slot, "broken")(part_class)

    return register


def find_failures(slot: str, *checks: str) -> dict[str, PartCheckResult]:
    """Return the failed results by check."""
    results = check_part(slot, "broken", checks=checks or CHECK_NAMES)
    return {result.name: result for result in reversed(results) if not result.passed}


class Changed(Merge):
    """A merge that only needs to define how it changes the heads."""

    def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
        raise NotImplementedError

    def forward(self, heads: Tensor, x: Tensor, context: ForwardContext) -> Tensor:
        return self.change(heads, context.attention_mask)


def test_look_ahead_is_detected(register_broken_part: Any) -> None:
    class Broken(Changed):
        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            remaining = heads if valid is None else heads * valid[:, None, :, None]
            return heads + 0.1 * remaining.sum(2, keepdim=True)

    register_broken_part("merge", Broken)
    result = find_failures("merge")
    assert set(result) == {"causality", "kv-cache"}
    assert "merge broken (decoder)" in str(result["causality"])
    assert "violated and not declared: largest difference" in result["causality"].observation
    assert "declare 'causality' in violates" in result["causality"].observation


def test_look_ahead_by_value_only_is_detected(register_broken_part: Any) -> None:
    class Broken(Changed):
        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads + 0.1 * heads.detach().roll(-1, dims=2)

    register_broken_part("merge", Broken)
    assert "gradient" not in find_failures("merge", "causality")["causality"].observation


def test_look_ahead_by_gradient_only_is_detected(register_broken_part: Any) -> None:
    class Broken(Changed):
        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            ahead = heads.roll(-1, dims=2)
            return heads + ahead - ahead.detach()

    register_broken_part("merge", Broken)
    assert (
        "gradient of the logits before 4 by later tokens"
        in find_failures("merge", "causality")["causality"].observation
    )


def test_dependence_on_the_length_is_detected(register_broken_part: Any) -> None:
    class Broken(Changed):
        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads / heads.shape[2]

    register_broken_part("merge", Broken)
    result = find_failures("merge", "causality", "kv-cache")
    assert set(result) == {"causality", "kv-cache"}
    assert "cut off at" in result["causality"].observation


def test_a_leak_in_training_only_is_detected(register_broken_part: Any) -> None:
    class Broken(Changed):
        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads + heads.mean(2, keepdim=True) if self.training else heads

    register_broken_part("merge", Broken)
    findings = [finding for finding in check_part("merge", "broken", checks=("causality",)) if not finding.passed]
    assert [finding.procedure.endswith("(training mode)") for finding in findings] == [True]


def test_declaring_a_violation_of_an_invariant_that_holds_fails(register_broken_part: Any) -> None:
    class Broken(Changed):
        @property
        def violates(self) -> frozenset[Invariant]:
            return frozenset({"causality", "batch-independence", "determinism", "kv-cache"})

        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads * 2

    register_broken_part("merge", Broken)
    result = find_failures("merge")
    assert set(result) == {"causality", "batch-independence", "determinism", "kv-cache"}
    assert all("declared as violated, but holds" in finding.observation for finding in result.values())


def test_a_pattern_that_forgets_to_say_how_far_it_reaches_is_reported(register_broken_part: Any) -> None:
    class Broken(Pattern):
        def compute_mask(self, query_at: Tensor, key_at: Tensor, context: ForwardContext) -> Tensor:
            return query_at[..., :, None] >= key_at[..., None, :]

    register_broken_part("pattern", Broken)
    assert "declares it with a window_size of (.., 0)" in find_failures("pattern", "causality")["causality"].observation


def test_a_reach_that_is_too_short_is_detected(register_broken_part: Any) -> None:
    class Broken(Pattern):
        @property
        def window_size(self) -> tuple[int | None, int | None]:
            return (2, 0)

        def compute_mask(self, query_at: Tensor, key_at: Tensor, context: ForwardContext) -> Tensor:
            return query_at[..., :, None] >= key_at[..., None, :]

    register_broken_part("pattern", Broken)
    result = find_failures("pattern", "contract", "attention-implementations")
    assert "window_size is 2 behind, but compute_mask includes positions 11 behind" in result["contract"].observation
    assert "attention-implementations" in result


def test_neighbours_that_matter_are_detected(register_broken_part: Any) -> None:
    class Broken(Changed):
        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads - 0.5 * heads.flip(0)

    register_broken_part("merge", Broken)
    assert "violated and not declared" in find_failures("merge", "batch-independence")["batch-independence"].observation


def test_the_size_of_the_batch_that_matters_is_detected(register_broken_part: Any) -> None:
    class Broken(Changed):
        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads * len(heads)

    register_broken_part("merge", Broken)
    assert "row alone" in find_failures("merge", "batch-independence")["batch-independence"].observation


def test_state_that_is_parked_is_detected(register_broken_part: Any) -> None:
    class Broken(Changed):
        passes = 0

        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            self.passes += 1
            return heads * self.passes

    register_broken_part("merge", Broken)
    assert "determinism" in find_failures("merge", "determinism")


def test_random_numbers_in_training_mode_only_pass(register_broken_part: Any) -> None:
    class Noisy(Changed):
        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads * (1 + 0.1 * torch.randn_like(heads)) if self.training else heads

    register_broken_part("merge", Noisy)
    assert find_failures("merge") == {}


def test_random_draws_violate_determinism_only(register_broken_part: Any) -> None:
    class Broken(Changed):
        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads * torch.rand(()).to(heads.dtype)

    register_broken_part("merge", Broken)
    result = find_failures("merge")
    assert set(result) == {"determinism"}
    assert "random state" in result["determinism"].observation


def test_padding_that_matters_is_detected(register_broken_part: Any) -> None:
    class Broken(Changed):
        @property
        def violates(self) -> frozenset[Invariant]:
            return frozenset({"causality", "kv-cache"})

        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads + 0.1 * heads.sum(2, keepdim=True)

    register_broken_part("merge", Broken)
    assert set(find_failures("merge")) == {"padding"}


def test_a_cache_that_is_ignored_is_detected_unless_declared(register_broken_part: Any) -> None:
    class Broken(Attention):
        """Replaces each position by the mean of the preceding positions."""

        unused_slots = frozenset({"pattern", "merge", "position"})

        def __init__(self, sizes: ModelSizes, parts: AttentionParts) -> None:
            super().__init__(sizes, parts)
            if not sizes.is_causal:
                raise ModelError("looks back only")

        def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
            return (x * context.get_attention_mask()[..., None]).cumsum(1)

    register_broken_part("attention", Broken)
    assert set(find_failures("attention")) == {"kv-cache"}

    class Declared(Broken):
        @property
        def violates(self) -> frozenset[Invariant]:
            return frozenset({"kv-cache"})

    register_broken_part("attention", Declared)
    assert find_failures("attention") == {}


class RotatesTwice(RotaryPosition):
    """Rotates by half of the position. Its fast form rotates by the whole position, like the base class."""

    def rotate(self, q: Tensor, k: Tensor, context: ForwardContext) -> tuple[Tensor, Tensor]:
        return super().rotate(q, k, replace(context, query_positions=context.query_positions // 2))


class ScaledTable(LearnedPosition):
    """Adds three times the table. Its fast form adds it once."""

    def add_positions(self, x: Tensor, context: ForwardContext) -> Tensor:
        return x + 3 * self.table(context.query_positions)


@pytest.mark.parametrize(("subclass", "base"), [(RotatesTwice, RotaryPosition), (ScaledTable, LearnedPosition)])
def test_a_part_that_generate_decodes_differently_than_it_is_scored_is_detected(
    subclass: type[Position], base: type[Position], register_broken_part: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forward pass with a cache is correct here; only the session of `h2h generate` uses the fast form."""
    register_broken_part("position", subclass)
    assert find_failures("position", "kv-cache") == {}
    monkeypatch.setitem(fast_parts._fast_forms, subclass, fast_parts._fast_forms[base])
    result = find_failures("position", "kv-cache")["kv-cache"]
    assert "violated and not declared" in result.observation and "decoded as in generate" in result.observation


def test_differing_attention_implementations_fail(register_broken_part: Any) -> None:
    """Blocked attention computes the bias block by block, so a bias must not depend on the number of queries."""

    class Broken(Position):
        def compute_bias(self, query_at: Tensor, key_at: Tensor, context: ForwardContext) -> Tensor:
            far = (query_at[..., :, None] - key_at[..., None, :]).abs()[..., None, :, :]
            return -far * (0.1 if query_at.shape[-1] > 20 else 0.2)

    register_broken_part("position", Broken)
    result = find_failures("position", "attention-implementations")["attention-implementations"]
    assert result.setup == "decoder with a window"
    assert "largest difference" in result.observation


def test_a_parameter_without_a_gradient_is_reported(register_broken_part: Any) -> None:
    class Broken(Changed):
        def __init__(self, sizes: ModelSizes) -> None:
            super().__init__(sizes)
            self.idle = nn.Parameter(torch.ones(sizes.heads))

        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads

    register_broken_part("merge", Broken)
    assert "no gradient: layers.0.attention.merge.idle" in find_failures("merge")["gradients"].observation


def test_a_gradient_that_is_no_number_is_reported(register_broken_part: Any) -> None:
    class Broken(Changed):
        def __init__(self, sizes: ModelSizes) -> None:
            super().__init__(sizes)
            self.power = nn.Parameter(torch.ones(()))

        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads + (heads * 0).abs() ** self.power.clamp(0.1, 0.2)

    register_broken_part("merge", Broken)
    assert "not finite: " in find_failures("merge", "gradients")["gradients"].observation


def test_what_starts_at_zero_hides_nothing(register_broken_part: Any) -> None:
    """A gate initialized to 0 would hide the leak behind it and leave its own weights without a gradient."""

    class Broken(Changed):
        def __init__(self, sizes: ModelSizes) -> None:
            super().__init__(sizes)
            self.gate = nn.Parameter(torch.zeros(()))
            self.inner = nn.Linear(sizes.head_dim, sizes.head_dim)

        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads + self.gate * self.inner(heads).flip(2)

    register_broken_part("merge", Broken)
    assert set(find_failures("merge", "gradients", "causality")) == {"causality"}


def test_a_parameter_drawn_in_the_constructor_passes(register_broken_part: Any) -> None:
    class Drawn(Changed):
        def __init__(self, sizes: ModelSizes) -> None:
            super().__init__(sizes)
            self.raw = nn.Parameter(torch.randn(sizes.heads))

        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads * self.raw[:, None, None]

    register_broken_part("merge", Drawn)
    assert find_failures("merge") == {}


def test_a_parameter_drawn_by_a_generator_without_a_seed_is_reported(register_broken_part: Any) -> None:
    class Broken(Changed):
        def __init__(self, sizes: ModelSizes) -> None:
            super().__init__(sizes)
            self.raw = nn.Parameter(torch.tensor([random.Random().gauss() for _ in range(sizes.heads)]))

        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads * self.raw[:, None, None]

    register_broken_part("merge", Broken)
    result = find_failures("merge")
    assert set(result) == {"initialization", "resume"}
    assert "layers.0.attention.merge.raw, layers.1.attention.merge.raw" in result["initialization"].observation
    assert "draw random values with torch" in result["initialization"].observation


def test_a_buffer_drawn_by_a_generator_without_a_seed_is_detected(register_broken_part: Any) -> None:
    import numpy as np

    class Broken(Changed):
        def __init__(self, sizes: ModelSizes) -> None:
            super().__init__(sizes)
            self.register_buffer("drawn", torch.tensor(np.random.default_rng().random(sizes.heads)).float())

        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads * self.get_buffer("drawn")[:, None, None]

    register_broken_part("merge", Broken)
    assert "merge.drawn" in find_failures("merge", "initialization")["initialization"].observation


def test_a_part_that_sets_the_random_state_is_detected(register_broken_part: Any) -> None:
    class Broken(Changed):
        def __init__(self, sizes: ModelSizes) -> None:
            super().__init__(sizes)
            self.raw = nn.Parameter(torch.empty(sizes.heads))
            self.reset_parameters()

        def reset_parameters(self) -> None:
            torch.manual_seed(0)
            nn.init.normal_(self.raw)

        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads * self.raw[:, None, None]

    register_broken_part("merge", Broken)
    assert (
        "the same for every seed: layers.0.attention.merge.raw"
        in find_failures("merge", "initialization")["initialization"].observation
    )


def test_state_outside_state_dict_is_detected(register_broken_part: Any) -> None:
    class Broken(Changed):
        def __init__(self, sizes: ModelSizes) -> None:
            super().__init__(sizes)
            self.order = torch.rand(sizes.heads)

        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads * self.order[:, None, None]

    register_broken_part("merge", Broken)
    assert "as parameters or buffers" in find_failures("merge", "state-dict")["state-dict"].observation


def test_another_precision_inside_is_detected(register_broken_part: Any) -> None:
    class Broken(Norm):
        def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
            return x.float()

    register_broken_part("norm", Broken)
    assert "norm: torch.float32 instead of torch.float64" in find_failures("norm", "contract")["contract"].observation


def test_another_shape_is_detected(register_broken_part: Any) -> None:
    class Broken(Changed):
        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads[:, :, :-1]

    register_broken_part("merge", Broken)
    result = find_failures("merge", "contract", "shapes")
    assert "merge: shape (3, 4, 6, 8) instead of (3, 4, 7, 8)" in result["contract"].observation
    assert "shapes" in result


def test_an_absolute_signal_that_is_not_owned_up_to_is_detected(register_broken_part: Any) -> None:
    class Broken(Position):
        def add_positions(self, x: Tensor, context: ForwardContext) -> Tensor:
            return x + context.query_positions[..., None].to(x.dtype) / 10

    register_broken_part("position", Broken)
    assert "declare is_absolute = True" in find_failures("position", "contract")["contract"].observation


def test_a_bias_for_one_text_only_is_detected(register_broken_part: Any) -> None:
    class Broken(Position):
        def compute_bias(self, query_at: Tensor, key_at: Tensor, context: ForwardContext) -> Tensor:
            far = query_at[:, None] - key_at[None, :]
            return -far.abs().expand(self.sizes.heads, *far.shape)

    register_broken_part("position", Broken)
    assert "contract" in find_failures("position", "contract")


def test_a_part_of_another_family_is_detected(register_broken_part: Any) -> None:
    class Broken(Norm):
        def forward(self, x: Tensor, *more: Any) -> Any:
            return x, None

    register_broken_part("merge", Broken)
    assert "does not inherit Merge" in find_failures("merge", "contract")["contract"].observation


def test_a_part_that_raises_is_a_finding(register_broken_part: Any) -> None:
    class Broken(Changed):
        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            raise KeyError("no such head")

    register_broken_part("merge", Broken)
    result = find_failures("merge")
    assert set(result) == set(CHECK_NAMES) - {"initialization", "composition"}
    assert "KeyError: 'no such head'" in result["shapes"].observation


def test_a_constructor_that_raises_is_a_finding(register_broken_part: Any) -> None:
    class Broken(Changed):
        def __init__(self, sizes: ModelSizes) -> None:
            raise ZeroDivisionError("on purpose")

    register_broken_part("merge", Broken)
    assert "ZeroDivisionError: on purpose" in find_failures("merge")["contract"].observation


def test_a_part_for_decoders_is_checked_in_decoders_only() -> None:
    parts_registry.load_plugin(MY_PARTS)
    findings = check_part("pattern", "every-other", {"step": 2}, checks=("contract", "causality"))
    assert {finding.setup for finding in findings} == {"decoder"}
    assert all(finding.passed for finding in findings)


def test_a_part_that_rejects_every_model_is_an_error(register_broken_part: Any) -> None:
    class Broken(Changed):
        def __init__(self, sizes: ModelSizes) -> None:
            raise ModelError("not today")

    register_broken_part("merge", Broken)
    with pytest.raises(PartError, match=r"no model can be built with merge broken .*decoder: not today"):
        check_part("merge", "broken")


def test_requests_that_make_no_sense_are_errors() -> None:
    with pytest.raises(PartError, match="unknown check 'casual'"):
        check_part("merge", "concat", checks=("casual",))
    with pytest.raises(PartError, match="shift has no option 'bye'"):
        check_part("merge", "shift", {"bye": 1})
    with pytest.raises(PartError, match="unknown merge 'concatenate'; did you mean 'concat'"):
        check_part("merge", "concatenate")


def test_suite_raises_with_part_check_and_numbers(register_broken_part: Any) -> None:
    class Broken(Changed):
        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads.flip(2)

    register_broken_part("merge", Broken)

    class Suite(PartConformanceSuite):
        slot, name = "merge", "broken"

    with pytest.raises(
        AssertionError, match=r"FAILED causality: merge broken \(decoder\)\n  procedure: .*\n  observation: .*\d"
    ):
        Suite().test_conformance("causality")


@pytest.mark.usefixtures("unchecked")
def test_every_part_of_a_file_is_checked() -> None:
    findings = check_part_file(MY_PARTS)
    assert {finding.part for finding in findings} == {
        "position sqrt-alibi",
        "pattern every-other (step = 4)",
        "merge noisy-gates",
    }
    assert not [str(finding) for finding in findings if not finding.passed]
    assert {"name", "passed", "procedure", "observation", "part", "setup"} <= set(findings[0].to_dict())


def test_a_file_without_parts_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n")
    with pytest.raises(PartError, match=r"empty\.py: defines no part; register a class with @register_part"):
        check_part_file("empty.py", tmp_path)


def test_options_to_try_are_the_defaults_and_each_other_choice() -> None:
    assert list_option_sets(parts_registry.get_part_class("merge", "shuffle")) == [{}, {"draw": "every-pass"}]
    assert list_option_sets(parts_registry.get_part_class("pattern", "window")) == [{"size": 4}]
    assert list_option_sets(parts_registry.get_part_class("norm", "layer")) == [{}, {"bias": False}]


def test_an_option_that_cannot_be_guessed_is_an_error(register_broken_part: Any) -> None:
    class Broken(Changed):
        def __init__(self, sizes: ModelSizes, *, words: str) -> None:
            super().__init__(sizes)

    register_broken_part("merge", Broken)
    with pytest.raises(
        PartError, match="merge 'broken': option 'words' is required, and no value for it can be guessed"
    ):
        list_option_sets(Broken)
