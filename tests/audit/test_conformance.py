"""The conformance suite catches broken parts: each part below fails the check that it should, with the reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headtohead.errors import ModelError, PartError
from headtohead.nn import fast_parts
from headtohead.nn.parts import registry
from headtohead.nn.parts import registry as parts_registry
from headtohead.nn.parts.attention import Attention
from headtohead.nn.parts.base import Invariant, ModelSizes, Part
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
    """The suite as a user inherits it."""

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
def enter(monkeypatch: pytest.MonkeyPatch, unchecked: None) -> Callable[[str, type[Part]], None]:
    """Enter a class as the part "broken" of a slot, for this test only."""
    parts_registry.list_part_classes()
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))

    def entered(slot: str, made: type[Part]) -> None:
        register_part(slot, "broken")(made)

    return entered


def failed(slot: str, *checks: str) -> dict[str, PartCheckResult]:
    """The failed result of each check."""
    results = check_part(slot, "broken", checks=checks or CHECK_NAMES)
    return {result.name: result for result in reversed(results) if not result.passed}


class Changed(Merge):
    """A merge that only has to say what it does to the heads."""

    def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
        raise NotImplementedError

    def forward(
        self, heads: Tensor, valid: Tensor | None = None, past: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        return self.change(heads, valid), None


def test_a_look_into_the_future_is_caught(enter: Any) -> None:
    class Broken(Changed):
        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            kept = heads if valid is None else heads * valid[:, None, :, None]
            return heads + 0.1 * kept.sum(2, keepdim=True)

    enter("merge", Broken)
    found = failed("merge")
    assert set(found) == {"causality", "kv-cache"}
    assert "merge broken (decoder)" in str(found["causality"])
    assert "violated and not declared: largest difference" in found["causality"].observation
    assert "declare 'causality' in violates" in found["causality"].observation


def test_a_look_into_the_future_by_value_only_is_caught(enter: Any) -> None:
    class Broken(Changed):
        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads + 0.1 * heads.detach().roll(-1, dims=2)

    enter("merge", Broken)
    assert "gradient" not in failed("merge", "causality")["causality"].observation


def test_a_look_into_the_future_by_gradient_only_is_caught(enter: Any) -> None:
    class Broken(Changed):
        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            ahead = heads.roll(-1, dims=2)
            return heads + ahead - ahead.detach()

    enter("merge", Broken)
    assert "gradient of the logits before 4 by later tokens" in failed("merge", "causality")["causality"].observation


def test_dependence_on_the_length_is_caught(enter: Any) -> None:
    class Broken(Changed):
        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads / heads.shape[2]

    enter("merge", Broken)
    found = failed("merge", "causality", "kv-cache")
    assert set(found) == {"causality", "kv-cache"}
    assert "cut off at" in found["causality"].observation


def test_a_leak_in_training_only_is_caught(enter: Any) -> None:
    class Broken(Changed):
        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads + heads.mean(2, keepdim=True) if self.training else heads

    enter("merge", Broken)
    findings = [finding for finding in check_part("merge", "broken", checks=("causality",)) if not finding.passed]
    assert [finding.procedure.endswith("(training mode)") for finding in findings] == [True]


def test_declaring_a_violation_of_an_invariant_that_holds_fails(enter: Any) -> None:
    class Broken(Changed):
        @property
        def violates(self) -> frozenset[Invariant]:
            return frozenset({"causality", "batch-independence", "determinism", "kv-cache"})

        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads * 2

    enter("merge", Broken)
    found = failed("merge")
    assert set(found) == {"causality", "batch-independence", "determinism", "kv-cache"}
    assert all("declared as violated, but holds" in finding.observation for finding in found.values())


def test_a_pattern_that_forgets_to_say_how_far_it_reaches_is_told_so(enter: Any) -> None:
    class Broken(Pattern):
        def compute_mask(self, query_at: Tensor, key_at: Tensor) -> Tensor:
            return query_at[..., :, None] >= key_at[..., None, :]

    enter("pattern", Broken)
    assert "declares it with a window_size of (.., 0)" in failed("pattern", "causality")["causality"].observation


def test_a_reach_that_is_too_short_is_caught(enter: Any) -> None:
    class Broken(Pattern):
        @property
        def window_size(self) -> tuple[int | None, int | None]:
            return (2, 0)

        def compute_mask(self, query_at: Tensor, key_at: Tensor) -> Tensor:
            return query_at[..., :, None] >= key_at[..., None, :]

    enter("pattern", Broken)
    found = failed("pattern", "contract", "attention-implementations")
    assert "window_size is 2 behind, but compute_mask includes positions 11 behind" in found["contract"].observation
    assert "attention-implementations" in found


def test_neighbours_that_matter_are_caught(enter: Any) -> None:
    class Broken(Changed):
        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads - 0.5 * heads.flip(0)

    enter("merge", Broken)
    assert "violated and not declared" in failed("merge", "batch-independence")["batch-independence"].observation


def test_the_size_of_the_batch_that_matters_is_caught(enter: Any) -> None:
    class Broken(Changed):
        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads * len(heads)

    enter("merge", Broken)
    assert "row alone" in failed("merge", "batch-independence")["batch-independence"].observation


def test_state_that_is_parked_is_caught(enter: Any) -> None:
    class Broken(Changed):
        passes = 0

        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            self.passes += 1
            return heads * self.passes

    enter("merge", Broken)
    assert "determinism" in failed("merge", "determinism")


def test_random_draws_violate_determinism_only(enter: Any) -> None:
    class Broken(Changed):
        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads * torch.rand(()).to(heads.dtype)

    enter("merge", Broken)
    found = failed("merge")
    assert set(found) == {"determinism"}
    assert "random state" in found["determinism"].observation


def test_padding_that_matters_is_caught(enter: Any) -> None:
    class Broken(Changed):
        @property
        def violates(self) -> frozenset[Invariant]:
            return frozenset({"causality", "kv-cache"})

        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads + 0.1 * heads.sum(2, keepdim=True)

    enter("merge", Broken)
    assert set(failed("merge")) == {"padding"}


def test_a_cache_that_is_ignored_is_caught_unless_declared(enter: Any) -> None:
    class Broken(Attention):
        """Each position by the mean of what came before."""

        def __init__(self, sizes: ModelSizes, projection: Any, pattern: Any, merge: Any, positions: Any) -> None:
            super().__init__(sizes, projection, pattern, merge, positions)
            if not sizes.is_causal:
                raise ModelError("looks back only")

        def forward(self, x: Tensor, sight: Any, layer: int) -> tuple[Tensor, None]:
            seen = x if sight.attention_mask is None else x * sight.attention_mask[:, -x.shape[1] :, None]
            return seen.cumsum(1), None

    enter("attention", Broken)
    assert set(failed("attention")) == {"kv-cache"}

    class Declared(Broken):
        @property
        def violates(self) -> frozenset[Invariant]:
            return frozenset({"kv-cache"})

    enter("attention", Declared)
    assert failed("attention") == {}


class RotatesTwice(RotaryPosition):
    """Rotates by half of the position; its fast form below rotates by the whole position, like its base class."""

    def rotate(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return super().rotate(x, position_ids // 2)


class ScaledTable(LearnedPosition):
    """Adds three times the table; its fast form adds it once."""

    def add_positions(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return x + 3 * self.table(position_ids)


@pytest.mark.parametrize(("subclass", "base"), [(RotatesTwice, RotaryPosition), (ScaledTable, LearnedPosition)])
def test_a_part_that_generate_decodes_differently_than_it_is_scored_is_caught(
    subclass: type[Position], base: type[Position], enter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass with a cache is right here: only the session of `h2h generate` takes the fast form."""
    enter("position", subclass)
    assert failed("position", "kv-cache") == {}
    monkeypatch.setitem(fast_parts._fast_forms, subclass, fast_parts._fast_forms[base])
    result = failed("position", "kv-cache")["kv-cache"]
    assert "violated and not declared" in result.observation and "decoded as in generate" in result.observation


