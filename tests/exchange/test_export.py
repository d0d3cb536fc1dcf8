"""Models exported to transformers compute the same outputs as models of parts."""

from typing import Any

import pytest
import torch
from tests.exchange.tiny_models import MODELS, build_tiny_model

from headtohead.config.tables.model import TransformerConfig
from headtohead.exchange.architectures.architecture import NoMatchError
from headtohead.exchange.conversion.from_transformers import convert_to_parts
from headtohead.exchange.conversion.output_difference import measure_output_difference
from headtohead.exchange.conversion.to_transformers import convert_to_transformers, find_architecture
from headtohead.model_factory import build_model
from headtohead.nn.transformer import Transformer

TOLERANCE = 2e-5
SCALED_ROPE = ("llama, llama3 rope", "llama, yarn", "gpt_oss, yarn")


@pytest.mark.parametrize("name", [name for name in MODELS if name not in SCALED_ROPE])
def test_import_and_export_return_the_same_model(name: str) -> None:
    original: Any = build_tiny_model(name)
    parts_model, _ = convert_to_parts(original)
    architecture, structure, config = find_architecture(parts_model, original.config.model_type)
    exported = convert_to_transformers(parts_model, architecture, structure, config)
    assert type(exported) is type(original)
    assert measure_output_difference(exported, parts_model) < TOLERANCE
    assert set(exported.state_dict()) == set(original.state_dict())


GPT2_LIKE = {"feedforward": {"kind": "mlp", "activation": "gelu"}, "output": {"kind": "linear", "bias": False}}
QK_NORM = {"kind": "qk-norm", "over": "all-heads"}
LLAMA_LIKE = {
    "position": "rope",
    "norm": "rms",
    "attention": {"kind": "composed", "output_bias": False},
    "feedforward": "swiglu",
    "output": {"kind": "linear", "bias": False},
}


@pytest.mark.parametrize(
    ("settings", "title"),
    [
        (GPT2_LIKE, "GPT-2"),
        ({**GPT2_LIKE, "projection": {"kind": "linear", "bias": True}, "tie_word_embeddings": True}, "GPT-2"),
        (LLAMA_LIKE, "Llama"),
        ({**LLAMA_LIKE, "pattern": {"kind": "window", "size": 4}}, "Mistral"),
        ({**LLAMA_LIKE, "pattern": {"layers": ["causal", {"kind": "window", "size": 4}]}}, "Qwen 2"),
        ({**LLAMA_LIKE, "projection": ["linear", "qk-norm"]}, "Qwen 3"),
        (
            {**LLAMA_LIKE, "block": "reordered", "projection": ["linear", {"kind": "qk-norm", "over": "all-heads"}]},
            "OLMo 2",
        ),
        ({**LLAMA_LIKE, "output": [{"kind": "linear", "bias": False}, {"kind": "scale", "by": 0.5}]}, "Granite"),
        ({"position": {"kind": "rope", "fraction": 0.5}, "block": "parallel"}, "Phi"),
    ],
)
def test_models_of_parts_become_the_first_architecture_that_has_them(settings: dict[str, Any], title: str) -> None:
    model_config = TransformerConfig.model_validate({"width": 32, "heads": 4, "layers": 2, "context": 40, **settings})
    model = build_model(model_config, 23, seed=1)
    assert isinstance(model, Transformer)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    architecture, structure, config = find_architecture(model.eval())
    assert architecture.title == title
    exported = convert_to_transformers(model, architecture, structure, config)
    assert measure_output_difference(exported, model) < TOLERANCE


def test_the_reason_for_no_match_is_none_that_zero_biases_resolve() -> None:
    """GPT-2 has biases of queries, which may be zeros; it has no bias of the logits."""
    model = build_model(TransformerConfig.model_validate({"width": 32, "heads": 4}), 23)
    assert isinstance(model, Transformer)
    with pytest.raises(NoMatchError, match="gpt2 has output_bias = False, but the model has True"):
        find_architecture(model, "gpt2")
