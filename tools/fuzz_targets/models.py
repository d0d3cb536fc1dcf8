"""Files of models: tokenizer.json, config.json, safetensors, GGUF."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

from headtohead.errors import HeadToHeadError

from .sample_experiment import TEXT, replace_checked_file, replace_file, sample_runs, write_corpus
from .target import fuzz_target


def _tokenizers(scratch: Path) -> list[bytes]:
    from headtohead.config import data as config_data
    from headtohead.data import tokenizers
    from headtohead.data.sources import loading

    texts, folders = write_corpus(scratch / "texts"), []
    for tokens in ("words", "characters", "bytes", {"kind": "bpe", "vocab_size": 280}):
        data = config_data.DataConfig.model_validate({"source": str(texts), "tokenizer": tokens})
        folders.append(
            tokenizers.train_tokenizer(data, loading.load_corpus(data, has_labels=False)).save(scratch).read_bytes()
        )
    return folders


@fuzz_target("tokenizer", _tokenizers)
def _tokenizer(data: bytes, scratch: Path) -> None:
    from headtohead.data.tokenizers import CorpusTokenizer

    (scratch / "tokenizer.json").write_bytes(data)
    tokenizer = CorpusTokenizer.load(scratch)
    ids = tokenizer.encode(TEXT)
    assert all(0 <= token_id < tokenizer.vocab_size for token_id in ids)
    tokenizer.decode(ids)


@fuzz_target(
    "config",
    lambda scratch: [
        (sample_runs(scratch) / "baseline/seed-0/config.json").read_bytes(),
        b'{"model_type": "gpt2"}',
    ],
)
def _config(data: bytes, scratch: Path) -> None:
    from headtohead.pretrained import weights
    from headtohead.saved_models import model_io

    folder = sample_runs(scratch) / "baseline" / "seed-0"
    with replace_file(folder / "config.json", data):
        weights.locate_weights(folder)
        model_io.load(folder)


def _tensors(scratch: Path) -> list[bytes]:
    run = sample_runs(scratch) / "baseline" / "seed-0"
    return [(run / name).read_bytes() for name in ("scores.safetensors", "maps.safetensors", "model.safetensors")]


@fuzz_target("safetensors", _tensors)
def _safetensors(data: bytes, scratch: Path) -> None:
    from headtohead.attention_analysis import thumbnails
    from headtohead.experiment.run_folder import Run
    from headtohead.pretrained import weights
    from headtohead.saved_models import model_io

    run = sample_runs(scratch) / "baseline" / "seed-0"
    for name, read in (
        ("scores.safetensors", lambda: Run(run).scores),
        (
            "maps.safetensors",
            lambda: [
                thumbnails.render_layers(item)
                for item in thumbnails.read_training_maps(sample_runs(scratch), ["baseline"]).values()
            ],
        ),
        ("model.safetensors", lambda: weights.locate_weights(run)),
        ("model.safetensors", lambda: model_io.load(run)),
    ):
        with (
            replace_checked_file(sample_runs(scratch), f"baseline/seed-0/{name}", data),
            contextlib.suppress(HeadToHeadError),
        ):
            read()
    with replace_checked_file(sample_runs(scratch), "baseline/seed-0/model.safetensors", data):
        model_io.load(run)


def _gguf(scratch: Path) -> list[bytes]:
    def text(item: str) -> bytes:
        return struct.pack("<Q", len(item)) + item.encode()

    entries = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("llama.context_length") + struct.pack("<II", 4, 128),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b"),
        text("tokenizer.ggml.scores") + struct.pack("<IIQff", 9, 6, 2, 0.5, 1.5),
        text("nested") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQB", 0, 1, 7),
    ]
    tensors = text("token_embd.weight") + struct.pack("<IQQIQ", 2, 4, 2, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(entries)) + b"".join(entries) + tensors
    return [head + bytes(-len(head) % 32) + bytes(32), b"GGUF" + struct.pack("<IQQ", 2, 0, 0)]


@fuzz_target("gguf", _gguf)
def _gguf_door(data: bytes, scratch: Path) -> None:
    from headtohead.pretrained import weights

    (scratch / "model.gguf").write_bytes(data)
    located = weights.locate_weights(scratch / "model.gguf")
    assert located.num_parameters <= 8 * len(data)
    weights.check_memory(located)
