"""Individual parts: values compared with formulas and papers, and error messages."""

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from headtohead.audit.conformance.fixtures import build_fixture
from headtohead.config import base
from headtohead.config.tables import model as config_model
from headtohead.errors import ModelError
from headtohead.model_factory import build_model
from headtohead.nn.parts import registry
from headtohead.nn.parts.base import ModelSizes, Part
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.parts.pool import Pool
from headtohead.nn.parts.position import Position, compute_alibi_slopes
from headtohead.nn.transformer import Transformer
from headtohead.testing import check_part


def build_sizes(**changes: Any) -> ModelSizes:
    base = {"width": 16, "heads": 4, "head_dim": 4, "layers": 1, "context": 32, "vocab_size": 7, "is_causal": True}
    return ModelSizes(**{**base, **changes})


def build_part(slot: str, kind: str, options: dict[str, Any] | None = None, **changes: Any) -> Any:
    return registry.build_part(slot, base.ComponentConfig(kind=kind, **(options or {})), build_sizes(**changes))


def build_context(positions: Tensor, **settings: Any) -> ForwardContext:
    """Return the context of a sequence at these positions."""
    ids = torch.zeros(1, positions.shape[-1], dtype=torch.long)
    return ForwardContext.create(ids, positions=positions, **settings)


def list_visible_keys(pattern: Pattern, query: int, length: int = 32) -> list[int]:
    """Return the key positions that a query position may attend to."""
    allowed = pattern.compute_mask(torch.tensor([query]), torch.arange(length), build_context(torch.tensor([query])))
    return allowed[0].nonzero().flatten().tolist()


# Positions


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16])
def test_alibi_slopes_are_geometric_for_powers_of_two(heads: int) -> None:
    """Press et al. 2022, section 3: for n heads, the series starts at 2^(-8/n) with the same ratio."""
    start = 2 ** (-8 / heads)
    assert compute_alibi_slopes(heads) == pytest.approx([start ** (i + 1) for i in range(heads)], rel=1e-12)


def test_alibi_slopes_of_eight_heads_are_those_printed_in_the_paper() -> None:
    assert compute_alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


