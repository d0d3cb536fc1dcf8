"""nanoGPT: a training step of its configuration for the CPU, against plain PyTorch written from its definition."""

from __future__ import annotations

from headtohead.training.loop import Trainer

from .experiments import build_nanogpt_experiment
from .measurements import BenchmarkSettings, Measurement, Measurements, Target
from .peer_nanogpt import NanoGPTLoop
from .timing import Comparison, measure_comparison
from .workload import TensorBatch, build_trainer, copy_weights, get_workload_shape, list_step_batches

ROUNDS = 15
STEPS_PER_ROUND = 10
MAX_LOSS_DIFFERENCE = 1e-4
"""in nats, between our loss and the peer's at each of the first steps"""


def measure_nanogpt(settings: BenchmarkSettings) -> Measurements:
    """Compare steps on the same batches from the same weights, with AdamW and gradient clipping, on one thread."""
    num_steps = 2 if settings.is_short else STEPS_PER_ROUND
    raw = build_nanogpt_experiment(settings.data, steps=num_steps)
    model, trainer = build_trainer(raw, 0, settings.scratch / "nanogpt")
    model.train()
    batches = list_step_batches(trainer, num_steps)
    peer = NanoGPTLoop(get_workload_shape(raw, model, trainer), copy_weights(model))
    difference = compare_step_losses(trainer, peer, batches)
    name = "nanoGPT's CPU configuration, training step"
    yield measure_comparison(
        Comparison(
            name,
            "steps/s",
            num_steps,
            lambda: [trainer.train_step(step) for step in range(num_steps)],
            lambda: [peer.train_step(batch) for batch in batches],
            "plain PyTorch, one matrix for queries, keys and values",
        ),
        settings.get_num_rounds(ROUNDS),
    )
    target = Target(MAX_LOSS_DIFFERENCE, is_maximum=True)
    yield Measurement(
        f"{name}: largest difference of losses in the first {num_steps} steps",
        difference,
        "nats",
        result=difference,
        kind="nats",
        target=target,
    )


def compare_step_losses(trainer: Trainer, peer: NanoGPTLoop, batches: list[TensorBatch]) -> float:
    """Train both on the batches and return the largest difference of their losses."""
    differences = []
    for step, batch in enumerate(batches):
        trainer.train_step(step)
        differences.append(abs(trainer._pending_losses[-1].item() - peer.train_step(batch).item()))
    return max(differences)