def test_differing_attention_implementations_fail(enter: Any) -> None:
    """Blocked attention computes the bias block by block, so a bias must not depend on the number of queries."""

    class Broken(Position):
        def compute_bias(self, query_at: Tensor, key_at: Tensor) -> Tensor:
            far = (query_at[..., :, None] - key_at[..., None, :]).abs()[..., None, :, :]
            return -far * (0.1 if query_at.shape[-1] > 20 else 0.2)

    enter("position", Broken)
    found = failed("position", "attention-implementations")["attention-implementations"]
    assert found.setup == "decoder with a window"
    assert "largest difference" in found.observation


def test_a_parameter_without_a_gradient_is_named(enter: Any) -> None:
    class Broken(Changed):
        def __init__(self, sizes: ModelSizes) -> None:
            super().__init__(sizes)
            self.idle = nn.Parameter(torch.ones(sizes.heads))

        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads

    enter("merge", Broken)
    assert "no gradient: layers.0.attention.merge.idle" in failed("merge")["gradients"].observation


def test_a_gradient_that_is_no_number_is_named(enter: Any) -> None:
    class Broken(Changed):
        def __init__(self, sizes: ModelSizes) -> None:
            super().__init__(sizes)
            self.power = nn.Parameter(torch.ones(()))

        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads + (heads * 0).abs() ** self.power.clamp(0.1, 0.2)

    enter("merge", Broken)
    assert "not finite: " in failed("merge", "gradients")["gradients"].observation


