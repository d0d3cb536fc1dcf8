"""Exports for onnxruntime, llama.cpp and TransformerLens compute the outputs of the models of parts."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.exchange.tiny_runs import SIZES, build_tokenizer, write_run
from typer.testing import CliRunner

from headtohead.cli import app
from headtohead.config.experiment import Trial
from headtohead.config.tables.model import TransformerConfig
from headtohead.data.tokenization.tokenizers import CorpusTokenizer, train_bpe_tokenizer
from headtohead.errors import MissingExtraError, ModelError, RequestError
from headtohead.exchange.architectures.architecture import NoMatchError
from headtohead.exchange.checkpoint_import import import_checkpoint
from headtohead.exchange.export import onnx_folder
from headtohead.exchange.export.run_export import export_run
from headtohead.model_factory import build_model
from headtohead.nn.parts import registry
from headtohead.saved_models import model_io

TOLERANCE = 2e-5
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "parts"
GPT2_LIKE = {"feedforward": {"kind": "mlp", "activation": "gelu-tanh"}, "output": {"kind": "linear", "bias": False}}
LLAMA_LIKE = {
    "position": "rope",
    "norm": "rms",
    "attention": {"kind": "composed", "output_bias": False},
    "feedforward": "swiglu",
    "output": {"kind": "linear", "bias": False},
}
GROUPED = {"kind": "linear", "key_heads": 2, "bias": True}


# GGUF


@pytest.mark.parametrize(
    ("settings", "model_type", "title"),
    [
        (GPT2_LIKE, None, "GPT-2"),
        ({**GPT2_LIKE, "tie_word_embeddings": True}, None, "GPT-2"),
        (LLAMA_LIKE, None, "Llama"),
        ({**LLAMA_LIKE, "projection": GROUPED, "attention": "composed", "head_dim": 12}, None, "Llama"),
        ({**LLAMA_LIKE, "projection": GROUPED}, "qwen2", "Qwen 2"),
        ({**LLAMA_LIKE, "projection": ["linear", "qk-norm"], "tie_word_embeddings": True}, None, "Qwen 3"),
    ],
)
def test_gguf_file_is_read_as_the_same_model(
    settings: dict[str, Any], model_type: str | None, title: str, tmp_path: Path
) -> None:
    """transformers, whose reader undoes the changes of llama.cpp's converter, computes the same."""
    model = write_run(tmp_path / "run", settings)
    exported = export_run(tmp_path / "run", "gguf", tmp_path / "out", model_type=model_type)
    assert exported.architecture == f"{title} in GGUF"
    assert exported.max_difference < TOLERANCE
    if settings is LLAMA_LIKE:  # of others, transformers does not read all sizes from the file
        imported = import_checkpoint(str(tmp_path / "out" / "model.gguf"), tmp_path / "imported")
        ids = torch.randint(2, 22, (2, SIZES["context"]))
        loaded: Any = model_io.load_saved_model(imported.folder).model
        assert (loaded(ids).logits - model(ids).logits).abs().max() < TOLERANCE


def test_gguf_file_contains_byte_level_tokenizers(tmp_path: Path) -> None:
    import gguf

    tokenizer = CorpusTokenizer(
        train_bpe_tokenizer(["low lower lowest newer wider"] * 9, vocab_size=280, add_bos_eos=True)
    )
    config = TransformerConfig.model_validate({**SIZES, **LLAMA_LIKE})
    model = build_model(config, tokenizer.vocab_size, seed=1).eval()
    trial = Trial.model_validate(
        {"task": "language-model", "variant": "v", "seed": 0, "data": {}, "model": config, "training": {}}
    )
    (tmp_path / "run").mkdir()
    model_io.save_model(tmp_path / "run", model, tokenizer, trial, ())
    export_run(tmp_path / "run", "gguf", tmp_path / "out")
    fields = {name: field.contents() for name, field in gguf.GGUFReader(tmp_path / "out" / "model.gguf").fields.items()}
    assert fields["tokenizer.ggml.model"] == "gpt2"
    assert fields["tokenizer.ggml.tokens"] == [tokenizer.id_to_token(index) for index in range(tokenizer.vocab_size)]
    assert len(fields["tokenizer.ggml.merges"]) == tokenizer.vocab_size - 256 - 3
    assert fields["tokenizer.ggml.bos_token_id"] == tokenizer.bos_id
    assert fields["tokenizer.ggml.token_type"][:4] == [3, 3, 3, 1]  # padding, start and stop are control tokens


