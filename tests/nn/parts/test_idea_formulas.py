"""Parts for published ideas equal another implementation, or a slow transcription of their formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from tools.catalog import EXAMPLE_PARTS_FOLDER
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention, lambda_init_fn
from transformers.models.t5.modeling_t5 import T5Attention

from headtohead.config.base import ComponentConfig
from headtohead.config.tables import model as config_model
from headtohead.model_factory import build_model
from headtohead.nn.parts import registry
from headtohead.nn.parts.attention import MultiHeadAttention
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.transformer import Transformer

VOCAB = 13
WIDTH = 16
HEADS = 4
HEAD_DIM = 4
LENGTH = 7
BATCH_SIZE = 2
CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
PLAIN_STACK = ComponentConfig(kind="sequential")


@pytest.fixture(autouse=True, scope="module")
def examples() -> Any:
    registry.load_builtin_parts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_registry", dict(registry._registry))
        patch.setattr(registry, "_plugin_files", dict(registry._plugin_files))
        for file in EXAMPLE_PARTS_FOLDER.glob("*.py"):
            registry.load_plugin(file)
        yield


def build(**settings: Any) -> Transformer:
    """Return a decoder of two layers in float64 whose parameters are all random."""
    small = {"width": WIDTH, "heads": HEADS, "layers": 2, "context": LENGTH, "position": "none"}
    config = config_model.TransformerConfig.model_validate({**small, **settings})
    model = build_model(config, VOCAB).double().eval()
    assert isinstance(model, Transformer)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def draw_ids(seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, (BATCH_SIZE, LENGTH), generator=torch.Generator().manual_seed(seed))


def draw_states(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def create_context(layer_index: int = 0, ids: Tensor | None = None) -> ForwardContext:
    context = ForwardContext.create(draw_ids() if ids is None else ids, layer_index=layer_index)
    context.attn_implementation = "eager"
    return context


def run_attention(kind: Any, layer_index: int = 0, **settings: Any) -> tuple[Any, Tensor, Tensor, Tensor, Tensor]:
    """Return an attention part, its queries, keys and values, and the head outputs before its output matrix."""
    model = build(attention=kind, **settings)
    part: Any = model.layers[layer_index].attention
    x, context = draw_states(BATCH_SIZE, LENGTH, WIDTH), create_context(layer_index)
    q, k, v = part.project(x, context)
    part.output = nn.Identity()
    heads = part(x, create_context(layer_index)).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
    return part, q, k, v, heads


def compute_scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2) / math.sqrt(HEAD_DIM)


def causal_softmax(scores: Tensor) -> Tensor:
    return scores.masked_fill(~CAUSAL, -torch.inf).softmax(-1)


def assert_equal(actual: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    assert actual.shape == expected.shape
    assert float((actual - expected).detach().abs().max()) < tolerance


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


# Norms and feed-forward layers


@torch.no_grad()
def test_dynamic_tanh() -> None:
    part: Any = build(norm="dynamic-tanh").final_norm
    x = draw_states(BATCH_SIZE, LENGTH, WIDTH)
    assert_equal(part(x, create_context()), part.scale * torch.tanh(part.alpha * x) + part.shift)


@torch.no_grad()
def test_layer_norm_scaling() -> None:
    model, x = build(norm="scaled-rms", layers=3), draw_states(BATCH_SIZE, LENGTH, WIDTH)
    norms: list[Any] = [layer.block.feed_norm for layer in model.layers]
    for number, part in enumerate(norms, start=1):
        expected = F.rms_norm(x, (WIDTH,), part.inner.weight, eps=1e-6) / math.sqrt(number)
        assert_equal(part(x, create_context()), expected)


@torch.no_grad()
def test_squared_relu_is_that_of_transformers() -> None:
    part: Any = build(feedforward={"kind": "mlp", "activation": "relu-squared"}).layers[0].feedforward
    x = draw_states(BATCH_SIZE, LENGTH, WIDTH)
    assert_equal(part(x, create_context()), part.down(ACT2FN["relu2"](part.up(x))))


@torch.no_grad()
def test_xielu_is_that_of_transformers() -> None:
    part: Any = build(feedforward="xielu").layers[0].feedforward
    theirs: Any = ACT2FN["xielu"]
    fresh: Any = build_model(config_model.TransformerConfig(feedforward={"kind": "xielu"}), VOCAB).layers[0].feedforward  # type: ignore[arg-type]
    assert float(fresh.positive) == pytest.approx(float(theirs.alpha_p), abs=0.01)
    theirs = theirs.double()
    theirs.alpha_p.copy_(part.positive)
    theirs.alpha_n.copy_(part.negative)
    theirs.beta, theirs.eps = theirs.beta.double(), theirs.eps.double()
    x = draw_states(BATCH_SIZE, LENGTH, WIDTH)
    assert_equal(part(x, create_context()), part.down(theirs(part.up(x))), 1e-6)


@torch.no_grad()
def test_mixture_of_experts() -> None:
    """Each token passes through one expert; the loss is the number of experts times sum(share * mean probability)."""
    part: Any = build(feedforward={"kind": "experts", "experts": 3, "balance": 1.0}).layers[0].feedforward
    x, context, counts = draw_states(BATCH_SIZE, LENGTH, WIDTH), create_context(), torch.zeros(3).double()
    context.is_training = True
    actual, probabilities = part(x, context), (x @ part.router.weight.T).softmax(-1)
    for row in range(BATCH_SIZE):
        for t in range(LENGTH):
            expert = int(probabilities[row, t].argmax())
            counts[expert] += 1
            output = part.down[expert](part.up[expert](x[row, t]).relu())
            assert_equal(actual[row, t], probabilities[row, t, expert] * output)
    expected = 3 * (counts / counts.sum() * probabilities.mean((0, 1))).sum()
    assert_equal(context.losses["load-balance"], expected)


def test_a_model_may_have_no_biases() -> None:
    model = build(
        norm={"kind": "layer", "bias": False},
        attention={"kind": "composed", "output_bias": False},
        feedforward={"kind": "mlp", "bias": False},
        output={"kind": "linear", "bias": False},
    )
    assert not [name for name, _ in model.named_parameters() if "bias" in name]


# Blocks and stacks


@pytest.mark.parametrize(
    ("kind", "formula"),
    [
        (
            "sandwich",
            lambda b, x, f, n: (
                x + getattr(b, f"{n}_output_norm")(f(getattr(b, f"{n}_norm")(x, create_context())), create_context())
            ),
        ),
        ("reordered", lambda b, x, f, n: x + getattr(b, f"{n}_norm")(f(x), create_context())),
        ("rezero", lambda b, x, f, n: x + b.scales[int(n == "feed")] * f(x)),
        (
            "layer-scale",
            lambda b, x, f, n: x + b.scales[int(n == "feed")] * f(getattr(b, f"{n}_norm")(x, create_context())),
        ),
        ("early-dropout", lambda b, x, f, n: x + f(getattr(b, f"{n}_norm")(x, create_context()))),
    ],
)
@torch.no_grad()
def test_blocks(kind: str, formula: Callable[..., Tensor]) -> None:
    block: Any = build(block=kind).layers[0].block
    x = draw_states(BATCH_SIZE, LENGTH, WIDTH)
    expected = formula(block, formula(block, x, torch.sin, "attention"), torch.cos, "feed")
    assert_equal(block(x, torch.sin, torch.cos, create_context()), expected)


@torch.no_grad()
def test_canon_layers_convolve_as_torch_does() -> None:
    block: Any = build(block="canon").layers[0].block
    x = draw_states(BATCH_SIZE, LENGTH, WIDTH)

    def convolve(x: Tensor, kernel: Tensor) -> Tensor:
        columns = F.pad(x.transpose(1, 2), (3, 0))
        return x + F.conv1d(columns, kernel.T.flip(1)[:, None], groups=WIDTH).transpose(1, 2)

    middle = x + torch.sin(convolve(block.attention_norm(x, create_context()), block.kernels[0]))
    expected = middle + torch.cos(convolve(block.feed_norm(middle, create_context()), block.kernels[1]))
    assert_equal(block(x, torch.sin, torch.cos, create_context()), expected)


def test_early_dropout() -> None:
    """The rate falls linearly to 0 over the training passes, and evaluations do not count."""
    block: Any = build(block={"kind": "early-dropout", "rate": 0.4, "steps": 4}).layers[0].block
    context, x, rates = create_context(), torch.ones(1, 1, WIDTH).double(), []
    for is_training in (True, False, True, True, True, True):
        context.is_training = is_training
        block(x, torch.sin, None, context)
        rates.append(block.drop.p)
    assert rates == pytest.approx([0.4, 0.3, 0.3, 0.2, 0.1, 0.0])


def build_stack(kind: Any) -> tuple[Any, Tensor, list[Callable[[Tensor, ForwardContext], Tensor]]]:
    layers = [lambda x, context: torch.sin(x), lambda x, context: torch.cos(x), lambda x, context: x * x]
    return build(stack=kind, layers=3).stack, draw_states(BATCH_SIZE, LENGTH, WIDTH), layers


@torch.no_grad()
def test_hyper_connections() -> None:
    stack, x, layers = build_stack({"kind": "hyper-connections", "streams": 2})
    streams = [x, x]
    for index, layer in enumerate(layers):
        changes = [torch.tanh(F.layer_norm(stream, (WIDTH,)) @ stack.dynamic[index]) for stream in streams]
        mix_scale, write_scale = stack.scale[index]
        reads = [stack.read[index, i] + mix_scale * changes[i][..., 0, None] for i in range(2)]
        writes = [stack.write[index, i] + write_scale * changes[i][..., 1, None] for i in range(2)]
        read = reads[0] * streams[0] + reads[1] * streams[1]
        change = layer(read, create_context()) - read
        mixed = [
            sum((stack.mix[index, i, j] + mix_scale * changes[i][..., 2 + j, None]) * streams[i] for i in range(2))
            for j in range(2)
        ]
        streams = [mixed[j] + writes[j] * change for j in range(2)]
    assert_equal(stack(x, layers, create_context()), (streams[0] + streams[1]) / 2)


def test_hyper_connections_start_as_residual_connections_and_their_streams_become_different() -> None:
    config = config_model.TransformerConfig.model_validate(
        {"width": WIDTH, "heads": HEADS, "layers": 3, "context": LENGTH, "stack": "hyper-connections"}
    )
    model, plain = build_model(config, VOCAB), build_model(config.model_copy(update={"stack": PLAIN_STACK}), VOCAB)
    stack: Any = model.stack
    assert_equal(model(draw_ids()).logits, plain(draw_ids()).logits, 1e-5)
    model(draw_ids()).logits.square().sum().backward()
    gradient = stack.write.grad
    assert float(gradient.std(dim=1).max()) > 1e-3 * float(gradient.abs().max())


@torch.no_grad()
def test_dense_former() -> None:
    stack, x, layers = build_stack("dense")
    shares = stack.shares
    first = shares[0][0] * x + shares[0][1] * torch.sin(x)
    second = shares[1][0] * x + shares[1][1] * torch.sin(x) + shares[1][2] * torch.cos(first)
    outputs = (x, torch.sin(x), torch.cos(first), second * second)
    expected = sum(share * output for share, output in zip(shares[2], outputs, strict=True))
    assert_equal(stack(x, layers, create_context()), expected)


@torch.no_grad()
def test_embedding_skip() -> None:
    stack, x, layers = build_stack("embedding-skip")
    y = x
    for layer, (share, embedding_share) in zip(layers, stack.shares, strict=True):
        y = layer(share * y + embedding_share * x, create_context())
    assert_equal(stack(x, layers, create_context()), y)


@torch.no_grad()
def test_unet_skips() -> None:
    """Of three layers, the last one also reads the output of the first."""
    stack, x, layers = build_stack("u-net")
    first = torch.sin(x)
    expected = (torch.cos(first) + stack.scale[0] * first) ** 2
    assert_equal(stack(x, layers, create_context()), expected)


@pytest.mark.parametrize(("kind", "order"), [("looped", [0, 1, 2, 0, 1, 2]), ("layer-sharing", [0, 0, 1, 1, 2, 2])])
@torch.no_grad()
def test_stacks_that_run_layers_twice(kind: str, order: list[int]) -> None:
    stack, x, layers = build_stack(kind)
    expected = x
    for index in order:
        expected = layers[index](expected, create_context())
    assert stack.depth == 6
    assert_equal(stack(x, layers, create_context()), expected)


def test_a_deep_and_thin_model_has_the_parameters_of_a_shallow_one() -> None:
    """Four layers of half the width have the matrices of one layer."""
    sizes = [
        sum(
            parameter.numel()
            for parameter in build(width=width, layers=layers).layers.parameters()
            if parameter.dim() > 1
        )
        for width, layers in ((2 * WIDTH, 1), (WIDTH, 4))
    ]
    assert sizes[0] == sizes[1]


# Embeddings


@torch.no_grad()
def test_token_shift() -> None:
    model = build(embedding=["table", "smear"])
    step: Any = model.embedding_steps["smear"]
    x = draw_states(BATCH_SIZE, LENGTH, WIDTH)
    expected = x.clone()
    for t in range(1, LENGTH):
        expected[:, t] += step.scale * torch.sigmoid(x[:, t] @ step.gate.weight.T) * x[:, t - 1]
    assert_equal(step(x, create_context()), expected)


@torch.no_grad()
def test_bigram_embeddings() -> None:
    step: Any = build(embedding=["table", {"kind": "bigrams", "rows": 31}]).embedding_steps["bigrams"]
    x, ids = draw_states(BATCH_SIZE, LENGTH, WIDTH), draw_ids()
    expected = x.clone()
    for row in range(BATCH_SIZE):
        for t in range(LENGTH):
            previous = int(ids[row, t - 1]) + 1 if t else 0
            expected[row, t] += step.table.weight[(previous * VOCAB + int(ids[row, t])) % 31]
    assert_equal(step(x, create_context()), expected)


@torch.no_grad()
def test_embedding_scale() -> None:
    model = build(embedding=["table", "scale"])
    embedded = model.embedding_steps["scale"](model.embedding(draw_ids(), create_context()), create_context())
    assert_equal(embedded, math.sqrt(WIDTH) * model.embedding.weight[draw_ids()])
    small: Any = build_model(
        config_model.TransformerConfig.model_validate({"width": 64, "embedding": {"kind": "table", "std": 0.08}}), 5000
    )
    assert float(small.embedding.weight.detach().std()) == pytest.approx(0.08, rel=0.02)


def test_reference_attention_is_the_class_that_examples_extend() -> None:
    """The helper above is right for attention without changes."""
    part, q, k, v, heads = run_attention("composed")
    assert type(part) is MultiHeadAttention
    assert_equal(heads, causal_softmax(compute_scores(q, k)) @ v)
