"""Run folders of tiny random models."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from headtohead.config.experiment import Trial
from headtohead.config.tables.model import TransformerConfig
from headtohead.data.tokenization.tokenizers import CorpusTokenizer
from headtohead.model_factory import build_model
from headtohead.nn.transformer import Transformer
from headtohead.saved_models import model_io

SIZES = {"width": 32, "heads": 4, "layers": 2, "context": 16}


def build_tokenizer(*, has_start_token: bool) -> CorpusTokenizer:
    """Return a tokenizer of 20 words w0 to w19, with or without start and stop tokens."""
    tokens = ["<pad>", "<unk>", *(["<s>", "</s>"] if has_start_token else []), *(f"w{i}" for i in range(20))]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(tokens)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return CorpusTokenizer(backend)


def write_run(folder: Path, settings: dict[str, Any], *, has_start_token: bool = False) -> Transformer:
    """Write the run folder of a random model with these settings, and return the model."""
    tokenizer = build_tokenizer(has_start_token=has_start_token)
    config = TransformerConfig.model_validate({**SIZES, **settings})
    model = build_model(config, tokenizer.vocab_size, seed=1)
    assert isinstance(model, Transformer)
    torch.manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.25)
    trial = Trial.model_validate(
        {"task": "language-model", "variant": "v", "seed": 0, "data": {}, "model": config, "training": {}}
    )
    folder.mkdir(parents=True)
    model_io.save_model(folder, model.eval(), tokenizer, trial, ())
    return model