def test_gguf_file_without_a_byte_level_tokenizer_takes_token_ids_only(tmp_path: Path) -> None:
    import gguf

    write_run(tmp_path / "run", LLAMA_LIKE)
    export_run(tmp_path / "run", "gguf", tmp_path / "out")
    fields = gguf.GGUFReader(tmp_path / "out" / "model.gguf").fields
    assert fields["tokenizer.ggml.model"].contents() == "none"
    assert fields["llama.vocab_size"].contents() == build_tokenizer(has_start_token=False).vocab_size
    assert CorpusTokenizer.load(tmp_path / "out" / "tokenizer.json").vocab_size == 22


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {**GPT2_LIKE, "feedforward": {"kind": "mlp", "activation": "gelu"}},
            "gpt2: llama.cpp supports activation_fun",
        ),
        ({**LLAMA_LIKE, "pattern": {"layers": ["causal", {"kind": "window", "size": 4}]}}, "qwen2: llama.cpp supports"),
        ({**LLAMA_LIKE, "norm": "none"}, "norm 'none' has no match"),
    ],
)
def test_models_that_llama_cpp_would_compute_differently_are_refused(
    settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    write_run(tmp_path / "run", settings)
    with pytest.raises(NoMatchError, match=f"no architecture of llama.cpp has the parts of this model:(.|\n)*{reason}"):
        export_run(tmp_path / "run", "gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_architectures_without_gguf_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run", LLAMA_LIKE)
    with pytest.raises(RequestError, match="--architecture bloom: not available for GGUF"):
        export_run(tmp_path / "run", "gguf", tmp_path / "out", model_type="bloom")


# ONNX


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {**LLAMA_LIKE, "projection": [{"kind": "linear", "key_heads": 2}, "qk-norm"], "output": ["linear", "softcap"]},
        {"position": ["alibi", "relative"], "pattern": {"kind": "window", "size": 5}, "merge": "causal-reweight"},
        {"attention": "talking-heads", "position": "kerple-log", "projection": ["linear", "short-convolution"]},
    ],
    ids=["defaults", "many parts", "biases", "parts of users"],
)
def test_onnx_model_computes_the_same(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra onnx)")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed (extra onnx)")
    registry.load_builtin_parts()
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    monkeypatch.setattr(registry, "_plugin_files", dict(registry._plugin_files))
    for name in ("talking_heads", "kerple", "short_convolution"):
        registry.load_plugin(EXAMPLES / f"{name}.py")
    model = write_run(tmp_path / "run", settings)
    assert export_run(tmp_path / "run", "onnx", tmp_path / "out").max_difference < TOLERANCE
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    for batch_size, length in ((3, 9), (1, 1), (2, SIZES["context"])):
        ids = torch.randint(2, 22, (batch_size, length), generator=torch.Generator().manual_seed(0))
        mask = torch.ones_like(ids)
        mask[:1, : length // 2] = 0  # padding at the start, as in batched generation
        (logits,) = session.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
        assert (torch.from_numpy(logits) - model(ids, mask).logits)[mask.bool()].abs().max() < TOLERANCE


def test_onnx_classifier_ignores_padding(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra onnx)")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed (extra onnx)")
    config = TransformerConfig.model_validate({**SIZES, "pool": "attention"})
    model: Any = build_model(config, 22, 3, seed=1).eval()
    trial = Trial.model_validate(
        {"task": "classify", "variant": "v", "seed": 0, "data": {}, "model": config, "training": {}}
    )
    (tmp_path / "run").mkdir()
    model_io.save_model(tmp_path / "run", model, build_tokenizer(has_start_token=False), trial, ("a", "b", "c"))
    assert export_run(tmp_path / "run", "onnx", tmp_path / "out").max_difference < TOLERANCE


def test_parts_that_read_values_cannot_be_converted_to_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra onnx)")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed (extra onnx)")

    def forward(self: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids).logits
        return logits if int(input_ids.max()) > 3 else 2 * logits

    monkeypatch.setattr(onnx_folder.OnnxModel, "forward", forward)
    write_run(tmp_path / "run", {})
    with pytest.raises(ModelError, match=r"torch\.export cannot trace one of its parts"):
        export_run(tmp_path / "run", "onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# TransformerLens


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("settings", [GPT2_LIKE, LLAMA_LIKE])
def test_transformer_lens_computes_the_same(settings: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("transformer_lens", reason="TransformerLens is not installed (extra transformer-lens)")
    write_run(tmp_path / "run", settings)
    assert export_run(tmp_path / "run", "transformer-lens", tmp_path / "out").max_difference < TOLERANCE


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"norm": "none"}, "norm 'none' has no match"),
        (
            {**LLAMA_LIKE, "attention": {"kind": "differential", "eps": 1e-6, "output_bias": False}},
            "TransformerLens does not support DiffLlamaForCausalLM",
        ),
    ],
)
def test_models_without_an_architecture_in_transformer_lens_are_refused(
    settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    pytest.importorskip("transformer_lens", reason="TransformerLens is not installed (extra transformer-lens)")
    write_run(tmp_path / "run", settings)
    with pytest.raises(NoMatchError, match=reason):
        export_run(tmp_path / "run", "transformer-lens", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# all formats


@pytest.mark.parametrize(
    ("format_name", "package", "extra"),
    [("onnx", "onnxruntime", "onnx"), ("transformer-lens", "transformer_lens.model_bridge", "transformer-lens")],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    format_name: str, package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'headtohead\[{extra}\]'"):
        export_run(tmp_path, format_name, tmp_path / "out")


def test_the_command_prints_the_difference(tmp_path: Path) -> None:
    write_run(tmp_path / "run", LLAMA_LIKE)
    result = CliRunner().invoke(
        app, ["export", str(tmp_path / "run"), "--to", "gguf", "--out", str(tmp_path / "out")], env={"COLUMNS": "300"}
    )
    assert result.exit_code == 0, result.output
    assert "Llama in GGUF" in result.output
    assert "largest difference of outputs on random tokens: 0.0e+00" in result.output
