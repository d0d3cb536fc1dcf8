"""Recording calls and callbacks in a script: initial weights, batches, metrics and model checks."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import headtohead
from headtohead.audit.result import list_blocking_reasons
from headtohead.cli import app
from headtohead.versus.outputs.run_record import read_recorded_evidence, read_recorded_values

TRAINER_SCRIPT = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from headtohead.versus.callbacks.transformers import HeadToHeadCallback
def train(seed):
    set_seed(seed)
    rows = [{"input_ids": torch.arange(8) % 7, "labels": torch.arange(8) % 7} for _ in range(8)]
    model = GPT2LMHeadModel(GPT2Config(vocab_size=7, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    options = dict(max_steps=4, eval_strategy="steps", eval_steps=2, logging_steps=2, report_to=[], save_strategy="no",
                   disable_tqdm=True, use_cpu=True, seed=seed)
    Trainer(model, TrainingArguments("work", **options), train_dataset=rows, eval_dataset=rows,
            callbacks=[HeadToHeadCallback()]).train()
"""
LIGHTNING_SCRIPT = """
import torch, lightning
from headtohead.versus.callbacks.lightning import HeadToHeadCallback
class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()
    def validation_step(self, batch, index):
        self.log("eval_loss", self.layer(batch[0]).square().mean())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
def train(seed):
    lightning.seed_everything(seed)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 3)), batch_size=4)
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False, callbacks=[HeadToHeadCallback()])
    trainer.fit(Line(), loader, loader)
"""
KERAS_SCRIPT = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy
from headtohead.versus.callbacks.keras import HeadToHeadCallback
def train(seed):
    keras.utils.clear_session()  # names of layers start anew
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = numpy.ones((8, 3), "float32")
    model.fit(x, x[:, :1], epochs=2, validation_data=(x, x[:, :1]), verbose=0, callbacks=[HeadToHeadCallback()])
"""
TRAIN_THREE_TIMES = """
import os
for name, seed in (("first", 1), ("again", 1), ("other", 2)):
    os.mkdir(name)
    os.environ["H2H_OUT"] = name
    train(seed)
"""


@pytest.mark.parametrize(
    ("package", "script", "metric", "steps"),
    [
        ("transformers", TRAINER_SCRIPT, "eval_loss", [2, 4]),
        ("lightning", LIGHTNING_SCRIPT, "eval_loss", [2, 4, 4]),
        ("keras", KERAS_SCRIPT, "val_loss", [0, 1]),
    ],
)
def test_callbacks_record_initial_weights_and_metrics(
    package: str, script: str, metric: str, steps: list[int], tmp_path: Path
) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    result = subprocess.run(
        [sys.executable, "-c", script + TRAIN_THREE_TIMES], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    values = read_recorded_values(tmp_path / "first", metric)
    assert [value.step for value in values] == steps
    assert values == read_recorded_values(tmp_path / "again", metric)
    digests = [read_recorded_evidence(tmp_path / name).start_digest for name in ("first", "again", "other")]
    assert digests[0] == digests[1] != digests[2]


def test_nothing_is_recorded_when_the_script_runs_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("H2H_OUT", raising=False)
    monkeypatch.chdir(tmp_path)
    run = headtohead.record()
    run.start(nn.Linear(2, 2))
    run.batch(torch.ones(2))
    run.log(1, loss=1.0)
    run.examples([1.0])
    assert run.audit(nn.Linear(2, 2), vocab_size=2, context=2) == []
    assert not run.is_active
    assert not list(tmp_path.iterdir())


class TokenModel(nn.Module):
    """Mixes each token with a neighbor: the next token (a leak) or the previous one."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.embedding, self.head, self.shift = nn.Embedding(11, 8), nn.Linear(8, 11), shift

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden_states = self.embedding(input_ids)
        neighbors = torch.zeros_like(hidden_states)
        if self.shift > 0:
            neighbors[:, 1:] = hidden_states[:, :-1]
        else:
            neighbors[:, :-1] = hidden_states[:, 1:]
        return self.head(hidden_states + neighbors)


def test_a_recorded_audit_finds_a_model_that_reads_the_future(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reasons = {}
    for name, shift in (("honest", 1), ("leak", -1)):
        monkeypatch.setenv("H2H_OUT", str(tmp_path / name))
        (tmp_path / name).mkdir()
        results = headtohead.record().audit(TokenModel(shift), vocab_size=11, context=8)
        assert read_recorded_evidence(tmp_path / name).audits == results
        reasons[name] = list_blocking_reasons(results)
    assert reasons["honest"] == []
    assert any("future" in reason for reason in reasons["leak"])


AUDITED_SCRIPT = """
import json, os, random, sys
out, seed, is_leak = os.environ["H2H_OUT"], int(sys.argv[1]), len(sys.argv) > 2
result = {"name": "causality", "passed": not is_leak, "procedure": "p", "observation": "o", "is_blocking": True,
          "failure_reason": "reads the future" if is_leak else ""}
with open(os.path.join(out, "h2h-record.jsonl"), "w") as file:
    print(json.dumps({"event": "audit", "result": result}), file=file)
print("val_loss=", random.Random(seed - 100 * is_leak).random() + 5 * (not is_leak))
"""


def test_a_failed_recorded_audit_withholds_the_verdict(tmp_path: Path) -> None:
    path = tmp_path / "audited.py"
    path.write_text(AUDITED_SCRIPT)
    command = f"{sys.executable} {path} {{seed}}"
    arguments = [command, f"{command} leak", "--metric", "val_loss", "--seeds", "3", "--no-check-determinism", "--json"]
    result = CliRunner().invoke(app, ["versus", *arguments, "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    findings: dict[str, Any] = json.loads(result.stdout)
    assert findings["verdicts"][0]["outcome"] == "not comparable"
    assert findings["verdicts"][0]["withheld"] == ["reads the future"]
    assert [audit["passed"] for audit in findings["audits"]["variant"]] == [False]


def build_network(layers: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))


def test_paired_draws_depend_on_seed_and_name_only() -> None:
    shallow, deep = build_network(2), build_network(3)
    pair = headtohead.paired(5)
    for network in (shallow, deep):
        torch.rand(3)  # other draws do not shift those of the weights
        pair.initialize(network)
    for index in range(2):
        torch.testing.assert_close(deep[index].weight, shallow[index].weight, rtol=0, atol=0)
    assert not torch.equal(shallow[0].weight, shallow[1].weight)
    other = build_network(2)
    headtohead.paired(6).initialize(other)
    assert not torch.equal(other[0].weight, shallow[0].weight)
    rows = pair.draw_rows(3, 100, 8)
    assert rows.tolist() == headtohead.paired(5).draw_rows(3, 100, 8).tolist() != pair.draw_rows(4, 100, 8).tolist()


def test_paired_initialization_with_a_function_of_the_script() -> None:
    def init_weights(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)

    shallow, deep = build_network(2), build_network(3)
    for network in (shallow, deep):
        headtohead.paired(0).initialize(network, init_weights)
    torch.testing.assert_close(deep[1].weight, shallow[1].weight, rtol=0, atol=0)
    assert shallow[1].weight.std() < 0.05
