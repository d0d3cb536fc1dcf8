"""Folders with their own modeling file: transformers computes the same, without this package."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from headtohead.config.tables.model import TransformerConfig
from headtohead.exchange.export.modeling_file import load_with_modeling_file, write_with_modeling_file
from headtohead.model_factory import build_model
from headtohead.nn.parts import registry
from headtohead.nn.transformer import Transformer

ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = 2e-5
VOCAB = 23
LENGTH = 40
MODEL_SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "many parts": {
        "position": ["learned", "alibi", "rope"],
        "pattern": {"layers": [["causal", {"kind": "window", "size": 5}], "causal"]},
        "projection": [{"kind": "linear", "key_heads": 2}, "qk-norm"],
        "merge": ["shuffle", "causal-reweight"],
        "attention": "softcap",
        "feedforward": "swiglu",
        "norm": "rms",
        "block": "sandwich",
        "embedding": ["table", "scale"],
        "embedding_norm": True,
        "output": ["linear", "softcap"],
        "tie_word_embeddings": True,
    },
    "embedding size": {"embedding_width": 12, "position": "relative", "projection": "mlp", "block": "parallel"},
    "user parts": {"attention": "talking-heads", "position": "kerple-log", "feedforward": "experts"},
}
PLUGINS = ("talking_heads", "kerple", "mixture_of_experts")


@pytest.fixture(autouse=True)
def restore_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.load_builtin_parts()
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    monkeypatch.setattr(registry, "_plugin_files", dict(registry._plugin_files))


def build_transformer(
    settings: dict[str, Any], num_classes: int | None = None, *, is_causal: bool | None = None
) -> Transformer:
    for plugin in PLUGINS:
        registry.load_plugin(ROOT / f"docs/examples/parts/{plugin}.py")
    config = TransformerConfig.model_validate({"width": 32, "heads": 4, "layers": 2, "context": LENGTH, **settings})
    model = build_model(config, VOCAB, num_classes, is_causal=is_causal, seed=1)
    assert isinstance(model, Transformer)
    return model.eval()


@pytest.mark.parametrize("name", MODEL_SETTINGS)
@torch.no_grad()
def test_exported_code_computes_the_same(name: str, tmp_path: Path) -> None:
    model = build_transformer(MODEL_SETTINGS[name])
    write_with_modeling_file(model, tmp_path, (), {})
    assert "headtohead." not in (tmp_path / "modeling_headtohead.py").read_text(encoding="utf-8")
    exported = load_with_modeling_file(tmp_path)
    input_ids = torch.randint(VOCAB, (3, LENGTH), generator=torch.Generator().manual_seed(2))
    attention_mask = torch.ones_like(input_ids)
    attention_mask[1, :7] = 0
    expected = model(input_ids, attention_mask).logits
    assert (exported(input_ids, attention_mask=attention_mask).logits - expected)[
        attention_mask.bool()
    ].abs().max() < TOLERANCE
    greedy = exported.generate(input_ids[:1, :5], max_new_tokens=4, do_sample=False)
    for position in range(5, 9):
        assert greedy[0, position] == model(greedy[:, :position]).logits[0, -1].argmax()


@pytest.mark.parametrize("num_classes", [None, 3])
@torch.no_grad()
def test_exported_encoders_compute_the_same(num_classes: int | None, tmp_path: Path) -> None:
    model = build_transformer({"pool": "attention"}, num_classes, is_causal=False)
    write_with_modeling_file(model, tmp_path, ("a", "b", "c")[: num_classes or 0], {})
    input_ids = torch.randint(VOCAB, (3, LENGTH))
    attention_mask = torch.ones_like(input_ids)
    attention_mask[1, 11:] = 0
    difference = (
        load_with_modeling_file(tmp_path)(input_ids, attention_mask=attention_mask).logits
        - model(input_ids, attention_mask).logits
    )
    assert (difference if num_classes else difference[attention_mask.bool()]).abs().max() < TOLERANCE


CHILD_SCRIPT = """
import sys, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
print(model(torch.arange(20)[None]).logits[0, -1].tolist())
assert "headtohead" not in sys.modules
"""


def test_exported_code_runs_without_this_package(tmp_path: Path) -> None:
    model = build_transformer(MODEL_SETTINGS["many parts"])
    write_with_modeling_file(model, tmp_path / "exported", (), {})
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-c", CHILD_SCRIPT, str(tmp_path / "exported")]
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=240)
    assert finished.returncode == 0, finished.stderr
    logits = torch.tensor(json.loads(finished.stdout))
    assert (logits - model(torch.arange(20)[None]).logits[0, -1]).abs().max() < TOLERANCE
