"""Train many seeds of one tiny model at once: parameters are stacked over seeds, and `torch.func.vmap` runs them.

Every model starts from the initial weights of the package, sees the batches of the package's `BatchSchedule`, and is
updated by the same Adam; `compare_with_trainer` measures how far the weights are from those of the package's `Trainer`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from headtohead import rng
from headtohead.config import trial_settings
from headtohead.config.experiment import Experiment, Trial
from headtohead.data.batches import IGNORE_INDEX, BatchSchedule
from headtohead.model_factory import build_model
from headtohead.nn.parts import registry
from headtohead.nn.parts.context import TrainingContext
from headtohead.nn.random_state import seed_all_generators
from headtohead.tasks.dataset import Dataset
from headtohead.tasks.registry import get_task, prepare_dataset
from headtohead.training.loop import Trainer

Parameters = dict[str, Tensor]
"""parameters of many seeds by name, each (seeds, ...)"""


@dataclass(frozen=True)
class TinyModels:
    """One variant of an experiment, ready to be trained with any seeds."""

    trial: Trial
    dataset: Dataset
    model: nn.Module
    """supplies the forward pass; its own weights are not used"""

    @classmethod
    def prepare(cls, experiment: Experiment, variant: str) -> TinyModels:
        """Build the model of a variant and load its data."""
        trial = trial_settings.build_trial(experiment, variant, 0)
        dataset = prepare_dataset(trial.data, trial.task)
        return cls(trial, dataset, _build_seed_model(trial, dataset, 0))

    def init_parameters(self, seeds: Sequence[int]) -> Parameters:
        """Return the initial weights of these seeds."""
        states = [dict(_build_seed_model(self.trial, self.dataset, seed).named_parameters()) for seed in seeds]
        return {name: torch.stack([state[name].detach() for state in states]) for name in states[0]}

    def train(self, seeds: Sequence[int], initial: Parameters | None = None) -> Parameters:
        """Return the trained weights of these seeds. `initial` avoids computing their initial weights again."""
        parameters = {name: tensor.clone() for name, tensor in (initial or self.init_parameters(seeds)).items()}
        schedules = [_build_schedule(self.trial, self.dataset, seed) for seed in seeds]
        training = self.trial.training
        total_steps = training.compute_total_steps(schedules[0].steps_per_epoch)
        optimizer_options = training.optimizer.options
        assert training.optimizer.kind == "adam" and training.max_grad_norm is None
        optimizer = torch.optim.Adam(list(parameters.values()), lr=optimizer_options["lr"], foreach=True)
        lr_schedule = registry.build_part("schedule", training.schedule)
        compute_gradients = vmap(grad(self._compute_loss), randomness="different")
        for step in range(total_steps):
            batches = [schedule.get_batch(step) for schedule in schedules]
            input_ids = torch.stack([batch.input_ids for batch in batches])
            labels = torch.stack([batch.labels for batch in batches])
            attention_masks = [batch.attention_mask for batch in batches if batch.attention_mask is not None]
            attention_mask = (
                torch.stack(attention_masks) if attention_masks else torch.ones_like(input_ids, dtype=torch.bool)
            )
            if self.trial.model.dropout:
                seed_all_generators(rng.derive_seed(seeds[0], "dropout", step))
            gradients = compute_gradients(parameters, input_ids, labels, attention_mask)
            for name, parameter in parameters.items():
                parameter.grad = gradients[name]
            lr_factor = lr_schedule.get_factor(TrainingContext(step, total_steps))
            optimizer.param_groups[0]["lr"] = optimizer_options["lr"] * lr_factor
            optimizer.step()
        return parameters

    def _compute_loss(
        self, parameters: Parameters, input_ids: Tensor, labels: Tensor, attention_mask: Tensor
    ) -> Tensor:
        """Return the mean loss of a batch for one seed."""
        logits = self._compute_logits(parameters, input_ids, attention_mask)
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORE_INDEX)

    def _compute_logits(self, parameters: Parameters, input_ids: Tensor, mask: Tensor) -> Tensor:
        attention_mask = mask if self.dataset.num_classes else None
        output = functional_call(self.model, parameters, (input_ids, attention_mask), {"attn_implementation": "eager"})
        logits: Tensor = output.logits
        return logits

    @torch.no_grad()
    def score(self, parameters: Parameters, input_ids: Tensor, labels: Tensor, attention_mask: Tensor) -> np.ndarray:
        """Return the summed loss of each example, or whether its class is predicted: shape (seeds, examples)."""
        self.model.eval()
        is_classifier = self.dataset.num_classes is not None

        def score_seed(weights: Parameters) -> Tensor:
            logits = self._compute_logits(weights, input_ids, attention_mask)
            if is_classifier:
                return (logits.argmax(-1) == labels).float()
            log_probs = logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
            return -log_probs.sum(-1)

        scores = vmap(score_seed, chunk_size=16)(parameters)
        self.model.train()
        return scores.numpy()


def _build_seed_model(trial: Trial, dataset: Dataset, seed: int) -> nn.Module:
    """Return the package's model with the initial weights of a seed."""
    return build_model(trial.model, dataset.tokenizer.vocab_size, dataset.num_classes, seed=seed)


def _build_schedule(trial: Trial, dataset: Dataset, seed: int) -> BatchSchedule:
    """Return the package's batch schedule of a seed."""
    return BatchSchedule(
        dataset.encoded["train"],
        trial.spec.target,
        trial.training,
        trial.data,
        trial.model.context,
        seed,
        dataset.tokenizer,
    )


def compare_with_trainer(models: TinyModels, seeds: Sequence[int]) -> float:
    """Return the largest difference between weights of batched training and of the package's `Trainer`."""
    parameters, max_difference = models.train(seeds), 0.0
    trial, dataset = models.trial, models.dataset
    for seed_index, seed in enumerate(seeds):
        model = _build_seed_model(trial, dataset, seed)
        objective = get_task(trial.task).build_objective(dataset)
        with tempfile.TemporaryDirectory() as folder:
            schedule = _build_schedule(trial, dataset, seed)
            Trainer(model, objective, schedule, trial.training, seed, Path(folder)).run()
        for name, weight in model.named_parameters():
            max_difference = max(max_difference, float((weight.detach() - parameters[name][seed_index]).abs().max()))
    return max_difference
