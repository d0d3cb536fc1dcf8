"""Parts for published ideas on positions and attention equal another implementation, or their formula.

The formulas are transcribed slowly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from tests.nn.parts.idea_models import (
    BATCH_SIZE,
    CAUSAL,
    HEAD_DIM,
    HEADS,
    LENGTH,
    VOCAB,
    WIDTH,
    assert_equal,
    build,
    causal_softmax,
    compute_scores,
    create_context,
    draw_ids,
    draw_states,
    run_attention,
)
from tools.catalog import EXAMPLE_PARTS_FOLDER
from torch import nn
from torch.nn import functional as F
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention, lambda_init_fn
from transformers.models.t5.modeling_t5 import T5Attention

from headtohead.config.tables import model as config_model
from headtohead.model_factory import build_model
from headtohead.nn.parts import registry
from headtohead.nn.parts.attention import MultiHeadAttention


@pytest.fixture(autouse=True, scope="module")
def examples() -> Any:
    registry.load_builtin_parts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_registry", dict(registry._registry))
        patch.setattr(registry, "_plugin_files", dict(registry._plugin_files))
        for file in EXAMPLE_PARTS_FOLDER.glob("*.py"):
            registry.load_plugin(file)
        yield


# Positions


@torch.no_grad()
def test_without_positions_only_the_pattern_orders_tokens() -> None:
    """The last output depends on the set of earlier tokens, not on their order."""
    ids = draw_ids()
    permuted = torch.cat((ids[:, :-1].flip(1), ids[:, -1:]), dim=1)
    model, other = build(layers=1), build(layers=1, position="sinusoidal")
    assert_equal(model(ids).logits[:, -1], model(permuted).logits[:, -1])
    assert float((other(ids).logits - other(permuted).logits)[:, -1].abs().max()) > 0.01


@pytest.mark.parametrize("is_causal", [True, False])
@torch.no_grad()
def test_relative_bias_is_that_of_t5(is_causal: bool) -> None:
    config = config_model.TransformerConfig.model_validate(
        {"width": WIDTH, "heads": HEADS, "position": {"kind": "relative", "buckets": 8, "max_distance": 20}}
    )
    part: Any = build_model(config, VOCAB, None if is_causal else 3).positions[0]
    sizes = {"d_model": WIDTH, "num_heads": HEADS, "d_kv": HEAD_DIM}
    settings = transformers.T5Config(
        **sizes,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
        is_decoder=is_causal,
    )
    theirs = T5Attention(settings, has_relative_attention_bias=True, layer_idx=0)
    theirs.relative_attention_bias.weight.copy_(part.table.weight)
    positions, mask = torch.arange(40), torch.ones(40, 40, dtype=torch.bool)
    allowed = mask.tril() if is_causal else mask
    ours = part.compute_bias(positions, positions, create_context())
    assert_equal(ours * allowed, theirs.compute_bias(40, 40)[0] * allowed, 1e-6)


@torch.no_grad()
def test_kerple() -> None:
    part: Any = build(position="kerple-log").positions[0]
    bias = part.compute_bias(torch.arange(LENGTH), torch.arange(LENGTH), create_context())
    strength, scale = part.log_strength.exp().flatten(), part.log_scale.exp().flatten()
    for head in range(HEADS):
        for query in range(LENGTH):
            for key in range(query + 1):
                expected = -strength[head] * torch.log(1 + scale[head] * (query - key))
                assert float(bias[head, query, key]) == pytest.approx(float(expected))


def test_positions_may_differ_between_layers() -> None:
    model = build(layers=4, position={"layers": [["rope"], ["rope"], ["rope"], ["none"]]})
    kinds = [[part.kind for part in layer.attention.positions] for layer in model.layers]
    assert kinds == [["rope"], ["rope"], ["rope"], ["none"]]


# Attention


@torch.no_grad()
def test_sinks() -> None:
    part, q, k, v, heads = run_attention("sinks")
    exponentials = compute_scores(q, k).exp() * CAUSAL
    assert_equal(heads, exponentials / (exponentials.sum(-1, keepdim=True) + part.sink.exp()) @ v)


@torch.no_grad()
def test_documents_do_not_attend_to_each_other() -> None:
    """The logits of a document do not depend on the document before it."""
    model = build(attention={"kind": "within-documents", "separator": 0})
    ids, other = 1 + draw_ids() % (VOCAB - 1), 1 + draw_ids(seed=1) % (VOCAB - 1)
    ids[:, 4] = other[:, 4] = 0
    other[:, 5:] = ids[:, 5:]
    assert_equal(model(ids).logits[:, 4:], model(other).logits[:, 4:])
    ids[:, 4] = other[:, 4] = 1
    assert float((model(ids).logits - model(other).logits)[:, 4:].abs().max()) > 0.01


@torch.no_grad()
def test_selective_attention() -> None:
    _, q, k, v, heads = run_attention("selective")
    scores = compute_scores(q, k)
    expected = scores.clone()
    for row in range(BATCH_SIZE):
        for query in range(LENGTH):
            for key in range(1, query):
                masked = sum(scores[row, 0, earlier, key].relu() for earlier in range(key + 1, query))
                expected[row, :, query, key] -= masked
    assert_equal(heads, causal_softmax(expected) @ v)


@torch.no_grad()
def test_kv_shifting() -> None:
    model = build(projection=["linear", "kv-shifting"])
    attention: Any = model.layers[0].attention
    x = draw_states(BATCH_SIZE, LENGTH, WIDTH)
    _, k, v = attention.projection(x, create_context())
    shifted = attention.project(x, create_context())[1:]
    for kind, (before, after) in enumerate(zip((k, v), shifted, strict=True)):
        share = attention.projection_steps["kv-shifting"].shares[kind]
        for t in range(LENGTH):
            previous = before[:, :, t - 1] if t else torch.zeros_like(before[:, :, 0])
            assert_equal(after[:, :, t], share[0][..., 0] * before[:, :, t] + share[1][..., 0] * previous)


@torch.no_grad()
def test_qk_norm() -> None:
    attention: Any = build(projection=["linear", "qk-norm"]).layers[0].attention
    x = draw_states(BATCH_SIZE, LENGTH, WIDTH)
    plain, normed = attention.projection(x, create_context()), attention.project(x, create_context())
    step = attention.projection_steps["qk-norm"]
    for before, after, scale in zip(plain[:2], normed[:2], (step.query_scale, step.key_scale), strict=True):
        assert_equal(after, F.rms_norm(before, (HEAD_DIM,), scale[0], eps=1e-6))
    assert_equal(normed[2], plain[2])


@torch.no_grad()
def test_differential_attention_is_that_of_transformers() -> None:
    """Equal head outputs, up to the order of their dimensions."""
    part, *_, heads = run_attention("differential", layer_index=1)
    config = transformers.DiffLlamaConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=HEADS, head_dim=HEAD_DIM
    )
    config._attn_implementation = "eager"
    theirs: Any = DiffLlamaAttention(config, layer_idx=1).double().eval()
    assert part.lambda_init == pytest.approx(lambda_init_fn(1))
    for name, vector in zip(("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"), part.vectors, strict=True):
        getattr(theirs, name).copy_(vector)
    for name in ("query", "key", "value"):
        getattr(theirs, f"{name[0]}_proj").weight.copy_(getattr(part.projection, name).weight)
    theirs.o_proj = nn.Identity()
    no_rotation = torch.ones(BATCH_SIZE, LENGTH, HEAD_DIM).double(), torch.zeros(BATCH_SIZE, LENGTH, HEAD_DIM).double()
    mask = torch.zeros(LENGTH, LENGTH).double().masked_fill(~CAUSAL, -torch.inf)[None, None]
    expected = theirs(draw_states(BATCH_SIZE, LENGTH, WIDTH), no_rotation, attention_mask=mask)[0]
    pairs = torch.cat(heads.chunk(2, dim=1), dim=-1)
    assert_equal(pairs.transpose(1, 2).flatten(2), expected, 1e-6)


@pytest.mark.parametrize("per", ["head", "element"])
@torch.no_grad()
def test_gated_attention(per: str) -> None:
    part: Any = build(merge={"kind": "gated", "per": per}).layers[0].attention.merge
    heads, x = draw_states(BATCH_SIZE, HEADS, LENGTH, HEAD_DIM), draw_states(BATCH_SIZE, LENGTH, WIDTH, seed=2)
    gates = 1 / (1 + torch.exp(-x @ part.gate.weight.T))
    gates = gates.repeat_interleave(HEAD_DIM, -1) if per == "head" else gates
    expected = heads.transpose(1, 2).flatten(2) * gates
    assert_equal(part(heads, x, create_context()).transpose(1, 2).flatten(2), expected)


@torch.no_grad()
def test_value_residual() -> None:
    model = build(projection=["linear", "value-residual"])
    context, x = create_context(), draw_states(BATCH_SIZE, LENGTH, WIDTH)
    layers: list[Any] = [layer.attention for layer in model.layers]
    first, second = (layer.project(x, context)[2] for layer in layers)
    share = layers[1].projection_steps["value-residual"].share
    assert_equal(first, layers[0].projection(x, context)[2])
    assert_equal(second, share[0] * layers[1].projection(x, context)[2] + share[1] * first)


@torch.no_grad()
def test_exclusive_attention() -> None:
    _, q, k, v, heads = run_attention("exclusive")
    plain = causal_softmax(compute_scores(q, k)) @ v
    expected = plain - (plain * v).sum(-1, keepdim=True) / v.square().sum(-1, keepdim=True) * v
    assert_equal(heads, expected)
    assert float((heads * v).sum(-1).abs().max()) < 1e-9


@torch.no_grad()
def test_scalable_softmax() -> None:
    part, q, k, v, heads = run_attention("scalable-softmax")
    num_keys = torch.arange(1, LENGTH + 1).double()
    scores = part.scale * num_keys.log()[:, None] * compute_scores(q, k)
    assert_equal(heads, causal_softmax(scores) @ v, 1e-6)


@torch.no_grad()
def test_forgetting_attention() -> None:
    part, q, k, v, heads = run_attention("forgetting")
    gates = part.forget(draw_states(BATCH_SIZE, LENGTH, WIDTH)).sigmoid()
    scores = compute_scores(q, k)
    for query in range(LENGTH):
        for key in range(query):
            scores[:, :, query, key] += gates[:, key + 1 : query + 1].prod(1).log()
    assert_equal(heads, causal_softmax(scores) @ v)


@torch.no_grad()
def test_linear_attention() -> None:
    """The recurrent form: one state for each head, updated at each token."""
    _, q, k, v, heads = run_attention("linear")
    q, k = F.elu(q) + 1, F.elu(k) + 1
    state, normalizer = (
        torch.zeros(BATCH_SIZE, HEADS, HEAD_DIM, HEAD_DIM).double(),
        torch.zeros(BATCH_SIZE, HEADS, HEAD_DIM).double(),
    )
    for t in range(LENGTH):
        state += k[:, :, t, :, None] * v[:, :, t, None, :]
        normalizer += k[:, :, t]
        expected = (q[:, :, t, None] @ state)[:, :, 0] / (q[:, :, t] * normalizer).sum(-1, keepdim=True)
        assert_equal(heads[:, :, t], expected)


@torch.no_grad()
def test_soft_caps() -> None:
    _, q, k, v, heads = run_attention({"kind": "softcap", "cap": 0.5})
    assert_equal(heads, causal_softmax(0.5 * torch.tanh(compute_scores(q, k) / 0.5)) @ v)
    model, plain = build(output=["linear", {"kind": "softcap", "cap": 1.5}]), build()
    plain.load_state_dict(model.state_dict())
    assert_equal(model(draw_ids()).logits, 1.5 * torch.tanh(plain(draw_ids()).logits / 1.5))


@torch.no_grad()
def test_talking_heads() -> None:
    part, q, k, v, heads = run_attention("talking-heads")
    mixed = torch.stack(
        [sum(part.before[g, h] * compute_scores(q, k)[:, g] for g in range(HEADS)) for h in range(HEADS)], dim=1
    )
    weights = causal_softmax(mixed)
    weights = torch.stack([sum(part.after[g, h] * weights[:, g] for g in range(HEADS)) for h in range(HEADS)], dim=1)
    assert_equal(heads, weights @ v)


@torch.no_grad()
def test_value_embeddings() -> None:
    """Every key head of the first layer has its own vector for a token; the second layer has none."""
    model = build(projection=[{"kind": "linear", "key_heads": 2}, "value-embedding"])
    x = draw_states(BATCH_SIZE, LENGTH, WIDTH)
    first, second = ((layer.attention, layer.attention.projection_steps["value-embedding"]) for layer in model.layers)
    vectors = first[1].table.weight[draw_ids()].view(BATCH_SIZE, LENGTH, 2, HEAD_DIM)
    value = first[0].projection(x, create_context())[2]
    expected = value + first[1].share * vectors.transpose(1, 2)
    assert_equal(first[0].project(x, create_context())[2], expected)
    assert_equal(second[0].project(x, create_context())[2], second[0].projection(x, create_context())[2])


@torch.no_grad()
def test_cross_layer_keys_and_values() -> None:
    model, context = build(projection="cross-layer"), create_context()
    x, y = draw_states(BATCH_SIZE, LENGTH, WIDTH), draw_states(BATCH_SIZE, LENGTH, WIDTH, seed=2)
    first, second = (
        layer.attention.project(states, context) for layer, states in zip(model.layers, (x, y), strict=True)
    )
    assert_equal(second[1], first[1])
    assert_equal(second[2], first[2])


@torch.no_grad()
def test_short_convolution_is_that_of_torch() -> None:
    """Every channel of every head has its own kernel."""
    attention: Any = build(projection=[{"kind": "linear", "key_heads": 2}, "short-convolution"]).layers[0].attention
    x = draw_states(BATCH_SIZE, LENGTH, WIDTH)
    plain, convolved = attention.projection(x, create_context()), attention.project(x, create_context())
    kernels = attention.projection_steps["short-convolution"].kernels
    for before, after, kernel in zip(plain, convolved, kernels, strict=True):
        columns = before.transpose(2, 3).flatten(1, 2)  # torch: batch x channels x length, latest token last
        weight = kernel.flatten(1).T.flip(1)[:, None]
        expected = F.conv1d(F.pad(columns, (2, 0)), weight, groups=columns.shape[1])
        assert_equal(after, expected.unflatten(1, before.shape[1::2]).transpose(2, 3))


@torch.no_grad()
def test_sigmoid_attention() -> None:
    _, q, k, v, heads = run_attention("sigmoid")
    scores, expected = compute_scores(q, k), torch.zeros_like(heads)
    for query in range(LENGTH):
        for key in range(query + 1):
            weight = 1 / (1 + (query + 1) * torch.exp(-scores[:, :, query, key]))
            expected[:, :, query] += weight[..., None] * v[:, :, key]
    assert_equal(heads, expected, 1e-6)


@torch.no_grad()
def test_softpick() -> None:
    part, q, k, v, heads = run_attention("softpick")
    differences = (compute_scores(q, k).exp() - 1) * CAUSAL
    expected = differences.relu() / (differences.abs().sum(-1, keepdim=True) + 1e-6) @ v
    assert_equal(heads, expected)
    large = torch.tensor([[1000.0, 999.0, -1000.0]])
    weights = part.weights(large, torch.ones(1, 3, dtype=torch.bool), create_context())
    assert weights[0].tolist() == pytest.approx([0.731059, 0.268941, 0.0], abs=1e-4)


@torch.no_grad()
def test_residual_scores() -> None:
    model, context = build(attention="residual-scores"), create_context()
    x, total = draw_states(BATCH_SIZE, LENGTH, WIDTH), torch.zeros(())
    for layer in model.layers:
        part: Any = layer.attention
        q, k, v = part.project(x, context)
        total = total + compute_scores(q, k)
        part.output = nn.Identity()
        heads = part(x, context).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
        assert_equal(heads, causal_softmax(total) @ v)


def test_reference_attention_is_the_class_that_examples_extend() -> None:
    """The helper above is right for attention without changes."""
    part, q, k, v, heads = run_attention("composed")
    assert type(part) is MultiHeadAttention
    assert_equal(heads, causal_softmax(compute_scores(q, k)) @ v)
