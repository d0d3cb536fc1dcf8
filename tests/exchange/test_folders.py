"""Import and export of whole folders, through the command line."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from tests.exchange.tiny_models import VOCAB, build_tiny_model
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from headtohead.cli import app
from headtohead.data.tokenization.tokenizers import CorpusTokenizer
from headtohead.errors import ModelError, RequestError
from headtohead.exchange.checkpoint_import import import_checkpoint
from headtohead.exchange.export.transformers_folder import export_to_transformers
from headtohead.generation.generate import generate
from headtohead.generation.prompt_encoding import encode_prompt
from headtohead.model_factory import build_model
from headtohead.nn.transformer import Transformer
from headtohead.saved_models.inference import score_text
from headtohead.saved_models.model_io import SavedModel
from headtohead.saved_models.open_model import open_model
from headtohead.tasks.pretraining import load_encoder

TEXT = "w4 w5 w9 w30 w7 w7 w12"


def write_checkpoint(name: str, folder: Path, *, adds_bos: bool = False) -> Any:
    """Write a tiny model with a tokenizer of words, and return it."""
    tokens = ["</s>", "<unk>", "<s>", *(f"w{i}" for i in range(3, VOCAB - 3))]
    words = {word: index for index, word in enumerate(tokens)}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 2)])
    model: Any = build_tiny_model(name)
    model.save_pretrained(folder)
    special = {"eos_token": "</s>", "unk_token": "<unk>", **({"bos_token": "<s>"} if adds_bos else {})}
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder)
    return model


def run_command(*arguments: str) -> Any:
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@torch.no_grad()
def test_imported_decoder_is_used_and_exported_like_a_run(tmp_path: Path) -> None:
    theirs = write_checkpoint("qwen3", tmp_path / "theirs")
    imported = run_command("import", str(tmp_path / "theirs"), "--out", str(tmp_path / "ours"))
    assert imported["architecture"] == "Qwen 3" and imported["max_difference"] < 2e-5
    bundle = open_model(tmp_path / "ours")
    ids = torch.tensor([bundle.tokenizer.encode(TEXT)])
    expected = theirs(input_ids=ids).logits
    assert (bundle.model(ids).logits - expected).abs().max() < 2e-5
    losses = [token.loss for token in score_text(bundle, TEXT).tokens]
    expected_losses = torch.nn.functional.cross_entropy(expected[0, :-1], ids[0, 1:], reduction="none")
    assert losses == pytest.approx(expected_losses.tolist(), abs=1e-4)
    continuation = theirs.generate(ids, max_new_tokens=6, do_sample=False)[0, ids.shape[1] :].tolist()
    assert generate(bundle, [ids[0].tolist()], "greedy", max_new_tokens=6)[0].ids == tuple(continuation)

    exported = run_command(
        "export", str(tmp_path / "ours"), "--out", str(tmp_path / "again"), "--architecture", "qwen3"
    )
    assert exported["architecture"] == "Qwen 3" and exported["max_difference"] < 2e-5
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    assert type(again) is type(theirs)
    assert (again(input_ids=ids).logits - expected).abs().max() < 2e-5
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert tokenizer(TEXT)["input_ids"] == ids[0].tolist()
    assert tokenizer.eos_token == "</s>" and again.config.eos_token_id == 0


@pytest.mark.parametrize("adds_bos", [False, True])
def test_imported_decoders_read_the_start_token_that_their_tokenizer_adds(adds_bos: bool, tmp_path: Path) -> None:
    write_checkpoint("llama", tmp_path / "theirs", adds_bos=adds_bos)
    import_checkpoint(str(tmp_path / "theirs"), tmp_path / "ours")
    imported, pretrained = open_model(tmp_path / "ours"), open_model(tmp_path / "theirs")
    scores = [score_text(bundle, TEXT) for bundle in (imported, pretrained)]
    assert [token.token for token in scores[0].tokens] == [token.token for token in scores[1].tokens]
    assert len(scores[0].tokens) == len(TEXT.split()) - (not adds_bos)
    assert scores[0].loss == pytest.approx(scores[1].loss, abs=1e-4)
    prompts = [encode_prompt(bundle.tokenizer, TEXT) for bundle in (imported, pretrained)]
    assert prompts[0] == prompts[1]


@torch.no_grad()
def test_encoder_without_a_head_is_imported(tmp_path: Path) -> None:
    theirs = write_checkpoint("bert, no head", tmp_path / "theirs")
    result = import_checkpoint(str(tmp_path / "theirs"), tmp_path / "ours")
    assert not result.has_head and result.max_difference < 2e-5
    bundle = open_model(tmp_path / "ours")
    ids = torch.tensor([bundle.tokenizer.encode(TEXT)])
    assert (bundle.model(ids).logits - theirs(input_ids=ids).last_hidden_state).abs().max() < 2e-5
    with pytest.raises(ModelError, match="a model without a head has no perplexity"):
        score_text(bundle, TEXT)


@torch.no_grad()
def test_an_imported_encoder_initializes_a_classifier(tmp_path: Path) -> None:
    theirs = write_checkpoint("bert", tmp_path / "theirs")
    import_checkpoint(str(tmp_path / "theirs"), tmp_path / "ours")
    encoder = open_model(tmp_path / "ours")
    assert isinstance(encoder, SavedModel)
    settings = encoder.trial.model.model_copy(update={"init_from": str(tmp_path / "ours")})
    trial = encoder.trial.model_copy(update={"task": "classify", "model": settings})
    classifier = build_model(settings, VOCAB, 3)
    assert isinstance(classifier, Transformer)
    dataset: Any = SimpleNamespace(tokenizer=CorpusTokenizer.load(tmp_path / "ours" / "tokenizer.json"))
    load_encoder(classifier, trial, dataset, lambda *_: pytest.fail("the encoder must not be trained"))
    ids = torch.tensor([encoder.tokenizer.encode(TEXT)])
    expected = theirs.bert(input_ids=ids).last_hidden_state
    assert (classifier.eval()(ids).last_hidden_state - expected).abs().max() < 2e-5


def test_output_folders_must_be_empty(tmp_path: Path) -> None:
    write_checkpoint("gpt2", tmp_path / "theirs")
    with pytest.raises(RequestError, match="theirs is not empty"):
        import_checkpoint(str(tmp_path / "theirs"), tmp_path / "theirs")
    import_checkpoint(str(tmp_path / "theirs"), tmp_path / "ours")
    with pytest.raises(RequestError, match="theirs is not empty"):
        export_to_transformers(tmp_path / "ours", tmp_path / "theirs")


def test_vocabulary_of_the_tokenizer_must_fit(tmp_path: Path) -> None:
    write_checkpoint("gpt2", tmp_path / "theirs")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    tokenizer.add_tokens([f"new{i}" for i in range(20)])
    tokenizer.save_pretrained(tmp_path / "theirs")
    with pytest.raises(ModelError, match="the tokenizer has 54 tokens, the model only 37"):
        import_checkpoint(str(tmp_path / "theirs"), tmp_path / "ours")


def test_refused_architectures_are_explained(tmp_path: Path) -> None:
    write_checkpoint("gpt2", tmp_path / "theirs")
    import_checkpoint(str(tmp_path / "theirs"), tmp_path / "ours")
    with pytest.raises(ModelError, match="llama has position = 'rope', but the model has 'learned'"):
        export_to_transformers(tmp_path / "ours", tmp_path / "out", model_type="llama")
    with pytest.raises(ModelError, match="'lama' cannot be imported; did you mean 'llama'"):
        export_to_transformers(tmp_path / "ours", tmp_path / "out", model_type="lama")


def test_runs_without_a_matching_architecture_are_exported_with_their_code(tmp_path: Path) -> None:
    write_checkpoint("llama, llama3 rope", tmp_path / "theirs")
    import_checkpoint(str(tmp_path / "theirs"), tmp_path / "ours")
    result = export_to_transformers(tmp_path / "ours", tmp_path / "out")
    assert result.architecture == "own modeling file" and result.max_difference < 2e-5
    assert {"config.json", "model.safetensors", "modeling_headtohead.py", "tokenizer.json"} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }
