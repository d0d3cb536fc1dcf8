"""Model sizes equal published parameter counts exactly, and costs equal a formula derived by hand."""

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from headtohead import model_cost
from headtohead.config.tables.model import CustomModelConfig, TransformerConfig
from headtohead.config.tables.training import TrainingConfig
from headtohead.model_cost import compute_model_cost
from headtohead.model_factory import build_model

VOCAB = 5755
DECODER = {"feedforward": {"kind": "mlp", "hidden": 100}}
ENCODER: dict[str, Any] = {}
# Report A: q, k and v of total width 4 (two heads of 2), feed-forward 100, no final norm in the encoder.
DECODER_A = {"head_dim": 2, "feedforward": {"kind": "mlp", "hidden": 100}}
ENCODER_A = {**DECODER_A, "final_norm": False}


def build_config(settings: dict[str, Any]) -> TransformerConfig:
    return TransformerConfig.model_validate(settings)


@pytest.mark.parametrize(
    ("settings", "classes", "published"),
    [
        (DECODER, None, 863_243),
        (ENCODER, 3, 576_467),
        (DECODER_A, None, 801_803),
        (ENCODER_A, 3, 434_403),
    ],
    ids=["B decoder", "B classifier", "A decoder", "A classifier"],
)
def test_published_parameter_counts_are_reproduced(
    settings: dict[str, Any], classes: int | None, published: int
) -> None:
    assert compute_model_cost(build_config(settings), VOCAB, classes).parameters == published
    real = build_model(build_config(settings), VOCAB, classes)
    assert sum(parameter.numel() for parameter in real.parameters()) == published


@pytest.mark.parametrize(
    ("settings", "published"), [(ENCODER, 569_664), (ENCODER_A, 427_600)], ids=["B encoder", "A encoder"]
)
def test_published_parameter_counts_without_the_classifier(settings: dict[str, Any], published: int) -> None:
    model = build_model(build_config(settings), VOCAB, 3)
    head = sum(p.numel() for name, p in model.named_parameters() if name.startswith("classifier"))
    assert head == 64 * 100 + 100 + 100 * 3 + 3
    assert sum(p.numel() for p in model.parameters()) - head == published


def count_flops_by_hand(width: int, layers: int, hidden: int, out: int, num_keys: int) -> int:
    """Count one multiplication and one addition per weight and token, and two per pair of query and key (scores and
    values).
    """
    projections = 4 * width * width
    feedforward = 2 * width * hidden
    attention = 2 * num_keys * width
    return 2 * (layers * (projections + feedforward + attention) + width * out)


def test_flops_of_the_base_decoder_are_those_of_the_formula() -> None:
    counted = compute_model_cost(build_config(DECODER), VOCAB)
    assert counted.flops_per_token == count_flops_by_hand(64, 4, 100, VOCAB, num_keys=32)


def test_flops_of_the_base_classifier_are_those_of_the_formula() -> None:
    counted = compute_model_cost(build_config(ENCODER), VOCAB, 3)
    head = 2 * (64 * 100 + 100 * 3)  # once per sequence
    assert counted.flops_per_token == (count_flops_by_hand(64, 4, 256, 0, num_keys=32) * 32 + head) // 32


@pytest.mark.parametrize("context", [64, 256, 1024])
def test_flops_of_a_window_do_not_grow_with_the_context(context: int) -> None:
    """A block of 16 queries attends to itself and to the preceding block, however long the text is."""
    windowed = build_config(
        {**DECODER, "context": context, "position": "alibi", "pattern": {"kind": "window", "size": 9}}
    )
    full = build_config({**DECODER, "context": context, "position": "alibi"})
    assert compute_model_cost(windowed, VOCAB).flops_per_token == count_flops_by_hand(64, 4, 100, VOCAB, num_keys=32)
    assert compute_model_cost(full, VOCAB).flops_per_token == count_flops_by_hand(64, 4, 100, VOCAB, num_keys=context)


@pytest.mark.parametrize("classes", [None, 3])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"heads": 4, "projection": {"kind": "linear", "key_heads": 1, "bias": True}},
        {"projection": {"kind": "mlp", "depth": 2}, "norm": "rms", "feedforward": "swiglu"},
        {"position": ["alibi", "rope"], "block": "parallel", "feedforward": "none", "merge": "shuffle"},
        {
            "embedding_norm": True,
            "classifier_hidden": None,
            "pool": "attention",
            "output": {"kind": "linear", "bias": False},
        },
        {"tie_word_embeddings": True},
    ],
    ids=str,
)
def test_count_agrees_with_the_real_model(settings: dict[str, Any], classes: int | None) -> None:
    counted = compute_model_cost(build_config(settings), 101, classes, training=TrainingConfig(batch_size=8))
    real = build_model(build_config(settings), 101, classes)
    parameters = sum(parameter.numel() for parameter in real.parameters())
    assert counted.parameters == parameters
    assert counted.weights_bytes == sum(p.numel() * p.element_size() for p in real.parameters())
    activations = counted.training_bytes - 16 * parameters
    assert activations == pytest.approx(1.4 * 8 / 2 * count_saved_bytes(real, classes), rel=0.05)


def count_saved_bytes(model: torch.nn.Module, classes: int | None) -> int:
    """Return the bytes that a real forward pass over two rows saves for the backward pass, excluding weights."""
    storages: dict[int, torch.UntypedStorage] = {}

    def record(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    ids = torch.arange(64).reshape(2, 32)
    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        model(ids) if classes else model.compute_hidden_states(ids)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    return sum(storage.nbytes() for address, storage in storages.items() if address not in weights)


def test_tied_weights_are_counted_once() -> None:
    untied = compute_model_cost(build_config({"output": {"kind": "linear", "bias": False}}), VOCAB).parameters
    assert (
        compute_model_cost(
            build_config({"output": {"kind": "linear", "bias": False}, "tie_word_embeddings": True}), VOCAB
        ).parameters
        == untied - VOCAB * 64
    )


def test_counting_allocates_no_weights() -> None:
    """A model of 100 billion parameters is counted without allocating memory."""
    big = build_config({"width": 36864, "layers": 5, "heads": 96, "context": 16, "position": "rope"})
    assert compute_model_cost(big, 50_000).parameters > 80e9


@pytest.mark.parametrize("settings", [DECODER, {"position": ["sinusoidal", "rope"], "projection": "mlp"}], ids=str)
def test_flops_are_those_of_the_counter_of_torch_with_and_without_values(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = build_model(build_config(settings), 101)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        network(torch.zeros(1, 32, dtype=torch.long))
    expected = counter.get_total_flops() // 32
    assert compute_model_cost(build_config(settings), 101).flops_per_token == expected
    monkeypatch.setattr(model_cost, "MAX_ALLOCATED_PRODUCT", 0)
    assert compute_model_cost(build_config(settings), 101).flops_per_token == expected


def test_counting_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    compute_model_cost(build_config(DECODER), VOCAB)
    assert torch.equal(before, torch.get_rng_state())


class NeedsValues(torch.nn.Module):
    """Reads a tensor value and creates a tensor without a device, which fails on the meta device."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.embedding, self.output = torch.nn.Embedding(vocab_size, 8), torch.nn.Linear(8, vocab_size, bias=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(input_ids) * (1.0 + 0 * input_ids.float().mean().item())
        x = x + torch.arange(input_ids.shape[1]).float()[:, None]
        query = x[:, None]
        x = torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)[:, 0]
        logits: torch.Tensor = self.output(x)
        return logits


class NeedsTwoRows(NeedsValues):
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        assert len(input_ids) > 1
        return super().forward(input_ids)


class NeedsFiveRows(NeedsValues):
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        assert len(input_ids) > 4
        return super().forward(input_ids)


@pytest.mark.parametrize(("network", "flops"), [("NeedsValues", 688), ("NeedsTwoRows", 688), ("NeedsFiveRows", None)])
def test_code_of_users_runs_on_a_real_device_or_is_not_counted(network: str, flops: int | None) -> None:
    config = CustomModelConfig(module=f"{__file__}:{network}", context=16)
    cost = compute_model_cost(config, 11)
    assert cost.flops_per_token == flops  # 2 * 8 * 11 for the output, 2 * 2 * 16 * 8 for the attention
    assert cost.parameters == 2 * 8 * 11


@pytest.mark.parametrize(
    ("options", "smallest", "largest"),
    [
        ({"gradient_accumulation_steps": 4}, 0.249, 0.251),
        ({"gradient_checkpointing": True}, 0.2, 0.6),
        ({"precision": "bf16"}, 0.7, 0.95),
    ],
)
def test_options_that_save_memory_are_counted(options: dict[str, Any], smallest: float, largest: float) -> None:
    training = {"batch_size": 64}
    counted, plain = (
        compute_model_cost(build_config(DECODER), VOCAB, training=TrainingConfig(**training, **changes))
        for changes in (options, {})
    )
    weights = 16 * plain.parameters
    assert smallest < (counted.training_bytes - weights) / (plain.training_bytes - weights) < largest
