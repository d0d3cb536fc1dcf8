"""Custom networks as users write them: configuration objects, own losses and parameter groups, several files."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from headtohead.audit.unused_code import check_unused_code
from headtohead.config.base import ComponentConfig
from headtohead.config.tables import model as config_model
from headtohead.config.tables.training import TrainingConfig
from headtohead.data.batches import Batch
from headtohead.errors import ConfigError, ModelError, RequestError
from headtohead.experiment.loading import build_experiment
from headtohead.model_factory import build_model
from headtohead.nn.custom_model import CustomModel
from headtohead.nn.parts import registry
from headtohead.parts import FeedForward
from headtohead.training.optimization.scheduled_optimizer import ScheduledOptimizer
from headtohead.training.parts.objective import attach_objective_parts
from headtohead.training.task_objectives.language_modeling import LanguageModelObjective

VOCAB = 11
FILES = {
    "helper.py": "SCALE = 0.5\n",
    "blocks/__init__.py": "from .norm import Norm\n",
    "blocks/norm.py": "from torch import nn\n\n\nclass Norm(nn.LayerNorm):\n    pass\n",
    "near.py": "OFFSET = 1.0\n",
    "gpt.py": '''
        from dataclasses import dataclass

        import torch
        from blocks import Norm
        from helper import SCALE
        from torch import nn
        from torch.nn import functional as F

        from .near import OFFSET


        @dataclass
        class GPTConfig:
            block_size: int = 1024
            vocab_size: int = 50304
            n_embd: int = 16


        class GPT(nn.Module):
            def __init__(self, config):
                super().__init__()
                self.config = config
                self.wte = nn.Embedding(config.vocab_size, config.n_embd)
                self.wpe = nn.Embedding(config.block_size, config.n_embd)
                self.norm, self.head = Norm(config.n_embd), nn.Linear(config.n_embd, config.vocab_size, bias=False)

            def forward(self, idx, targets=None):
                x = SCALE * self.norm(self.wte(idx) + self.wpe(torch.arange(idx.shape[1])))
                if idx.max().item() > 1e9:
                    x = x + OFFSET
                x[idx == 3] = 2 * x[idx == 3]
                return self.head(x), None


        class Trained(GPT):
            def training_loss(self, input_ids, labels):
                return 2 * F.cross_entropy(self(input_ids)[0].flatten(0, 1), labels.flatten(), ignore_index=-100)

            def parameter_groups(self, lr):
                return [
                    {"params": [self.wte.weight, self.wpe.weight], "lr": 3 * lr, "weight_decay": 0.5},
                    {"params": self.norm.parameters(), "lr": 0.25},
                    {"params": self.head.parameters()},
                ]


        class Forgets(GPT):
            def parameter_groups(self, lr):
                return [{"params": self.head.parameters()}]


        class Adds(GPT):
            def parameter_groups(self, lr):
                return [{"params": self.parameters(), "betas": (0.9, 0.99)}]


        class Namespace(GPT):
            def __init__(self, args):
                super().__init__(GPTConfig(args.block_size, args.vocab_size, args.n_embd))


        class Deeper(GPT):
            """Draws other random numbers before those that it shares with GPT."""

            def __init__(self, config):
                extra = nn.Linear(config.n_embd, config.n_embd)
                super().__init__(config)
                self.extra = extra


        class Half(GPT):
            def __init__(self, config):
                super().__init__(config)
                self.to(torch.bfloat16)


        class Compiled(GPT):
            def __init__(self, config):
                super().__init__(config)
                self.norm = torch.compile(self.norm, backend="eager")


        class NoLoss(GPT):
            def training_loss(self, input_ids, labels):
                return "low"


        class Alien(nn.Module):
            def __init__(self, config):
                super().__init__()
                self.table = nn.Embedding(config.vocab_size, config.vocab_size)

            def forward(self, idx):
                return self.table(idx)
    ''',
}


def write_files(folder: Path, **changed_files: str) -> None:
    for name, source in {**FILES, **changed_files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(inspect.cleandoc(source) + "\n")


@pytest.fixture
def network(tmp_path: Path) -> Callable[..., CustomModel]:
    write_files(tmp_path)

    def build(name: str, *, pair_with: str | None = None, **options: Any) -> CustomModel:
        config = config_model.CustomModelConfig(
            module=f"gpt.py:{name}",
            context=8,
            options={"n_embd": 6, **options},
            pair_with=pair_with,
        )
        model = build_model(config, VOCAB, base_folder=tmp_path)
        assert isinstance(model, CustomModel)
        return model

    return build


def build_batch() -> Batch:
    token_ids = torch.randint(VOCAB, (3, 9), generator=torch.Generator().manual_seed(0))
    return Batch(token_ids[:, :-1], token_ids[:, 1:])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # from torch.compile
@pytest.mark.parametrize("name", ["GPT", "Namespace", "Compiled"])
def test_a_configuration_object_gets_sizes_and_options(network: Any, name: str) -> None:
    model = network(name)
    config = model.inner.config
    assert (config.block_size, config.vocab_size, config.n_embd) == (8, VOCAB, 6)
    assert model(build_batch().input_ids).logits.shape == (3, 8, VOCAB)


def test_an_option_that_the_configuration_does_not_have_is_an_error(network: Any) -> None:
    with pytest.raises(ModelError, match=r"unexpected keyword argument 'depth' \(model.options = .*'depth': 3"):
        network("GPT", depth=3)


def test_helpers_are_those_next_to_the_file_that_is_loaded(network: Any, tmp_path: Path) -> None:
    """A second folder with files of the same names, as in a run folder, is independent of the first."""
    ids, first = build_batch().input_ids, network("GPT")
    copy = tmp_path / "copy"
    write_files(copy, **{"helper.py": "SCALE = 0.25\n"})
    config = config_model.CustomModelConfig(module="gpt.py:GPT", context=8, options={"n_embd": 6})
    second = build_model(config, VOCAB, base_folder=copy)
    assert torch.allclose(second(ids).logits, first(ids).logits / 2)
    assert torch.equal(network("GPT")(ids).logits, first(ids).logits)


def test_the_training_loss_of_a_network_is_minimized_and_not_scored(network: Any) -> None:
    model, batch, objective = network("Trained"), build_batch(), LanguageModelObjective()
    expected = F.cross_entropy(model(batch.input_ids).logits.flatten(0, 1), batch.labels.flatten())
    assert float(objective.compute_loss(model, batch).detach()) == pytest.approx(2 * float(expected.detach()))
    scores = objective.score_batch(model, batch)
    assert float((scores["losses"].sum() / scores["counts"].sum()).detach()) == pytest.approx(float(expected.detach()))
    check_unused_code(model, batch, ScheduledOptimizer(model, TrainingConfig(), 10))
    with pytest.raises(RequestError, match=r"the network defines training_loss\(\)"):
        attach_objective_parts(model, [ComponentConfig(kind="z-loss")], 0)


def test_a_training_loss_that_is_no_tensor_is_an_error(network: Any) -> None:
    with pytest.raises(ModelError, match="training_loss must return a scalar tensor, got 'low'"):
        LanguageModelObjective().compute_loss(network("NoLoss"), build_batch())


def test_parameter_groups_set_learning_rates_and_weight_decay(network: Any) -> None:
    model = network("Trained")
    training = TrainingConfig.model_validate({"optimizer": {"kind": "adamw", "lr": 0.1, "weight_decay": 0.01}})
    optimizer = ScheduledOptimizer(model, training, 10)
    groups = {id(p): group for o in optimizer.optimizers for group in o.param_groups for p in group["params"]}
    settings = {
        name: (groups[id(parameter)]["lr"], groups[id(parameter)]["weight_decay"])
        for name, parameter in model.inner.named_parameters()
    }
    assert settings == {
        "wte.weight": (pytest.approx(0.3), 0.5),
        "wpe.weight": (pytest.approx(0.3), 0.5),
        "norm.weight": (pytest.approx(0.25), 0.0),
        "norm.bias": (pytest.approx(0.25), 0.0),
        "head.weight": (pytest.approx(0.1), 0.01),
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Forgets", "each trainable parameter must be in one group, unlike wte.weight, wpe.weight"),
        ("Adds", r"unknown key 'betas' \(available: params, lr, weight_decay\)"),
    ],
)
def test_invalid_parameter_groups_are_errors(network: Any, name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        ScheduledOptimizer(network(name), TrainingConfig(), 10)


def test_networks_are_paired_by_tensor_name_where_the_user_allows_it(network: Any) -> None:
    baseline, unpaired, paired = network("GPT"), network("Deeper"), network("Deeper", pair_with="GPT")
    tensors = baseline.state_dict()
    assert not torch.equal(unpaired.state_dict()["inner.wte.weight"], tensors["inner.wte.weight"])
    assert all(torch.equal(paired.state_dict()[name], tensors[name]) for name in tensors)
    assert torch.equal(paired.state_dict()["inner.extra.weight"], unpaired.state_dict()["inner.extra.weight"])
    with pytest.raises(ModelError, match=r"pair_with: no tensor of gpt.py:Alien has an equal name and shape"):
        network("GPT", pair_with="Alien")


def test_bfloat16_parameters_are_trained_in_bfloat16(network: Any) -> None:
    model, batch = network("Half"), build_batch()
    optimizer = ScheduledOptimizer(model, TrainingConfig.model_validate({"optimizer": {"kind": "sgd", "lr": 0.1}}), 10)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    # Gradients are set instead of computed: products in bfloat16 crash on some machines.
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step(0)
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.bfloat16
        assert not torch.equal(parameter, before[name])
    assert batch.num_predictions == 24


def test_a_part_that_is_defined_in_a_notebook_fails_at_once(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.load_builtin_parts()
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))

    class Mine(FeedForward):
        __module__ = "__main__"  # as in a notebook

    registry.register_part("feedforward", "mine")(Mine)
    with pytest.raises(ConfigError, match=r"mine is defined in a notebook .*cannot import.*%%writefile my_parts.py"):
        small(model={"feedforward": "mine"})


def test_an_experiment_trains_saves_and_reloads_a_network_of_several_files(
    tmp_path: Path, text_folder: Path, in_process_workers: None
) -> None:
    from headtohead.runner.run_experiment import run_experiment
    from headtohead.saved_models import model_io

    write_files(tmp_path / "code")
    module = f"{tmp_path / 'code' / 'gpt.py'}"
    raw = {
        "question": "Does it help?",
        "task": "language-model",
        "seeds": 1,
        "data": {"source": str(text_folder), "allow_overlap": True},
        "model": {"module": f"{module}:Trained", "context": 8, "options": {"n_embd": 6}},
        "training": {"budget": "4 steps", "batch_size": 4, "eval_every": 4},
        "variants": {"deeper": {"model": {"module": f"{module}:Deeper", "pair_with": "GPT", "options": {"n_embd": 6}}}},
    }
    assert not run_experiment(build_experiment(raw), tmp_path / "runs", num_workers=1).failed_jobs
    for run in (tmp_path / "runs" / "baseline" / "seed-0", tmp_path / "runs" / "deeper" / "seed-0"):
        copies = {str(file.relative_to(run / "own")) for file in (run / "own").rglob("*.py")}
        assert copies == {"gpt.py", "helper.py", "near.py", "blocks/__init__.py", "blocks/norm.py"}
        assert model_io.load_saved_model(run).model(torch.zeros(1, 4, dtype=torch.long)).logits.shape[:2] == (1, 4)
