"""Distillation: training steps of a student, with cached outputs of the teacher, against loops that run the teacher.

Our students compare the teacher's 50 most likely tokens and all others together; the teacher runs once, for all seeds
and variants. The peers run it at every step, for the whole distribution.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any
from unittest import mock

from torch import Tensor
from torch.nn import functional as F

from headtohead.distillation.teacher import open_teacher
from headtohead.tasks.registry import prepare_dataset
from headtohead.training.loop import Trainer
from headtohead.trials.trial import run_trial

from .experiments import build_distillation_experiment
from .measurements import BenchmarkSettings, Measurement, Measurements, Target, build_missing_peer_table
from .peer_distillation import build_plain_steps, build_trl_steps
from .peer_models import GPT2, build_gpt2
from .timing import run_alternating
from .workload import (
    TensorBatch,
    WorkloadShape,
    build_baseline_trial,
    build_trainer,
    copy_weights,
    get_workload_shape,
    list_step_batches,
)

ROUNDS = 10
NUM_STEPS = 20
TOP_K = 50
VOCABULARY_LIMIT = 10**6
"""a number of tokens above any vocabulary size"""
NUM_COMPARED_STEPS = 3
MAX_LOSS_DIFFERENCE = 1e-4
"""in nats, with all probabilities of the teacher"""


@dataclass(frozen=True)
class Student:
    """Our trainer of a student at step 0, and what the peers need to train the same student."""

    trainer: Trainer
    shape: WorkloadShape
    weights: dict[str, Tensor]
    teacher_shape: WorkloadShape
    teacher_weights: dict[str, Tensor]
    batches: list[TensorBatch]
    teacher_seconds: float
    """time in which the teacher's outputs were computed, besides building the student"""

    def build_peers(self, *, extra_positions: int = 0) -> tuple[GPT2, GPT2]:
        """Return student and teacher as models of transformers. Extra positions are zeros."""
        peers = []
        for shape, weights in ((self.shape, self.weights), (self.teacher_shape, self.teacher_weights)):
            positions = F.pad(weights["positions.0.table.weight"], (0, 0, 0, extra_positions))
            longer_shape = replace(shape, context=shape.context + extra_positions)
            peers.append(build_gpt2(longer_shape, {**weights, "positions.0.table.weight": positions}))
        student, teacher = peers
        return student, teacher


def measure_distillation(settings: BenchmarkSettings) -> Measurements:
    """Compare steps on the same rows from the same weights, on one thread."""
    num_steps = 2 if settings.is_short else NUM_STEPS
    with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(settings.scratch / "cache")}):
        yield from _measure_steps(settings, num_steps)
        yield compare_losses(settings)


def build_student(settings: BenchmarkSettings, num_steps: int, top_k: int) -> Student:
    """Train the teacher, compute its outputs and build a student."""
    raw = build_distillation_experiment(settings.data, steps=num_steps, top_k=top_k)
    trial = build_baseline_trial(raw, 0)
    teacher: Any = open_teacher(trial, prepare_dataset(trial.data, trial.task), run_trial).model
    start_time = time.perf_counter()
    model, trainer = build_trainer(raw, 0, settings.scratch / f"student-{top_k}")
    teacher_seconds = time.perf_counter() - start_time
    model.train()
    shape, sizes = get_workload_shape(raw, model, trainer), teacher.sizes
    teacher_shape = replace(shape, width=sizes.width, heads=sizes.heads, hidden=4 * sizes.width)
    batches = list_step_batches(trainer, num_steps)
    return Student(trainer, shape, copy_weights(model), teacher_shape, copy_weights(teacher), batches, teacher_seconds)


def _measure_steps(settings: BenchmarkSettings, num_steps: int) -> Measurements:
    """Yield the rates of all contestants."""
    student = build_student(settings, num_steps, TOP_K)
    plain_student, plain_teacher = student.build_peers()
    contestants: dict[str, Callable[[], object]] = {
        "ours": lambda: [student.trainer.train_step(step) for step in range(num_steps)],
        "transformers, plain loop": build_plain_steps(plain_student, plain_teacher, student.batches, student.shape.lr),
    }
    if find_spec("trl") is None:
        yield build_missing_peer_table("trl")
    else:
        # TRL runs the models on the labels as well, whose last one has no prediction.
        trl_student, trl_teacher = (peer.inner for peer in student.build_peers(extra_positions=1))
        contestants["TRL GKDTrainer"] = build_trl_steps(
            trl_student, trl_teacher, student.batches, student.shape.lr, settings.scratch / "trl"
        )
    best = run_alternating(contestants, settings.get_num_rounds(ROUNDS))
    ours = best.pop("ours")
    for name, theirs in best.items():
        yield Measurement(
            f"training step of a student, {name}",
            num_steps / ours.wall_seconds,
            "steps/s",
            num_steps / theirs.wall_seconds,
            name,
            theirs.wall_seconds / ours.wall_seconds,
            target=Target(1.0),
            cpu_time_ratio=theirs.cpu_seconds / max(ours.cpu_seconds, 1e-9),
        )
    num_rows = len(student.trainer.batch_schedule.encoded)
    name = f"outputs of the teacher on {num_rows:,} rows, computed once for all seeds and variants"
    yield Measurement(name, student.teacher_seconds, "s")


def compare_losses(settings: BenchmarkSettings) -> Measurement:
    """Compare the losses of the first steps with those of the plain loop, with all probabilities of the teacher."""
    student = build_student(settings, NUM_COMPARED_STEPS, VOCABULARY_LIMIT)
    plain_losses = build_plain_steps(*student.build_peers(), student.batches, student.shape.lr)()
    for step in range(NUM_COMPARED_STEPS):
        student.trainer.train_step(step)
    our_losses = [loss.item() for loss in student.trainer._pending_losses]
    difference = max(abs(ours - theirs) for ours, theirs in zip(our_losses, plain_losses, strict=True))
    return Measurement(
        f"largest difference of losses in the first {NUM_COMPARED_STEPS} steps, with all probabilities of the teacher",
        difference,
        "nats",
        result=difference,
        kind="nats",
        target=Target(MAX_LOSS_DIFFERENCE, is_maximum=True),
    )