def test_what_starts_at_zero_hides_nothing(enter: Any) -> None:
    """A gate that starts at 0 would keep the leak behind it out of sight, and its own weights without a gradient."""

    class Broken(Changed):
        def __init__(self, sizes: ModelSizes) -> None:
            super().__init__(sizes)
            self.gate = nn.Parameter(torch.zeros(()))
            self.inner = nn.Linear(sizes.head_dim, sizes.head_dim)

        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads + self.gate * self.inner(heads).flip(2)

    enter("merge", Broken)
    assert set(failed("merge", "gradients", "causality")) == {"causality"}


def test_a_parameter_drawn_in_the_constructor_only_is_named(enter: Any) -> None:
    class Broken(Changed):
        def __init__(self, sizes: ModelSizes) -> None:
            super().__init__(sizes)
            self.raw = nn.Parameter(torch.randn(sizes.heads))

        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads * self.raw[:, None, None]

    enter("merge", Broken)
    found = failed("merge")
    assert set(found) == {"initialization"}
    assert "layers.0.attention.merge.raw, layers.1.attention.merge.raw" in found["initialization"].observation
    assert "must draw them in reset_parameters(self)" in found["initialization"].observation


def test_a_buffer_drawn_by_numpy_is_caught(enter: Any) -> None:
    import numpy as np

    class Broken(Changed):
        def __init__(self, sizes: ModelSizes) -> None:
            super().__init__(sizes)
            self.register_buffer("drawn", torch.tensor(np.random.rand(sizes.heads)).float())  # noqa: NPY002

        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads * self.get_buffer("drawn")[:, None, None]

    enter("merge", Broken)
    assert "merge.drawn" in failed("merge", "initialization")["initialization"].observation


def test_a_part_that_sets_the_random_state_is_caught(enter: Any) -> None:
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

    enter("merge", Broken)
    assert (
        "the same for every seed: layers.0.attention.merge.raw"
        in failed("merge", "initialization")["initialization"].observation
    )


def test_state_outside_state_dict_is_caught(enter: Any) -> None:
    class Broken(Changed):
        def __init__(self, sizes: ModelSizes) -> None:
            super().__init__(sizes)
            self.order = torch.rand(sizes.heads)

        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads * self.order[:, None, None]

    enter("merge", Broken)
    assert "as parameters or buffers" in failed("merge", "state-dict")["state-dict"].observation


