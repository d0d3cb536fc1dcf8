"""Attention maps of our models: all layers and heads, truncation, padding, differences and missing maps."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headtohead.attention_analysis import maps
from headtohead.attention_analysis.analysis import analyze_attention
from headtohead.config.tables import model as config_model
from headtohead.errors import HeadToHeadError, ModelError
from headtohead.model_factory import build_model
from headtohead.nn.protocol import ModelOutput
from headtohead.saved_models import model_io

TEXT = "the people will build new schools ."
RunFolders = dict[str, Path]


def test_maps_have_every_layer_and_head_and_the_tokens(decoders: RunFolders) -> None:
    attention = analyze_attention(decoders["baseline"], TEXT)
    assert [weights.shape for weights in attention.maps] == [(2, 7, 7)] * 2
    assert attention.tokens == tuple(TEXT.split())
    assert attention.title == "baseline, seed 0"
    assert np.abs(np.stack(attention.maps).sum(-1) - 1).max() < 1e-6
    assert not np.triu(np.stack(attention.maps), 1).any(), "a decoder does not attend to later tokens"


def test_maps_are_the_attentions_that_the_model_returns(decoders: RunFolders) -> None:
    loaded = model_io.load_saved_model(decoders["alibi"])
    with torch.no_grad():
        expected = loaded.model(torch.tensor([loaded.tokenizer.encode(TEXT)]), output_attentions=True).attentions
    for ours, theirs in zip(analyze_attention(loaded, TEXT).maps, expected, strict=True):
        assert np.array_equal(ours, theirs[0].numpy())


def test_maps_are_computed_without_dropout_and_training_mode_is_restored() -> None:
    settings = config_model.TransformerConfig(width=16, layers=2, heads=2, context=12, dropout=0.5)
    model = build_model(settings, 20, seed=0)
    encoded_text = maps.EncodedText("", (1, 2, 3, 4, 5), tuple("abcde"))
    eval_maps = maps.compute_attention_maps(model.eval(), encoded_text)
    training_maps = maps.compute_attention_maps(model.train(), encoded_text)
    assert np.array_equal(eval_maps.weights_by_layer[1], training_maps.weights_by_layer[1])
    assert model.training


def test_a_text_longer_than_the_context_is_truncated_with_a_note(decoders: RunFolders) -> None:
    attention = analyze_attention(decoders["baseline"], " ".join(["people will build"] * 10))
    assert len(attention.tokens) == 12
    (note,) = attention.notes
    assert note == "The text is truncated to the first 12 of its 30 tokens: the model's context is 12."


def test_unknown_words_are_counted(decoders: RunFolders) -> None:
    assert analyze_attention(decoders["baseline"], "the qqq people zzz").notes == ("2 words are unknown to the model.",)


def test_padding_gets_no_weight_and_does_not_change_the_maps(classifiers: RunFolders) -> None:
    unpadded = analyze_attention(classifiers["baseline"], TEXT, pad=False)
    padded = analyze_attention(classifiers["baseline"], TEXT, pad=True)
    assert (len(unpadded.tokens), len(padded.tokens)) == (7, 12)
    assert padded.analyzed_maps.attention_mask.tolist() == [True] * 7 + [False] * 5
    for unpadded_weights, padded_weights in zip(unpadded.maps, padded.maps, strict=True):
        assert not padded_weights[:, :7, 7:].any()
        assert np.abs(unpadded_weights - padded_weights[:, :7, :7]).max() < 1e-6


def test_classifiers_are_shown_with_some_padding_or_all_of_it_if_unmasked(classifiers: RunFolders) -> None:
    assert len(analyze_attention(classifiers["baseline"], TEXT).tokens) == 9
    attention = analyze_attention(classifiers["unmasked"], TEXT)
    assert len(attention.tokens) == 12
    padding_check = next(check for check in attention.checks if check.name == "nothing on padding")
    assert padding_check.passed is False
    assert "on padding" in padding_check.observation


def test_selected_layer_and_head_have_their_original_numbers(decoders: RunFolders) -> None:
    all_heads = analyze_attention(decoders["baseline"], TEXT)
    attention = analyze_attention(decoders["baseline"], TEXT, layer=2, head=1)
    assert np.array_equal(attention.maps[0], all_heads.maps[1][:1])
    assert [(head.layer, head.head) for head in attention.measures] == [(2, 1)]
    assert attention.measures[0] == all_heads.measures[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 3}, "no layer 3; allowed: 1 to 2"),
        ({"layer": 0}, "no layer 0; allowed: 1 to 2"),
        ({"head": 5}, "no head 5; allowed: 1 to 2"),
        ({"before_training": True, "compare_to": "x"}, "mutually exclusive"),
    ],
)
def test_invalid_selections_are_rejected(decoders: RunFolders, options: dict[str, int], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        analyze_attention(decoders["baseline"], TEXT, **options)


@pytest.mark.parametrize(("text", "message"), [("", "the text is empty"), (" \n ", "empty"), ("qqq zzz", "every word")])
def test_empty_and_unknown_texts_are_rejected(decoders: RunFolders, text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        analyze_attention(decoders["baseline"], text)


def test_a_run_folder_without_weights_is_reported(decoders: RunFolders, tmp_path: Path) -> None:
    shutil.copytree(decoders["baseline"], tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(HeadToHeadError, match=r"model\.safetensors not found"):
        analyze_attention(tmp_path / "run", TEXT)
    with pytest.raises(HeadToHeadError, match=r"config\.json not found"):
        analyze_attention(decoders["baseline"].parent, TEXT)


def test_before_and_after_training_are_of_the_same_run(decoders: RunFolders) -> None:
    attention = analyze_attention(decoders["baseline"], TEXT, before_training=True)
    assert [panel.name for panel in attention.panels] == ["before training", "after training"]
    assert not np.array_equal(attention.panels[0].weights_by_layer[0], attention.panels[1].weights_by_layer[0])
    assert np.array_equal(attention.maps[0], analyze_attention(decoders["baseline"], TEXT).maps[0])
    initial_model = model_io.load_saved_model(decoders["baseline"], use_initial_weights=True)
    assert np.array_equal(attention.panels[0].weights_by_layer[1], analyze_attention(initial_model, TEXT).maps[1])


def test_the_difference_is_the_second_minus_the_first(decoders: RunFolders) -> None:
    attention = analyze_attention(decoders["baseline"], TEXT, compare_to=decoders["alibi"])
    first, second, difference = attention.panels
    assert difference.name == "alibi, seed 0 − baseline, seed 0"
    assert difference.is_difference
    expected = second.weights_by_layer[1] - first.weights_by_layer[1]
    assert np.allclose(difference.weights_by_layer[1], expected)
    assert set(attention.metrics_by_panel) == {"baseline, seed 0", "alibi, seed 0"}


def test_models_that_cannot_be_compared_are_reported(decoders: RunFolders, classifiers: RunFolders) -> None:
    with pytest.raises(
        ModelError, match="2 layers x 2 heads, wide, seed 0 has 2 layers x 4 heads: maps cannot be subtracted"
    ):
        analyze_attention(decoders["baseline"], TEXT, compare_to=decoders["wide"])
    with pytest.raises(ModelError, match="both models are the same"):
        analyze_attention(decoders["baseline"], TEXT, compare_to=decoders["baseline"])
    with pytest.raises(ModelError, match=r"differently \(7 and 9 tokens, first difference at token 8\)"):
        analyze_attention(decoders["baseline"], TEXT, compare_to=classifiers["alibi"])


class ModelWithoutMaps(nn.Module):
    """A model with a fused attention implementation that does not return attention weights."""

    context = 12

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *, output_attentions: bool = False
    ) -> ModelOutput:
        return ModelOutput(torch.zeros(*input_ids.shape, 3), () if output_attentions else None)


def test_a_model_that_returns_no_maps_is_an_error(decoders: RunFolders) -> None:
    encoded_text = maps.encode_text(model_io.load_saved_model(decoders["baseline"]).tokenizer, TEXT, 12)
    with pytest.raises(ModelError, match="returns no attention maps"):
        maps.compute_attention_maps(ModelWithoutMaps(), encoded_text)


def test_tokens_show_whitespace_as_symbols() -> None:
    assert [maps.format_token(token) for token in ("Ġthe", "▁the", "Ċ", "a\tb", "")] == [
        "␣the",
        "␣the",
        "⏎",
        "a⇥b",
        "∅",
    ]
