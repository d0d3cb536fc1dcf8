"""Parts for published ideas on other slots equal another implementation, or a slow transcription of their formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.nn.parts.idea_models import (
    BATCH_SIZE,
    HEADS,
    LENGTH,
    VOCAB,
    WIDTH,
    assert_equal,
    build,
    create_context,
    draw_ids,
    draw_states,
)
from tools.catalog import EXAMPLE_PARTS_FOLDER
from torch import Tensor
from torch.nn import functional as F
from transformers.activations import ACT2FN

from headtohead.config.base import ComponentConfig
from headtohead.config.tables import model as config_model
from headtohead.model_factory import build_model
from headtohead.nn.parts import registry
from headtohead.nn.parts.context import ForwardContext

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


# Norms and feed-forward layers


@torch.no_grad()
def test_dynamic_tanh() -> None:
    part: Any = build(norm="dynamic-tanh").final_norm
    x = draw_states(BATCH_SIZE, LENGTH, WIDTH)
    assert_equal(part(x, create_context()), part.scale * torch.tanh(part.alpha * x) + part.shift)


@torch.no_grad()
def test_derf() -> None:
    part: Any = build(norm="derf").final_norm
    x = draw_states(BATCH_SIZE, LENGTH, WIDTH)
    arguments = (part.alpha * x + part.start).flatten().tolist()
    values = torch.tensor([math.erf(argument) for argument in arguments], dtype=torch.float64)
    assert_equal(part(x, create_context()), part.scale * values.view_as(x) + part.shift)


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


def test_blocks_may_differ_between_layers() -> None:
    model = build(layers=4, block={"layers": ["post", "pre", "pre", "pre"]})
    assert [layer.block.kind for layer in model.layers] == ["post", "pre", "pre", "pre"]


@torch.no_grad()
def test_stochastic_depth() -> None:
    """Sequences skip a sublayer with the probability of their layer; the expected output is that of evaluation."""
    rates = [layer.block.rate for layer in build(block={"kind": "stochastic-depth", "rate": 0.4}).layers]
    assert rates == pytest.approx([0.2, 0.4])
    block: Any = build(block={"kind": "stochastic-depth", "rate": 0.4}).layers[1].block
    x, context = torch.ones(4000, 1, WIDTH).double(), create_context()
    change = block.attention_norm(x, context)[0, 0]
    assert_equal(block(x, torch.sin, None, context)[0, 0], 1 + torch.sin(change))
    context.is_training = True
    torch.manual_seed(0)
    outputs = block(x, torch.sin, None, context)[:, 0]
    is_skipped = (outputs == 1).all(-1)
    assert float(is_skipped.double().mean()) == pytest.approx(0.4, abs=0.03)
    assert_equal(outputs[~is_skipped], (1 + torch.sin(change) / 0.6).expand_as(outputs[~is_skipped]))


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
def test_attention_residuals() -> None:
    stack, x, layers = build_stack("attention-residuals")
    added = [x]
    for index in range(4):
        scores = [(stack.queries[index] * F.rms_norm(y, (WIDTH,))).sum(-1, keepdim=True).exp() for y in added]
        read = sum(score * y for score, y in zip(scores, added, strict=True)) / sum(scores)
        if index < 3:
            added.append(layers[index](read, create_context()) - read)
    assert_equal(stack(x, layers, create_context()), read)


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
def test_factorized_embedding() -> None:
    part: Any = build(embedding={"kind": "factorized", "size": 3}).embedding
    matrix = part.table.weight @ part.projection.weight.T
    assert matrix.shape == (VOCAB, WIDTH)
    assert_equal(part(draw_ids(), create_context()), matrix[draw_ids()])


@torch.no_grad()
def test_embedding_scale() -> None:
    model = build(embedding=["table", "scale"])
    embedded = model.embedding_steps["scale"](model.embedding(draw_ids(), create_context()), create_context())
    assert_equal(embedded, math.sqrt(WIDTH) * model.embedding.weight[draw_ids()])
    small: Any = build_model(
        config_model.TransformerConfig.model_validate({"width": 64, "embedding": {"kind": "table", "std": 0.08}}), 5000
    )
    assert float(small.embedding.weight.detach().std()) == pytest.approx(0.08, rel=0.02)
