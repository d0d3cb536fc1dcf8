"""Fuzz targets for files of models: tokenizer.json, config.json, safetensors, GGUF."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

from headtohead.errors import HeadToHeadError

from .sample_experiment import TEXT, build_sample_runs, replace_checksummed_file, replace_file, write_corpus
from .target import register_fuzz_target


def _build_tokenizer_files(scratch: Path) -> list[bytes]:
    from headtohead.config.tables import data as config_data
    from headtohead.data.sources import loading
    from headtohead.data.tokenization import tokenizers

    corpus_folder, tokenizer_files = write_corpus(scratch / "texts"), []
    for tokenizer_choice in ("words", "characters", "bytes", {"kind": "bpe", "vocab_size": 280}):
        data = config_data.DataConfig.model_validate({"source": str(corpus_folder), "tokenizer": tokenizer_choice})
        tokenizer_files.append(
            tokenizers.train_tokenizer(data, loading.load_corpus(data, has_labels=False)).save(scratch).read_bytes()
        )
    return tokenizer_files


@register_fuzz_target("tokenizer", _build_tokenizer_files)
def _load_tokenizer(data: bytes, scratch: Path) -> None:
    from headtohead.data.tokenization.tokenizers import CorpusTokenizer

    (scratch / "tokenizer.json").write_bytes(data)
    tokenizer = CorpusTokenizer.load(scratch)
    token_ids = tokenizer.encode(TEXT)
    assert all(0 <= token_id < tokenizer.vocab_size for token_id in token_ids)
    tokenizer.decode(token_ids)


@register_fuzz_target(
    "config",
    lambda scratch: [
        (build_sample_runs(scratch) / "baseline/seed-0/config.json").read_bytes(),
        b'{"model_type": "gpt2"}',
    ],
)
def _load_model_config(data: bytes, scratch: Path) -> None:
    from headtohead.pretrained import weights
    from headtohead.saved_models import model_io

    folder = build_sample_runs(scratch) / "baseline" / "seed-0"
    with replace_file(folder / "config.json", data):
        weights.locate_weights(folder)
        model_io.load_saved_model(folder)


def _build_tensor_files(scratch: Path) -> list[bytes]:
    run = build_sample_runs(scratch) / "baseline" / "seed-0"
    return [(run / name).read_bytes() for name in ("scores.safetensors", "maps.safetensors", "model.safetensors")]


@register_fuzz_target("safetensors", _build_tensor_files)
def _load_tensors(data: bytes, scratch: Path) -> None:
    from headtohead.attention_analysis import thumbnails
    from headtohead.experiment.run_folder import Run
    from headtohead.pretrained import weights
    from headtohead.saved_models import model_io

    run = build_sample_runs(scratch) / "baseline" / "seed-0"
    for name, read_tensors in (
        ("scores.safetensors", lambda: Run(run).scores),
        (
            "maps.safetensors",
            lambda: [
                thumbnails.render_thumbnails(maps)
                for maps in thumbnails.read_training_maps(build_sample_runs(scratch), ["baseline"]).values()
            ],
        ),
        ("model.safetensors", lambda: weights.locate_weights(run)),
        ("model.safetensors", lambda: model_io.load_saved_model(run)),
    ):
        with (
            replace_checksummed_file(build_sample_runs(scratch), f"baseline/seed-0/{name}", data),
            contextlib.suppress(HeadToHeadError),
        ):
            read_tensors()
    with replace_checksummed_file(build_sample_runs(scratch), "baseline/seed-0/model.safetensors", data):
        model_io.load_saved_model(run)


def _build_gguf_files(scratch: Path) -> list[bytes]:
    def pack_string(string: str) -> bytes:
        return struct.pack("<Q", len(string)) + string.encode()

    metadata = [
        pack_string("general.architecture") + struct.pack("<I", 8) + pack_string("llama"),
        pack_string("llama.context_length") + struct.pack("<II", 4, 128),
        pack_string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + pack_string("a") + pack_string("b"),
        pack_string("tokenizer.ggml.scores") + struct.pack("<IIQff", 9, 6, 2, 0.5, 1.5),
        pack_string("nested") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQB", 0, 1, 7),
    ]
    tensors = pack_string("token_embd.weight") + struct.pack("<IQQIQ", 2, 4, 2, 0, 0)
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, len(metadata)) + b"".join(metadata) + tensors
    return [header + bytes(-len(header) % 32) + bytes(32), b"GGUF" + struct.pack("<IQQ", 2, 0, 0)]


@register_fuzz_target("gguf", _build_gguf_files)
def _load_gguf(data: bytes, scratch: Path) -> None:
    from headtohead.pretrained import weights

    (scratch / "model.gguf").write_bytes(data)
    located = weights.locate_weights(scratch / "model.gguf")
    assert located.num_parameters <= 8 * len(data)
    weights.check_memory(located)
