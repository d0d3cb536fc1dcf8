"""Small models for decoding: our own, and tiny random models of transformers built from their configurations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from headtohead.config.tables import model
from headtohead.model_factory import build_model
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.pretrained_model import PretrainedModel

VOCAB = 97
CONTEXT = 64


@pytest.fixture
def ours() -> Callable[..., Transformer]:
    """Return a small transformer with enlarged weights: at step 0 its distributions would be nearly uniform."""

    def build(**settings: Any) -> Transformer:
        all_settings = {"width": 32, "layers": 2, "heads": 4, "context": CONTEXT, **settings}
        transformer = build_model(model.TransformerConfig.model_validate(all_settings), VOCAB)
        assert isinstance(transformer, Transformer)
        return enlarge_weights(transformer)

    return build


@pytest.fixture
def theirs() -> Callable[[str], PretrainedModel]:
    """Return a tiny random model of transformers behind our protocol."""
    return lambda kind: PretrainedModel(MODEL_BUILDERS[kind]())


def gpt2() -> nn.Module:
    return _build_transformers_model(
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config(
            vocab_size=VOCAB,
            n_positions=CONTEXT,
            n_embd=32,
            n_layer=2,
            n_head=4,
            bos_token_id=0,
            eos_token_id=0,
            tie_word_embeddings=False,  # a tied random model would repeat one token forever
        ),
    )


def llama() -> nn.Module:
    """Return a Llama with fewer key heads than query heads, as in SmolLM2."""
    return _build_transformers_model(
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig(
            vocab_size=VOCAB,
            max_position_embeddings=CONTEXT,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            bos_token_id=0,
            eos_token_id=0,
        ),
    )


MODEL_BUILDERS: dict[str, Callable[[], nn.Module]] = {"gpt2": gpt2, "llama": llama}


def _build_transformers_model(model_class: Any, config: Any) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = model_class(config).eval()
    return enlarge_weights(model)


def enlarge_weights(model: Any) -> Any:
    """Multiply the weight matrices by 4, so that distributions are far from uniform."""
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.dim() > 1:
                tensor.mul_(4)
    return model.eval()
