"""The complete model: outputs, initialization, errors, the cost of a window, and decoding."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from headtohead.audit.model_checks.kv_cache import compute_logits_in_chunks
from headtohead.config.tables import model as config_model
from headtohead.errors import ModelError
from headtohead.model_factory import build_model
from headtohead.nn.kv_cache import KVCache
from headtohead.nn.parts import registry
from headtohead.nn.parts.base import ModelSizes
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.merge import Merge
from headtohead.nn.parts.registry import register_part
from headtohead.nn.random_state import fork_seeded_rng
from headtohead.nn.tensor_hashes import compute_tensor_hashes
from headtohead.nn.transformer import Transformer

VOCAB = 19


def build(num_classes: int | None = None, seed: int = 0, **settings: Any) -> Transformer:
    model = config_model.TransformerConfig.model_validate(
        {"width": 16, "layers": 2, "heads": 2, "context": 24, **settings}
    )
    result = build_model(model, VOCAB, num_classes, seed=seed)
    assert isinstance(result, Transformer)
    return result.eval()


def draw_token_ids(batch_size: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, (batch_size, length), generator=torch.Generator().manual_seed(seed))


# Attention maps


@pytest.mark.parametrize("settings", [{}, {"position": ["alibi", "rope"]}, {"pattern": {"kind": "window", "size": 3}}])
@pytest.mark.parametrize("num_classes", [None, 3])
def test_attention_weights_of_a_query_sum_to_one(settings: dict[str, Any], num_classes: int | None) -> None:
    maps = build(num_classes, **settings)(draw_token_ids(3, 9), output_attentions=True).attentions
    assert maps is not None
    assert [tuple(m.shape) for m in maps] == [(3, 2, 9, 9)] * 2
    for layer in maps:
        assert torch.allclose(layer.sum(-1), torch.ones(3, 2, 9), atol=1e-6)
        assert (layer >= 0).all()


def test_causal_maps_are_triangular_and_windowed_ones_banded() -> None:
    ids = draw_token_ids(2, 9)
    (causal, _) = build()(ids, output_attentions=True).attentions or ()
    assert (causal.triu(1) == 0).all()
    assert (causal.tril() > 0).sum() == 2 * 2 * 45
    (banded, _) = build(pattern={"kind": "window", "size": 3})(ids, output_attentions=True).attentions or ()
    assert (banded.triu(1) == 0).all()
    assert (banded.tril(-3) == 0).all()


def test_padding_gets_no_weight_in_maps() -> None:
    mask = torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
    (first, _) = build(3)(draw_token_ids(2, 9), mask, output_attentions=True).attentions or ()
    assert (first[1, :, :, 5:] == 0).all()
    assert torch.allclose(first[1, :, :5].sum(-1), torch.tensor(1.0))


def test_attention_maps_are_returned_only_on_request() -> None:
    assert build()(draw_token_ids(1, 4)).attentions is None
    assert build()(draw_token_ids(1, 4), attn_implementation="eager").attentions is None


def test_maps_with_a_cache_show_all_keys() -> None:
    model, cache, ids = build(), KVCache(2), draw_token_ids(2, 7)
    model(ids[:, :6], cache=cache)
    last_maps = model(ids[:, 6:], cache=cache, output_attentions=True).attentions
    full_maps = model(ids, output_attentions=True).attentions
    assert last_maps is not None
    assert full_maps is not None
    for last_map, full_map in zip(last_maps, full_maps, strict=True):
        assert torch.allclose(last_map, full_map[:, :, 6:], atol=1e-6)


# Initialization

VARIANTS: dict[str, dict[str, Any]] = {
    "alibi": {"position": "alibi"},
    "none": {"position": "none"},
    "alibi and rope": {"position": ["alibi", "rope"]},
    "post": {"block": "post"},
    "parallel": {"block": "parallel"},
    "more layers": {"layers": 4},
    "window": {"pattern": {"kind": "window", "size": 3}},
    "swiglu": {"feedforward": {"kind": "swiglu", "hidden": 64}},
    "mlp projection": {"projection": "mlp"},
    "biases": {"projection": {"kind": "linear", "bias": True}},
    "shuffle": {"merge": "shuffle"},
    "rms": {"norm": "rms"},
    "no output bias": {"output": {"kind": "linear", "bias": False}},
    "longer context": {"context": 48, "position": "alibi"},
    "dropout": {"dropout": 0.1},
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("variant", VARIANTS)
def test_what_two_variants_share_starts_equal(variant: str) -> None:
    baseline_model, variant_model = build(), build(**VARIANTS[variant])
    baseline, changed = baseline_model.state_dict(), variant_model.state_dict()
    shared = {name for name in baseline.keys() & changed.keys() if baseline[name].shape == changed[name].shape}
    assert {"embedding.weight", "output.weight", "layers.1.attention.output.weight"} <= shared
    assert [name for name in shared if not torch.equal(baseline[name], changed[name])] == []
    hashes = compute_tensor_hashes(baseline_model), compute_tensor_hashes(variant_model)
    assert [name for name in shared if hashes[0][name] != hashes[1][name]] == []


def test_token_embeddings_start_with_the_configured_standard_deviation() -> None:
    as_torch, small = build(num_classes=3), build(num_classes=3, embedding={"kind": "table", "std": 0.02})
    assert torch.equal(small.embedding.weight, as_torch.embedding.weight * 0.02)
    rest = [name for name in as_torch.state_dict() if name != "embedding.weight"]
    assert all(torch.equal(as_torch.state_dict()[name], small.state_dict()[name]) for name in rest)


def test_learned_positions_start_with_the_configured_standard_deviation() -> None:
    as_torch, small = build(), build(position={"kind": "learned", "std": 0.02})
    tables = [model.state_dict()["positions.0.table.weight"] for model in (as_torch, small)]
    assert torch.allclose(tables[1], tables[0] * 0.02)
    with pytest.raises(ModelError, match="above 0, got 0"):
        build(position={"kind": "learned", "std": 0})


def test_a_classifier_and_a_language_model_share_their_start() -> None:
    decoder, encoder = build().state_dict(), build(3).state_dict()
    shared = decoder.keys() & encoder.keys()
    assert len(shared) > 20
    assert all(torch.equal(decoder[name], encoder[name]) for name in shared)


def test_tensors_of_one_shape_are_not_drawn_alike() -> None:
    state = build().state_dict()
    samples = [t for t in state.values() if t.dim() == 2 and t.std() > 0]
    assert len({t.sum().item() for t in samples}) == len(samples)


def test_a_different_seed_gives_different_weights() -> None:
    first, second = compute_tensor_hashes(build(seed=0)), compute_tensor_hashes(build(seed=1))
    changed = {name for name in first if first[name] != second[name]}
    assert {name for name in first if "norm" not in name} == changed


def test_creating_a_model_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    build()
    assert torch.equal(before, torch.get_rng_state())


def test_a_forked_random_stream_does_not_affect_others() -> None:
    before = torch.get_rng_state()
    with fork_seeded_rng(0, "dropout", 5):
        expected = torch.rand(3)
    torch.rand(7)
    torch.set_rng_state(before)
    with fork_seeded_rng(0, "dropout", 5):
        assert torch.equal(torch.rand(3), expected)
    with fork_seeded_rng(0, "dropout", 6):
        assert not torch.equal(torch.rand(3), expected)
    assert torch.equal(before, torch.get_rng_state())


def test_tied_weights_are_one_tensor() -> None:
    tied = build(tie_word_embeddings=True)
    assert tied.output.weight is tied.embedding.weight
    torch.testing.assert_close(tied.output.weight, 0.02 * build().embedding.weight)  # 0.02 is the scale of GPT-2
    assert torch.equal(tied.output.bias, build().output.bias)


@pytest.mark.parametrize("std", [0.02, 1.0])
def test_tied_embeddings_start_with_their_standard_deviation(std: float) -> None:
    tied = build(tie_word_embeddings=True, embedding={"kind": "table", "std": std}, width=128)
    assert float(tied.output.weight.detach().std()) == pytest.approx(std, rel=0.1)


# Errors


def test_learned_positions_end_with_the_context() -> None:
    model = build()
    assert model.max_positions == 24
    assert model(draw_token_ids(1, 24)).logits.shape == (1, 24, VOCAB)
    words = r"needs 25 positions, but the model supports 24 \(position: learned\); use a shorter text, or a position"
    with pytest.raises(ModelError, match=words):
        model(draw_token_ids(1, 25))


def test_learned_positions_end_with_the_context_when_decoding() -> None:
    model, cache = build(), KVCache(2)
    model(draw_token_ids(1, 24), cache=cache)
    with pytest.raises(ModelError, match="needs 25 positions, but the model supports 24"):
        model(draw_token_ids(1, 1), cache=cache)


def test_padding_does_not_count_as_a_position() -> None:
    mask = torch.ones(1, 30, dtype=torch.long)
    mask[0, :6] = 0
    assert build()(draw_token_ids(1, 30), mask).logits.shape == (1, 30, VOCAB)
    with pytest.raises(ModelError, match="25 positions"):
        build()(draw_token_ids(1, 31), torch.cat((mask, torch.ones(1, 1, dtype=torch.long)), dim=1))


@pytest.mark.parametrize("position", ["none", "sinusoidal", "alibi", "rope"])
def test_positions_without_a_limit_extend_beyond_the_context(position: str) -> None:
    model = build(position=position)
    assert model.max_positions is None
    assert model(draw_token_ids(1, 60)).logits.isfinite().all()


def test_an_unavailable_implementation_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))

    @register_part("merge", "eager-only")
    class EagerOnlyMerge(Merge):
        attn_implementations = frozenset({"eager"})

        def __init__(self, sizes: ModelSizes) -> None:
            super().__init__(sizes)

        def forward(self, heads: Tensor, x: Tensor, context: ForwardContext) -> Tensor:
            return heads

    model = build(merge="eager-only")
    assert model.attn_implementations == {"eager"}
    assert torch.allclose(model(draw_token_ids(1, 5)).logits, build()(draw_token_ids(1, 5)).logits, atol=1e-6)
    with pytest.raises(
        ModelError, match='implementation "sdpa" is not available: the parts of this model support only eager'
    ):
        model(draw_token_ids(1, 5), attn_implementation="sdpa")


# Padding


def test_a_sequence_of_padding_gives_finite_gradients() -> None:
    for num_classes in (None, 3):
        model = build(num_classes).train()
        mask = torch.tensor([[1] * 6, [0] * 6])
        for attn_implementation in ("eager", "sdpa"):
            model.zero_grad()
            out = model(draw_token_ids(2, 6), mask, attn_implementation=attn_implementation).logits
            out[0].square().sum().backward()
            assert out.isfinite().all()
            assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_padding_may_be_unmasked_as_in_some_reports() -> None:
    mask = torch.tensor([[1] * 4 + [0] * 5])
    ids, others = draw_token_ids(1, 9), torch.cat((draw_token_ids(1, 9)[:, :4], draw_token_ids(1, 5, seed=1)), dim=1)
    masked, unmasked = build(3), build(3, mask_padding=False)
    assert torch.allclose(masked(ids, mask).logits, masked(others, mask).logits, atol=1e-6)
    assert not torch.allclose(unmasked(ids, mask).logits, unmasked(others, mask).logits, atol=1e-3)
    assert torch.allclose(unmasked(ids, mask).logits, unmasked(ids).logits)


# Dropout


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("attn_implementation", ["eager", "sdpa"])
def test_dropout_of_weights_keeps_the_mean(attn_implementation: str) -> None:
    """Attention only, without feed-forward: dropout preserves the mean with both attention implementations."""
    model = build(layers=1, feedforward="none", dropout=0.3, position="none", final_norm=False)
    model.drop.p = model.layers[0].block.drop.p = 0.0  # only the weights of attention are dropped
    ids = draw_token_ids(1, 6)
    expected = model(ids, attn_implementation=attn_implementation).logits
    model.train()
    with torch.no_grad(), fork_seeded_rng(0, "test", attn_implementation):
        stacked = torch.stack([model(ids, attn_implementation=attn_implementation).logits for _ in range(600)])
    assert stacked.std(0).mean() > 0.01
    error = (stacked.mean(0) - expected).abs() / (stacked.std(0) / 600**0.5 + 1e-6)
    assert error.mean() < 1.5


# Decoding


@torch.no_grad()
def test_a_cache_grows_without_losing_anything() -> None:
    """The cache is extended beyond its initial capacity twice."""
    model = build(position=["alibi", "rope"], pattern={"layers": ["causal", {"kind": "window", "size": 5}]})
    ids = draw_token_ids(2, 150)
    stepwise = compute_logits_in_chunks(
        lambda *inputs, **kwargs: model(*inputs, **kwargs).logits, 2, ids, [60, *[1] * 90]
    )
    assert torch.allclose(stepwise, model(ids).logits, atol=1e-5)


@torch.no_grad()
def test_two_caches_do_not_affect_each_other() -> None:
    """Two sequences are decoded alternately with one model."""
    model, sequences = build(), (draw_token_ids(1, 8, seed=1), draw_token_ids(1, 8, seed=2))
    caches = [KVCache(2), KVCache(2)]
    step_logits: list[list[Tensor]] = [[], []]
    for position in range(8):
        for index, ids in enumerate(sequences):
            step_logits[index].append(model(ids[:, position : position + 1], cache=caches[index]).logits)
    for index, ids in enumerate(sequences):
        assert torch.allclose(torch.cat(step_logits[index], dim=1), model(ids).logits, atol=1e-5)
    assert [cache.length for cache in caches] == [8, 8]


@torch.no_grad()
def test_padding_may_begin_after_a_cache_without_any() -> None:
    """Prompts of equal length, then sequences of which some have ended."""
    model, ids = build(), draw_token_ids(2, 8)
    valid = torch.ones(2, 8, dtype=torch.bool)
    valid[1, 6:] = False
    cache = KVCache(2)
    first = model(ids[:, :5], cache=cache).logits
    second = model(ids[:, 5:], valid[:, 5:], cache=cache).logits
    logits = model(ids, valid).logits
    assert torch.allclose(torch.cat((first, second), dim=1)[valid], logits[valid], atol=1e-5)


# Memory of windowed attention


class LargestTensorRecorder(TorchDispatchMode):
    """Records the largest tensor that is created."""

    largest_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for item in out if isinstance(out, tuple | list) else (out,):
            if isinstance(item, Tensor):
                self.largest_bytes = max(self.largest_bytes, item.untyped_storage().nbytes())
        return out


def measure_largest_tensor(length: int, **settings: Any) -> int:
    model = build(layers=1, **settings)
    with LargestTensorRecorder() as recorder:
        hidden, _ = model.compute_hidden_states(draw_token_ids(1, length))
        hidden.sum().backward()
    return recorder.largest_bytes


@pytest.mark.parametrize("num_classes", [None, 3], ids=["decoder", "encoder"])
def test_memory_of_windowed_attention_is_linear_in_the_context(num_classes: int | None) -> None:
    windowed = {"position": "alibi", "pattern": {"kind": "window", "size": 9}, "num_classes": num_classes}
    full = {"position": "alibi", "num_classes": num_classes}
    short, long = measure_largest_tensor(256, **windowed), measure_largest_tensor(1024, **windowed)
    assert long <= 4 * short
    assert measure_largest_tensor(1024, **full) >= 15 * measure_largest_tensor(256, **full)
    assert 10 * long < measure_largest_tensor(1024, **full)
