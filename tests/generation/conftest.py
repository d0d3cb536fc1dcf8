"""Small models to decode with: ours, and tiny random ones of transformers, made here from their configurations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from headtohead.config import model
from headtohead.model_factory import build_model
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.loading import PretrainedModel

VOCAB, CONTEXT = 97, 64


@pytest.fixture
def ours() -> Callable[..., Transformer]:
    """A small transformer of ours, woken up: at step 0 its distributions would all but coincide."""

    def build(**settings: Any) -> Transformer:
        plain = {"width": 32, "layers": 2, "heads": 4, "context": CONTEXT, **settings}
        made = build_model(model.TransformerConfig.model_validate(plain), VOCAB)
        assert isinstance(made, Transformer)
        return wake(made)

    return build


@pytest.fixture
def theirs() -> Callable[[str], PretrainedModel]:
    """A tiny random model of transformers, behind our protocol."""
    return lambda kind: PretrainedModel(KINDS[kind]())


def gpt2() -> nn.Module:
    return _made(
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config(
            vocab_size=VOCAB,
            n_positions=CONTEXT,
            n_embd=32,
            n_layer=2,
            n_head=4,
            bos_token_id=0,
            eos_token_id=0,
            tie_word_embeddings=False,  # tied and random, it would repeat one token for ever
        ),
    )


def llama() -> nn.Module:
    """With fewer key heads than query heads, as SmolLM2 has them."""
    return _made(
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


KINDS: dict[str, Callable[[], nn.Module]] = {"gpt2": gpt2, "llama": llama}


def _made(kind: Any, config: Any) -> nn.Module:
    torch.manual_seed(0)
    made: nn.Module = kind(config).eval()
    return wake(made)


def wake(model: Any) -> Any:
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.dim() > 1:
                tensor.mul_(4)
    return model.eval()