@pytest.mark.parametrize("heads", range(1, 17))
def test_alibi_slopes_are_those_of_bloom_for_any_number_of_heads(heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    theirs = build_alibi_tensor(torch.ones(1, 3), heads, torch.float32)[:, 0, 1]  # slope times position 1
    assert torch.allclose(torch.tensor(compute_alibi_slopes(heads)), theirs, rtol=1e-6)


@pytest.mark.parametrize("heads", [3, 5, 6, 7, 12])
def test_alibi_slopes_of_other_numbers_follow_the_papers_recipe(heads: int) -> None:
    """The slopes of the next lower power of two, then every other slope of the next higher one."""
    below = 2 ** int(math.log2(heads))
    assert (
        compute_alibi_slopes(heads)
        == compute_alibi_slopes(below) + compute_alibi_slopes(2 * below)[0::2][: heads - below]
    )


@pytest.mark.parametrize("causal", [True, False])
def test_alibi_falls_linearly_and_symmetrically(causal: bool) -> None:
    alibi = build_part("position", "alibi", is_causal=causal)
    positions = torch.arange(6)
    bias = alibi.compute_bias(positions, positions, build_context(positions))
    expected = -torch.tensor(compute_alibi_slopes(4))[:, None, None] * (positions[:, None] - positions[None, :]).abs()
    assert torch.equal(bias, expected)
    assert torch.equal(bias, bias.transpose(-1, -2))


def test_alibi_takes_a_slope_for_every_head() -> None:
    alibi, query = build_part("position", "alibi", {"slope": 1.0}), torch.tensor([5])
    bias = alibi.compute_bias(query, torch.tensor([3, 5]), build_context(query))
    assert torch.equal(bias, torch.tensor([[[-2.0, 0.0]]]).expand(4, 1, 2))


@pytest.mark.parametrize("base", [100.0, 10000.0])
@pytest.mark.parametrize("width", [16, 17])
def test_sinusoidal_is_the_formula(width: int, base: float) -> None:
    """Vaswani et al. 2017, section 3.5: PE(pos, 2i) = sin(pos / base^(2i/d)), PE(pos, 2i+1) = cos of the same."""
    position = build_part("position", "sinusoidal", {"base": base}, width=width)
    position_embeddings = position.add_positions(torch.zeros(1, 9, width), build_context(torch.arange(9)))[0]
    for position_id in range(9):
        for feature in range(width):
            angle = position_id / base ** (2 * (feature // 2) / width)
            expected = math.sin(angle) if feature % 2 == 0 else math.cos(angle)
            assert float(position_embeddings[position_id, feature]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_rope_scores_depend_on_distance_only(fraction: float) -> None:
    rope = build_part("position", "rope", {"fraction": fraction}, head_dim=8).double()
    q, k = torch.randn(2, 1, 1, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def scores(shift: int) -> Tensor:
        turned_q, turned_k = rope.rotate(q, k, build_context(torch.arange(5) + shift))
        rotated: Tensor = turned_q @ turned_k.transpose(-1, -2)
        return rotated

    assert torch.allclose(scores(0), scores(1000), atol=1e-9)
    assert not torch.allclose(scores(0), q @ k.transpose(-1, -2))


def test_rope_keeps_lengths_and_the_first_position() -> None:
    rope = build_part("position", "rope", head_dim=8)
    x = torch.randn(1, 1, 5, 8, generator=torch.Generator().manual_seed(0))
    rotated, _ = rope.rotate(x, x, build_context(torch.arange(5)))
    assert torch.allclose(rotated.norm(dim=-1), x.norm(dim=-1), atol=1e-5)
    assert torch.equal(rotated[:, :, 0], x[:, :, 0])


def test_rope_turns_only_its_fraction_of_a_head() -> None:
    x = torch.randn(1, 1, 5, 8, generator=torch.Generator().manual_seed(0))
    rope = build_part("position", "rope", {"fraction": 0.5}, head_dim=8)
    rotated, _ = rope.rotate(x, x, build_context(torch.arange(5)))
    assert torch.equal(rotated[..., 4:], x[..., 4:])
    assert (rotated[..., 1:, :4] != x[..., 1:, :4]).all()


@pytest.mark.parametrize(
    ("fraction", "head_dim", "message"),
    [(0.0, 8, r"in \(0, 1\], got 0\.0"), (1.5, 8, r"got 1\.5"), (0.1, 4, "0.1 of head_dim 4 leaves no dimensions")],
)
def test_rope_with_an_impossible_fraction_is_an_error(fraction: float, head_dim: int, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build_part("position", "rope", {"fraction": fraction}, head_dim=head_dim)


def test_a_second_absolute_position_is_an_error() -> None:
    model = config_model.TransformerConfig.model_validate({"position": ["learned", "alibi", "sinusoidal"]})
    with pytest.raises(ModelError, match="only one absolute position part is allowed, got learned and sinusoidal"):
        build_model(model, 7)


def test_relative_positions_may_be_added_to_an_absolute_one() -> None:
    build_model(config_model.TransformerConfig.model_validate({"position": ["learned", "alibi", "rope"]}), 7)


# Patterns


def test_a_window_counts_the_token_itself() -> None:
    window = build_part("pattern", "window", {"size": 8})
    assert list_visible_keys(window, 20) == [13, 14, 15, 16, 17, 18, 19, 20]
    assert list_visible_keys(window, 2) == [0, 1, 2]
    assert list_visible_keys(build_part("pattern", "window", {"size": 1}), 20) == [20]
    assert window.window_size == (7, 0)


def test_a_window_is_symmetric_in_an_encoder() -> None:
    window = build_part("pattern", "window", {"size": 3}, is_causal=False)
    assert list_visible_keys(window, 20) == [18, 19, 20, 21, 22]
    assert window.window_size == (2, 2)


def test_patterns_join_by_and() -> None:
    window = build_part("pattern", "window", {"size": 3}, is_causal=False)
    both = build_part("pattern", "causal", is_causal=False) & window
    assert list_visible_keys(both, 20) == [18, 19, 20]
    assert both.window_size == (2, 0)
    assert (build_part("pattern", "full", is_causal=False) & window).window_size == (2, 2)
    assert (build_part("pattern", "full") & build_part("pattern", "causal")).window_size == (None, 0)


def test_a_pattern_looks_at_positions_and_not_at_indices() -> None:
    causal = build_part("pattern", "causal")
    allowed = causal.compute_mask(torch.tensor([7]), torch.tensor([9, 3, 7, 8]), build_context(torch.tensor([7])))
    assert allowed.tolist() == [[False, True, True, False]]


def test_each_layer_may_have_its_own_pattern() -> None:
    model = config_model.TransformerConfig.model_validate(
        {"layers": 3, "pattern": {"layers": ["causal", {"kind": "window", "size": 2}]}, "context": 8}
    )
    maps = build_model(model, 7).eval()(torch.arange(6)[None], output_attentions=True).attentions
    reach = [int((m[0, 0, 5] > 0).sum()) for m in maps]
    assert reach == [6, 2, 6]  # a list shorter than the model is repeated


def test_a_full_pattern_in_a_decoder_declares_that_it_reads_the_future() -> None:
    assert build_part("pattern", "full").violates == {"causality", "kv-cache"}
    assert build_part("pattern", "full", is_causal=False).violates == frozenset()
    assert (build_part("pattern", "full") & build_part("pattern", "causal")).violates == frozenset()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("kind", "options"), [("full", {}), ("causal", {}), ("window", {"size": 5})])
def test_a_relative_pattern_is_the_same_everywhere(kind: str, options: dict[str, int], causal: bool) -> None:
    pattern = build_part("pattern", kind, options, is_causal=causal)
    assert pattern.is_relative
    positions = torch.arange(20)
    later_positions = positions + 7
    mask = pattern.compute_mask(positions, positions, build_context(positions))
    assert torch.equal(mask, pattern.compute_mask(later_positions, later_positions, build_context(later_positions)))
    assert (pattern & pattern).is_relative


def test_an_empty_window_is_an_error() -> None:
    with pytest.raises(ModelError, match="window: size counts the token itself and must be at least 1, got 0"):
        build_part("pattern", "window", {"size": 0})


# Projections


def test_keys_are_shared_among_queries() -> None:
    grouped = build_part("projection", "linear", {"key_heads": 2})
    q, k, v = grouped(torch.randn(1, 3, 16), build_context(torch.arange(3)))
    assert (q.shape[1], k.shape[1], v.shape[1]) == (4, 2, 2)


def test_keys_that_cannot_be_shared_evenly_are_an_error() -> None:
    with pytest.raises(ModelError, match="linear: key_heads must divide heads = 4, got 3"):
        build_part("projection", "linear", {"key_heads": 3})


def test_a_projection_without_hidden_layers_is_an_error() -> None:
    with pytest.raises(ModelError, match="mlp: depth counts hidden layers and must be at least 1, got 0"):
        build_part("projection", "mlp", {"depth": 0})


@pytest.mark.parametrize("depth", [1, 4, 30])
def test_a_deep_projection_has_as_many_hidden_layers_as_asked(depth: int) -> None:
    result = build_part("projection", "mlp", {"depth": depth})
    assert sum(isinstance(m, nn.ReLU) for m in result.query) == depth


def test_heads_that_do_not_divide_width_are_an_error_only_without_head_dim() -> None:
    with pytest.raises(ValidationError, match=r"width \(64\) must be divisible by heads \(3\); set heads = 2, or set"):
        config_model.TransformerConfig(width=64, heads=3)
    model = build_model(config_model.TransformerConfig(width=64, heads=3, head_dim=10), 7)
    assert model(torch.arange(5)[None]).logits.shape == (1, 5, 7)


# Merges


def draw_head_outputs(length: int = 6) -> Tensor:
    return torch.randn(2, 4, length, 4, generator=torch.Generator().manual_seed(0))


def apply_merge(kind: str, options: dict[str, Any] | None = None, head_outputs: Tensor | None = None) -> Tensor:
    head_outputs = draw_head_outputs() if head_outputs is None else head_outputs
    attention_input = torch.zeros(2, head_outputs.shape[2], 16)
    merged: Tensor = build_part("merge", kind, options)(head_outputs, attention_input, build_context(torch.arange(6)))
    return merged


def test_shift_rotates_the_heads() -> None:
    assert torch.equal(apply_merge("shift", {"by": 1})[:, 1], draw_head_outputs()[:, 0])
    assert torch.equal(apply_merge("shift", {"by": 4}), draw_head_outputs())


def test_reweight_multiplies_by_the_norm_of_the_whole_head() -> None:
    head_outputs = draw_head_outputs()
    expected = head_outputs * head_outputs.flatten(2).norm(dim=-1)[:, :, None, None]
    assert torch.allclose(apply_merge("reweight"), expected)
    over_batch = head_outputs.transpose(0, 1).flatten(1).norm(dim=-1)
    assert torch.allclose(apply_merge("reweight", {"over": "batch"}), head_outputs * over_batch[None, :, None, None])


@pytest.mark.parametrize("kind", ["reweight", "causal-reweight"])
def test_normalized_weights_of_the_heads_sum_to_their_number(kind: str) -> None:
    head_outputs = torch.ones(2, 4, 6, 4) * torch.arange(1, 5)[:, None, None]
    weights = apply_merge(kind, {"normalise": True}, head_outputs) / head_outputs
    assert torch.allclose(weights.sum(1), torch.tensor(4.0))
    assert torch.allclose(weights[0, :, -1, 0], torch.tensor([0.4, 0.8, 1.2, 1.6]))


def test_causal_reweight_multiplies_by_the_norm_so_far() -> None:
    head_outputs = draw_head_outputs()
    for end in range(1, 7):
        norm = head_outputs[:, :, :end].flatten(2).norm(dim=-1)
        weighted = apply_merge("causal-reweight", {"normalise": False})[:, :, end - 1]
        assert torch.allclose(weighted, head_outputs[:, :, end - 1] * norm[:, :, None], atol=1e-6)


@pytest.mark.parametrize("kind", ["reweight", "causal-reweight"])
def test_a_sequence_of_padding_gives_finite_gradients(kind: str) -> None:
    head_outputs = draw_head_outputs().requires_grad_()
    valid = torch.tensor([[True] * 6, [False] * 6])
    masked_outputs = head_outputs * valid[:, None, :, None]  # the attention output at padding
    context = ForwardContext.create(torch.zeros(2, 6, dtype=torch.long), valid)
    out = build_part("merge", kind)(masked_outputs, torch.zeros(2, 6, 16), context)
    out.sum().backward()
    assert head_outputs.grad is not None
    assert head_outputs.grad.isfinite().all()


@pytest.mark.usefixtures("unchecked")
def test_reweight_reads_the_future_and_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The re-weighting of report C without its declaration."""
    monkeypatch.setattr(registry.get_part_class("merge", "reweight"), "violates", property(lambda self: frozenset()))
    failed = {result.name for result in check_part("merge", "reweight") if not result.passed}
    assert failed == {"causality", "kv-cache"}
    failed = {result.name for result in check_part("merge", "reweight", {"over": "batch"}) if not result.passed}
    assert failed >= {"causality", "kv-cache", "batch-independence"}


def test_reweight_declares_the_invariants_that_its_options_violate() -> None:
    assert build_part("merge", "reweight").violates == {"causality", "kv-cache"}
    over_batch = build_part("merge", "reweight", {"over": "batch"})
    assert over_batch.violates == {"causality", "kv-cache", "batch-independence"}
    assert build_part("merge", "reweight", {"normalise": True}, heads=1).violates == frozenset()
    in_use = build_part("merge", "reweight", {"at_inference": False}).eval()
    assert in_use.violates == frozenset()
    assert in_use.train().violates == {"causality", "kv-cache"}


def build_shuffling_model(draw: str, seed: int = 0, layers: int = 4) -> Transformer:
    model = config_model.TransformerConfig.model_validate(
        {"width": 16, "heads": 8, "layers": layers, "merge": {"kind": "shuffle", "draw": draw}}
    )
    result = build_model(model, 7, seed=seed)
    assert isinstance(result, Transformer)
    return result.eval()


def list_head_orders(model: Transformer) -> list[list[int]]:
    return [b.tolist() for name, b in model.named_buffers() if name.endswith("merge.order")]


def test_shuffle_once_is_drawn_for_each_layer_and_saved() -> None:
    model = build_shuffling_model("once")
    assert all(sorted(order) == list(range(8)) for order in list_head_orders(model))
    assert len({tuple(order) for order in list_head_orders(model)}) == 4
    assert list_head_orders(build_shuffling_model("once")) == list_head_orders(model)
    assert list_head_orders(build_shuffling_model("once", seed=1)) != list_head_orders(model)
    assert "layers.0.attention.merge.order" in model.state_dict()


def test_shuffle_once_gives_the_heads_in_its_order() -> None:
    merge = build_part("merge", "shuffle")
    merge.order.copy_(torch.tensor([2, 0, 3, 1]))
    out = merge(draw_head_outputs(), torch.zeros(2, 6, 16), build_context(torch.arange(6)))
    assert torch.equal(out, draw_head_outputs()[:, [2, 0, 3, 1]])


def test_shuffle_at_every_pass_is_drawn_again() -> None:
    ids = torch.arange(6)[None]
    model = build_shuffling_model("every-pass")
    assert len({model(ids).logits.sum().item() for _ in range(4)}) == 4
    once = build_shuffling_model("once")
    assert len({once(ids).logits.sum().item() for _ in range(4)}) == 1


def test_shuffle_at_every_pass_of_one_head_violates_nothing() -> None:
    assert build_part("merge", "shuffle", {"draw": "every-pass"}).violates == {"determinism"}
    assert build_part("merge", "shuffle", {"draw": "every-pass"}, heads=1).violates == frozenset()


# Norms, feed-forward layers, blocks


def test_norms_are_their_formulas() -> None:
    x = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(0)) * 3 + 1
    context = build_context(torch.arange(5))
    layer = build_part("norm", "layer", {"eps": 1e-3})(x, context)
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    assert torch.allclose(layer, (x - mean) / (variance + 1e-3).sqrt(), atol=1e-5)
    rms = build_part("norm", "rms", {"eps": 1e-3})(x, context)
    assert torch.allclose(rms, x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt(), atol=1e-5)


def test_a_model_without_feedforward_has_no_norm_for_it() -> None:
    model = build_model(config_model.TransformerConfig.model_validate({"feedforward": "none"}), 7)
    assert not [name for name, _ in model.named_parameters() if "feed" in name]


def test_blocks_differ_in_order_only() -> None:
    """x + a(n(x)) + f(n(x + a(n(x)))), n(n(x + a(x)) + f(n(x + a(x)))) and x + a(n(x)) + f(n(x))."""
    x = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0))
    norm, attend, feed = nn.LayerNorm(16), torch.sin, torch.tanh
    norm_part = build_part("norm", "layer")
    results = {}
    for kind in ("pre", "post", "parallel"):
        block = registry.get_part_class("block", kind)(build_sizes(), lambda: norm_part, True)  # type: ignore[call-arg]
        results[kind] = block(x, attend, feed, build_context(torch.arange(3)))
    middle = x + attend(norm(x))
    assert torch.allclose(results["pre"], middle + feed(norm(middle)))
    middle = norm(x + attend(x))
    assert torch.allclose(results["post"], norm(middle + feed(middle)))
    assert torch.allclose(results["parallel"], x + attend(norm(x)) + feed(norm(x)))


# Pools

TOKEN_MASK = torch.tensor([[True, True, False, False], [False, False, True, True]])


def build_masked_context(mask: Tensor) -> ForwardContext:
    return ForwardContext.create(torch.zeros(mask.shape, dtype=torch.long), mask)


@pytest.mark.parametrize("kind", ["mean", "first", "max", "attention"])
def test_pools_ignore_padding(kind: str) -> None:
    pool: Pool = build_part("pool", kind)
    x = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(0))
    changed_padding = torch.where(TOKEN_MASK[..., None], x, x + 100)
    context = build_masked_context(TOKEN_MASK)
    assert torch.equal(pool(changed_padding, context), pool(x, context))
    unpadded_context = build_masked_context(TOKEN_MASK[:1, :2])
    unpadded = torch.cat((pool(x[:1, :2], unpadded_context), pool(x[1:, 2:], unpadded_context)))
    assert torch.allclose(pool(x, context), unpadded)


def test_pools_are_their_formulas() -> None:
    x = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(0))
    context = build_masked_context(TOKEN_MASK)
    expected_mean = torch.stack((x[0, :2].mean(0), x[1, 2:].mean(0)))
    assert torch.allclose(build_part("pool", "mean")(x, context), expected_mean)
    assert torch.equal(build_part("pool", "first")(x, context), torch.stack((x[0, 0], x[1, 2])))
    assert torch.equal(build_part("pool", "max")(x, context), torch.stack((x[0, :2].amax(0), x[1, 2:].amax(0))))


def test_base_classes_do_nothing_by_default() -> None:
    x, positions = torch.randn(1, 3, 16), torch.arange(3)
    position = Position(build_sizes())
    assert torch.equal(position.add_positions(x, build_context(positions)), x)
    assert position.compute_bias(positions, positions, build_context(positions)) is None
    assert (position.is_absolute, position.max_positions, Part(build_sizes()).violates) == (False, None, frozenset())


def test_fixture_models_are_small() -> None:
    """Keeps the conformance suite fast."""
    assert sum(p.numel() for p in build_fixture({}).build_model().parameters()) < 20_000