def test_another_precision_inside_is_caught(enter: Any) -> None:
    class Broken(Norm):
        def forward(self, x: Tensor) -> Tensor:
            return x.float()

    enter("norm", Broken)
    assert "norm: torch.float32 instead of torch.float64" in failed("norm", "contract")["contract"].observation


def test_another_shape_is_caught(enter: Any) -> None:
    class Broken(Changed):
        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads[:, :, :-1]

    enter("merge", Broken)
    found = failed("merge", "contract", "shapes")
    assert "merge: shape (3, 4, 6, 8) instead of (3, 4, 7, 8)" in found["contract"].observation
    assert "shapes" in found


def test_an_absolute_signal_that_is_not_owned_up_to_is_caught(enter: Any) -> None:
    class Broken(Position):
        def add_positions(self, x: Tensor, at: Tensor) -> Tensor:
            return x + at[..., None].to(x.dtype) / 10

    enter("position", Broken)
    assert "declare is_absolute = True" in failed("position", "contract")["contract"].observation


def test_a_bias_for_one_text_only_is_caught(enter: Any) -> None:
    class Broken(Position):
        def compute_bias(self, query_at: Tensor, key_at: Tensor) -> Tensor:
            far = query_at[:, None] - key_at[None, :]
            return -far.abs().expand(self.sizes.heads, *far.shape)

    enter("position", Broken)
    assert "contract" in failed("position", "contract")


def test_a_part_of_another_family_is_caught(enter: Any) -> None:
    class Broken(Norm):
        def forward(self, x: Tensor, *more: Any) -> Any:
            return x, None

    enter("merge", Broken)
    assert "does not inherit parts.Merge" in failed("merge", "contract")["contract"].observation


def test_a_part_that_raises_is_a_finding(enter: Any) -> None:
    class Broken(Changed):
        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            raise KeyError("no such head")

    enter("merge", Broken)
    found = failed("merge")
    assert set(found) == set(CHECK_NAMES) - {"initialization"}
    assert "KeyError: 'no such head'" in found["shapes"].observation


def test_a_constructor_that_raises_is_a_finding(enter: Any) -> None:
    class Broken(Changed):
        def __init__(self, sizes: ModelSizes) -> None:
            raise ZeroDivisionError("on purpose")

    enter("merge", Broken)
    assert "ZeroDivisionError: on purpose" in failed("merge")["contract"].observation


def test_a_part_for_decoders_is_checked_in_decoders_only() -> None:
    parts_registry.load_plugin(MY_PARTS)
    findings = check_part("pattern", "every-other", {"step": 2}, checks=("contract", "causality"))
    assert {finding.setup for finding in findings} == {"decoder"}
    assert all(finding.passed for finding in findings)


def test_a_part_that_refuses_every_model_is_an_error(enter: Any) -> None:
    class Broken(Changed):
        def __init__(self, sizes: ModelSizes) -> None:
            raise ModelError("not today")

    enter("merge", Broken)
    with pytest.raises(PartError, match=r"no model can be built with merge broken .*decoder: not today"):
        check_part("merge", "broken")


def test_requests_that_make_no_sense_are_errors() -> None:
    with pytest.raises(PartError, match="there is no check 'casual'"):
        check_part("merge", "concat", checks=("casual",))
    with pytest.raises(PartError, match="shift has no option 'bye'"):
        check_part("merge", "shift", {"bye": 1})
    with pytest.raises(PartError, match="unknown merge 'concatenate'; did you mean 'concat'"):
        check_part("merge", "concatenate")


def test_suite_raises_with_part_check_and_numbers(enter: Any) -> None:
    class Broken(Changed):
        def change(self, heads: Tensor, valid: Tensor | None) -> Tensor:
            return heads.flip(2)

    enter("merge", Broken)

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


def test_an_option_that_cannot_be_guessed_is_an_error(enter: Any) -> None:
    class Broken(Changed):
        def __init__(self, sizes: ModelSizes, *, words: str) -> None:
            super().__init__(sizes)

    enter("merge", Broken)
    with pytest.raises(
        PartError, match="merge 'broken': option 'words' is required, and no value for it can be guessed"
    ):
        list_option_sets(Broken)
