"""Every field of a configuration is either read, or refused if it could change what the model computes."""

from typing import Any

import pytest
import transformers
from tests.exchange.tiny_models import build_tiny_model

from headtohead.errors import ModelError
from headtohead.exchange.architectures.architecture import IGNORED_FIELDS, Architecture
from headtohead.exchange.architectures.registry import ARCHITECTURES
from headtohead.exchange.conversion.from_transformers import convert_to_parts, read_model_structure
from tools import exchange_table


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda architecture: architecture.model_type)
def test_every_field_is_accounted_for(architecture: Architecture) -> None:
    read_names = {name for group in architecture.field_groups for name in group.names}
    known_names = read_names | set(architecture.required_fields) | architecture.ignored_fields | IGNORED_FIELDS
    fields = transformers.CONFIG_MAPPING[architecture.model_type]().to_dict()
    assert set(fields) - known_names - {"is_encoder_decoder"} == set()


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("gpt2", {"activation_function": "mish"}, "activation_function = 'mish'"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10.0, "factor": 2.0}}, "'dynamic'"),
        ("llama", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ("qwen2", {"layer_types": ["full_attention", "linear_attention", "full_attention"]}, "'linear_attention'"),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm"),
        ("falcon, 7B", {"alibi": True}, "alibi"),
        ("mpt", {"attn_config": {"clip_qkv": 2.0}}, "attn_config.clip_qkv"),
        ("bert", {"is_decoder": True}, "is_decoder"),
        ("roberta", {"pad_token_id": 3}, "pad_token_id = 3"),
    ],
)
def test_fields_without_a_match_are_rejected(name: str, changes: dict[str, Any], message: str) -> None:
    model: Any = build_tiny_model(name)
    for field, value in changes.items():
        setattr(model.config, field, value)
    with pytest.raises(ModelError, match=f"(?s){message}.*no match"):
        read_model_structure(model)


def test_new_fields_are_rejected_unless_they_have_their_default() -> None:
    llama = next(architecture for architecture in ARCHITECTURES if architecture.model_type == "llama")
    config = build_tiny_model("llama").config.to_dict()  # type: ignore[union-attr, operator]
    defaults = {**config, "residual_gates": False}
    llama.read_structure({**config, "residual_gates": False}, defaults)
    with pytest.raises(ModelError, match="residual_gates = True has no match"):
        llama.read_structure({**config, "residual_gates": True}, defaults)


def test_unknown_architectures_are_rejected_by_name() -> None:
    config = transformers.OPTConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    with pytest.raises(ModelError, match="model type 'opt' cannot be imported"):
        convert_to_parts(transformers.OPTForCausalLM(config))


def test_guide_lists_the_architectures_of_the_code() -> None:
    documented_types = exchange_table.list_documented_types()
    assert sorted(documented_types) == sorted(architecture.model_type for architecture in ARCHITECTURES)
