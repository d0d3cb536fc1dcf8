"""Maps of our models: complete, cut and padded as said, and never an empty picture."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headtohead.attention_analysis import api, maps
from headtohead.config import model as config_model
from headtohead.errors import HeadToHeadError, ModelError
from headtohead.model_factory import build_model
from headtohead.nn.protocol import ModelOutput
from headtohead.saved_models import model_io

TEXT = "the people will build new schools ."
Runs = dict[str, Path]


def test_every_layer_and_head_is_there_with_its_tokens(decoders: Runs) -> None:
    seen = api.analyze_attention(decoders["baseline"], TEXT)
    assert [one.shape for one in seen.maps] == [(2, 7, 7)] * 2
    assert seen.tokens == tuple(TEXT.split())
    assert seen.title == "baseline, seed 0"
    assert np.abs(np.stack(seen.maps).sum(-1) - 1).max() < 1e-6
    assert not np.triu(np.stack(seen.maps), 1).any(), "a decoder does not look ahead"


def test_the_maps_are_the_models_own(decoders: Runs) -> None:
    opened = model_io.load(decoders["alibi"])
    with torch.no_grad():
        expected = opened.model(torch.tensor([opened.tokenizer.encode(TEXT)]), output_attentions=True).attentions
    for ours, theirs in zip(api.analyze_attention(opened, TEXT).maps, expected, strict=True):
        assert np.array_equal(ours, theirs[0].numpy())


def test_a_model_in_training_is_looked_at_without_its_dropout_and_left_in_training() -> None:
    settings = config_model.TransformerConfig(width=16, layers=2, heads=2, context=12, dropout=0.5)
    model = build_model(settings, 20, seed=0)
    reading = maps.EncodedText("", (1, 2, 3, 4, 5), tuple("abcde"))
    quiet = maps.compute_attention_maps(model.eval(), reading)
    noisy = maps.compute_attention_maps(model.train(), reading)
    assert np.array_equal(quiet.layers[1], noisy.layers[1])
    assert model.training


def test_a_text_longer_than_the_context_is_cut_and_said_so(decoders: Runs) -> None:
    seen = api.analyze_attention(decoders["baseline"], " ".join(["people will build"] * 10))
    assert len(seen.tokens) == 12
    (note,) = seen.notes
    assert note == "The text is truncated to the first 12 of its 30 tokens: the model's context is 12."


def test_unknown_words_are_counted(decoders: Runs) -> None:
    assert api.analyze_attention(decoders["baseline"], "the qqq people zzz").notes == (
        "2 words are unknown to the model.",
    )


def test_padding_has_no_weight_and_changes_nothing(classifiers: Runs) -> None:
    bare = api.analyze_attention(classifiers["baseline"], TEXT, pad=False)
    whole = api.analyze_attention(classifiers["baseline"], TEXT, pad=True)
    assert (len(bare.tokens), len(whole.tokens)) == (7, 12)
    assert whole.shown.real.tolist() == [True] * 7 + [False] * 5
    for one, other in zip(bare.maps, whole.maps, strict=True):
        assert not other[:, :7, 7:].any()
        assert np.abs(one - other[:, :7, :7]).max() < 1e-6


def test_a_classifier_is_shown_with_a_strip_of_padding_unless_it_reads_all_of_it(classifiers: Runs) -> None:
    assert len(api.analyze_attention(classifiers["baseline"], TEXT).tokens) == 9
    seen = api.analyze_attention(classifiers["seen"], TEXT)
    assert len(seen.tokens) == 12
    failed = next(check for check in seen.checks if check.name == "nothing on padding")
    assert failed.passed is False
    assert "on padding" in failed.observation


def test_one_layer_and_one_head_keep_their_numbers(decoders: Runs) -> None:
    whole = api.analyze_attention(decoders["baseline"], TEXT)
    seen = api.analyze_attention(decoders["baseline"], TEXT, layer=2, head=1)
    assert np.array_equal(seen.maps[0], whole.maps[1][:1])
    assert [(row.layer, row.head) for row in seen.measures] == [(2, 1)]
    assert seen.measures[0] == whole.measures[2]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"layer": 3}, "no layer 3; allowed: 1 to 2"),
        ({"layer": 0}, "no layer 0; allowed: 1 to 2"),
        ({"head": 5}, "no head 5; allowed: 1 to 2"),
        ({"before_training": True, "compare_to": "x"}, "exclude each other"),
    ],
)
def test_what_is_not_there_is_refused(decoders: Runs, asked: dict[str, int], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        api.analyze_attention(decoders["baseline"], TEXT, **asked)


@pytest.mark.parametrize(("text", "words"), [("", "the text is empty"), (" \n ", "empty"), ("qqq zzz", "every word")])
def test_a_text_with_nothing_to_look_at_is_refused(decoders: Runs, text: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        api.analyze_attention(decoders["baseline"], text)


def test_a_run_folder_without_weights_is_named(decoders: Runs, tmp_path: Path) -> None:
    shutil.copytree(decoders["baseline"], tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(HeadToHeadError, match=r"model\.safetensors not found"):
        api.analyze_attention(tmp_path / "run", TEXT)
    with pytest.raises(HeadToHeadError, match="has no config"):
        api.analyze_attention(decoders["baseline"].parent, TEXT)


def test_before_and_after_training_are_of_the_same_run(decoders: Runs) -> None:
    seen = api.analyze_attention(decoders["baseline"], TEXT, before_training=True)
    assert [one.name for one in seen.panels] == ["before training", "after training"]
    assert not np.array_equal(seen.panels[0].layers[0], seen.panels[1].layers[0])
    assert np.array_equal(seen.maps[0], api.analyze_attention(decoders["baseline"], TEXT).maps[0])
    first = model_io.load(decoders["baseline"], use_initial_weights=True)
    assert np.array_equal(seen.panels[0].layers[1], api.analyze_attention(first, TEXT).maps[1])


def test_the_difference_is_the_second_minus_the_first(decoders: Runs) -> None:
    seen = api.analyze_attention(decoders["baseline"], TEXT, compare_to=decoders["alibi"])
    one, other, apart = seen.panels
    assert apart.name == "alibi, seed 0 − baseline, seed 0"
    assert apart.is_difference
    assert np.allclose(apart.layers[1], other.layers[1] - one.layers[1])
    assert set(seen.measures_by_panel) == {"baseline, seed 0", "alibi, seed 0"}


def test_models_that_cannot_be_compared_are_told_why(decoders: Runs, classifiers: Runs) -> None:
    with pytest.raises(
        ModelError, match="2 layers x 2 heads, wide, seed 0 has 2 layers x 4 heads: maps cannot be subtracted"
    ):
        api.analyze_attention(decoders["baseline"], TEXT, compare_to=decoders["wide"])
    with pytest.raises(ModelError, match="both models are the same"):
        api.analyze_attention(decoders["baseline"], TEXT, compare_to=decoders["baseline"])
    with pytest.raises(ModelError, match=r"differently \(7 and 9 tokens, first difference at token 8\)"):
        api.analyze_attention(decoders["baseline"], TEXT, compare_to=classifiers["alibi"])


class Silent(nn.Module):
    """A model on a fused road: it is asked for maps and gives none."""

    context = 12

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *, output_attentions: bool = False
    ) -> ModelOutput:
        return ModelOutput(torch.zeros(*input_ids.shape, 3), () if output_attentions else None)


def test_a_model_without_maps_is_an_error_and_no_empty_picture(decoders: Runs) -> None:
    reading = maps.encode_text(model_io.load(decoders["baseline"]).tokenizer, TEXT, 12)
    with pytest.raises(ModelError, match="returns no attention maps"):
        maps.compute_attention_maps(Silent(), reading)


def test_tokens_show_spaces_and_line_ends() -> None:
    assert [maps.format_token(one) for one in ("Ġthe", "▁the", "Ċ", "a\tb", "")] == ["␣the", "␣the", "⏎", "a⇥b", "∅"]
