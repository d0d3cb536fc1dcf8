"""Check that training with a part resumes from a checkpoint as if it had never been interrupted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headtohead.audit.conformance.assertions import CheckFailedError
from headtohead.audit.conformance.fixtures import NUM_CLASSES, VOCAB_SIZE, PartFixture, build_fixture
from headtohead.config.tables.training import TrainingConfig
from headtohead.data.batches import Batch
from headtohead.model_factory import build_model
from headtohead.nn.random_state import fork_seeded_rng
from headtohead.nn.transformer import Transformer
from headtohead.training.optimization.hessian import estimate_hessian_diagonal
from headtohead.training.optimization.scheduled_optimizer import ScheduledOptimizer
from headtohead.training.parts.objective import attach_objective_parts
from headtohead.training.task_objectives.base import ComposedObjective
from headtohead.training.task_objectives.classification import ClassificationObjective
from headtohead.training.task_objectives.language_modeling import LanguageModelObjective

NUM_STEPS = 8
NUM_STEPS_BEFORE_INTERRUPTION = 4
BATCH_SIZE = 3
INPUT_LENGTH = 8


@dataclass
class ResumableTraining:
    """Training of a fixture's model on random batches."""

    model: Transformer
    objective: ComposedObjective
    optimizer: ScheduledOptimizer
    num_classes: int | None

    @classmethod
    def start(cls, fixture: PartFixture, training: TrainingConfig) -> ResumableTraining:
        """Return a training of the fixture's model before its first step."""
        model = build_model(fixture.config, VOCAB_SIZE, fixture.num_classes)
        assert isinstance(model, Transformer)
        objective = ClassificationObjective() if fixture.is_encoder else LanguageModelObjective()
        objective.loss_parts = attach_objective_parts(model, training.objective, 0)
        optimizer = ScheduledOptimizer(model, training, NUM_STEPS)
        return cls(model.train(), objective, optimizer, fixture.num_classes)

    def train(self, start: int, end: int) -> None:
        """Train the fixture's model from step `start` up to, but not including, `end`."""
        for step in range(start, end):
            batch, hessian = build_random_training_batch(step, self.num_classes), {}
            with fork_seeded_rng("conformance", "training", step):
                self._backward(batch)
                if self.optimizer.needs_hessian(step):
                    parameters = self.optimizer.parameters
                    hessian = estimate_hessian_diagonal(self.model, batch, self._backward, parameters)
            self.optimizer.step(step, hessian)

    def _backward(self, batch: Batch) -> None:
        """Accumulate the gradients of the loss on a batch."""
        self.objective.compute_loss(self.model, batch).backward()

    def restart(self, fixture: PartFixture, training: TrainingConfig) -> ResumableTraining:
        """Resume: return a training that continues from what a checkpoint of this one contains."""
        resumed = ResumableTraining.start(fixture, training)
        resumed.model.load_state_dict({name: tensor.clone() for name, tensor in self.model.state_dict().items()})
        tensors = self.optimizer.collect_state_tensors()
        resumed.optimizer.load_state_tensors({name: tensor.clone() for name, tensor in tensors.items()})
        return resumed

    @torch.no_grad()
    def compute_logits(self, step: int) -> Tensor:
        """Return the logits to compare with resumed training, with the weights that are evaluated after a step."""
        with self.optimizer.use_evaluation_weights(step), fork_seeded_rng("conformance", "evaluation"):
            logits: Tensor = self.model.eval()(build_random_training_batch(0, self.num_classes).input_ids).logits
        self.model.train()
        return logits


def build_random_training_batch(step: int, num_classes: int | None) -> Batch:
    """Return the batch of a step, which is the same for interrupted, resumed and uninterrupted training.

    It has random tokens, with the next tokens or random classes as labels.
    """
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCAB_SIZE, (BATCH_SIZE, INPUT_LENGTH + 1), generator=generator)
    if num_classes is None:
        return Batch(tokens[:, :-1], tokens[:, 1:])
    return Batch(tokens[:, :-1], torch.randint(NUM_CLASSES, (BATCH_SIZE,), generator=generator))


def _find_resume_difference(fixture: PartFixture, training: TrainingConfig) -> str | None:
    """Return how training that is resumed from a checkpoint differs from uninterrupted training; None if equal."""
    uninterrupted, interrupted = ResumableTraining.start(fixture, training), ResumableTraining.start(fixture, training)
    uninterrupted.train(0, NUM_STEPS)
    interrupted.train(0, NUM_STEPS_BEFORE_INTERRUPTION)
    resumed = interrupted.restart(fixture, training)
    if not torch.equal(
        interrupted.compute_logits(NUM_STEPS_BEFORE_INTERRUPTION), resumed.compute_logits(NUM_STEPS_BEFORE_INTERRUPTION)
    ):
        return "the logits right after resuming differ from those before the interruption"
    resumed.train(NUM_STEPS_BEFORE_INTERRUPTION, NUM_STEPS)
    state, resumed_state = uninterrupted.model.state_dict(), resumed.model.state_dict()
    if names := [name for name in state if not torch.equal(state[name], resumed_state[name])]:
        return f"different after {NUM_STEPS} steps: {', '.join(names[:3])}"
    if not torch.equal(uninterrupted.compute_logits(NUM_STEPS), resumed.compute_logits(NUM_STEPS)):
        return "the logits at the end of training differ"
    return None


def check_resume_with_model_part(fixture: PartFixture) -> str:
    """Check that training of a model that contains the part can be interrupted and resumed."""
    if difference := _find_resume_difference(fixture, TrainingConfig()):
        raise CheckFailedError(
            f"{difference}; keep what changes in training in parameters or buffers, which checkpoints contain"
        )
    return "a resumed run equals an uninterrupted one, bit for bit"


def check_resume_with_training_part(training: TrainingConfig) -> str:
    """Check that training with a part of training, such as an optimizer, can be interrupted and resumed."""
    if difference := _find_resume_difference(build_fixture({}), training):
        raise CheckFailedError(
            f"{difference}; keep all state of a part in `state`, in parameters or in buffers, which checkpoints contain"
        )
    return "a resumed run equals an uninterrupted one, bit for bit"
